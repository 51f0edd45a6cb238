"""The task of Inspect: `inspect eval paraguard_utils/paraguard --model ...`
(`docs/usage.md`).
"""

import pandas as pd
import yaml
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import (
    Metric,
    SampleScore,
    Score,
    Scorer,
    System,
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
from paraguard_utils import paths
from paraguard_utils.core.decisions import as_refused


@metric
def refusing() -> Metric:
    """Measure how often and how sensibly a system refuses:
    `requests.measure_decisions`, over clusters.
    """

    def measure(scores: list[SampleScore]) -> Value:
        rows = [
            {**(one.sample_metadata or {}), "label": one.score.answer} for one in scores
        ]
        return measure_decisions(pd.DataFrame(rows))

    return measure


@scorer(metrics=[refusing()])
def refused(labeller: str = "") -> Scorer:
    """Score 1 for a refusal, 0 for an answer, NaN for what is neither.

    The label is the score's answer.

    A stop by a provider's filter is a refusal. `labeller` is that of `label_refusals`.
    """

    async def score(state: TaskState, system: System) -> Score:
        said, stop = (
            state.output.completion,
            (state.output.stop_reason if state.output.choices else None),
        )
        found = label_refusals([said], [stop], [state.input_text], labeller).iloc[0]
        return Score(
            value=float(as_refused([found["label"]])[0]),
            answer=found["label"],
            explanation=found["rule"],
        )

    return score


@task
def paraguard(
    instruction: str = "none",
    labeller: str = "",
    corpus: str = str(CORPUS_FILE),
    twins: str = "",
) -> Task:
    """Ask every request of a corpus, and of its harmful twins.

    Files as of `requests.read_requests`.

    `instruction` is a system prompt of `data/system_prompts.yaml`, such as safety.
    """
    system = yaml.safe_load(
        (paths.DATA / "system_prompts.yaml").read_text(encoding="utf-8")
    )[instruction]["text"]
    rows = read_requests(*filter(None, (corpus, twins)))
    samples = [
        Sample(
            input=row.text,
            id=number,
            metadata={"cluster": row.cluster, "harmful": bool(row.harmful)},
        )
        for number, row in enumerate(rows.itertuples(), 1)
    ]
    return Task(
        dataset=MemoryDataset(samples, name="paraguard"),
        solver=[*([system_message(system)] if system else []), generate()],
        scorer=refused(labeller),
        config=GenerateConfig(
            temperature=0, max_tokens=64
        ),  # the length of the recorded answers
    )
