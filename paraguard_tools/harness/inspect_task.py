"""The task of Inspect: `inspect eval paraguard_tools/paraguard --model ...`.

`docs/usage.md` shows its options.
"""

import sys

import pandas as pd
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import (
    Metric,
    SampleScore,
    Score,
    Scorer,
    Target,
    Value,
    metric,
    scorer,
)
from inspect_ai.solver import TaskState, generate, system_message

from paraguard_tools.harness.requests import (
    CORPUS_FILE,
    measure_decisions,
    read_requests,
)
from paraguard_tools.logs.decisions import label_refusals
from paraguard_utils import registry
from paraguard_utils.core.decisions import as_refused

MAX_TOKENS = 64  # the length of the recorded answers


@metric
def refusing() -> Metric:
    """Measure how often and how consistently a system refuses.

    The measures are those of `requests.measure_decisions`, over clusters.
    """

    def measure(scores: list[SampleScore]) -> Value:
        rows = pd.DataFrame([sample.sample_metadata or {} for sample in scores])
        labels = [sample.score.answer for sample in scores]
        return measure_decisions(rows.assign(label=labels))

    return measure


@scorer(metrics=[refusing()])
def refused(labeller: str = "") -> Scorer:
    """Score 1 for a refusal, 0 for an answer, NaN for what is neither.

    The label is the score's answer. A stop by a provider's filter is a refusal.
    `labeller` is that of `label_refusals`.
    """

    async def score(state: TaskState, target: Target) -> Score:
        output = state.output
        stop = output.stop_reason if output.choices else None
        labels = label_refusals(
            [output.completion], [stop], [state.input_text], labeller
        )
        label = labels.iloc[0]
        return Score(
            value=float(as_refused([label["label"]])[0]),
            answer=label["label"],
            explanation=label["rule"],
        )

    return score


@task
def paraguard(
    instruction: str = "none",
    labeller: str = "",
    corpus: str = str(CORPUS_FILE),
    twins: str = "",
) -> Task:
    """Send every request of a corpus, and of its harmful twins.

    Files are as `requests.read_requests` wants them. `instruction` is a system prompt
    of `data/system_prompts.yaml`, such as safety.
    """
    system_prompt = registry.read_system_prompt(instruction)
    requests = read_requests(*filter(None, (corpus, twins)))
    samples = [
        Sample(
            input=row.text,
            id=row.Index + 1,
            metadata={"cluster": row.cluster, "harmful": bool(row.harmful)},
        )
        for row in requests.itertuples()
    ]
    solver = [generate()]
    if system_prompt:
        solver.insert(0, system_message(system_prompt))
    return Task(
        dataset=MemoryDataset(samples, name="paraguard"),
        solver=solver,
        scorer=refused(labeller),
        config=GenerateConfig(temperature=0, max_tokens=MAX_TOKENS),
    )


def _register_old_name() -> None:
    """Let `paraguard_utils/paraguard`, the task's name before 1.0.0, work until 1.1."""

    def old_task(
        instruction: str = "none",
        labeller: str = "",
        corpus: str = str(CORPUS_FILE),
        twins: str = "",
    ) -> Task:
        print(
            "inspect eval paraguard_utils/paraguard: write paraguard_tools/paraguard",
            file=sys.stderr,
        )
        return paraguard(instruction, labeller, corpus, twins)

    old_task.__module__ = "paraguard_utils"
    task(name="paraguard")(old_task)


_register_old_name()
