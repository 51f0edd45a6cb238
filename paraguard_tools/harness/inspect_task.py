"""The task of Inspect: `inspect eval paraguard_tools/paraguard --model ...`.

`docs/usage.md` shows its options.
"""

import sys
from contextvars import ContextVar
from logging import getLogger
from typing import Any

import pandas as pd
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalSpec
from inspect_ai.model import ContentReasoning, GenerateConfig
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
from inspect_ai.util import EarlyStop, EarlyStopping

from paraguard_lab.labels.first_answers import FIRST_ANSWERS
from paraguard_tools.harness.requests import (
    CORPUS_FILE,
    MAX_TOKENS,
    Measured,
    label_answer,
    measure_labels,
    read_requests,
)
from paraguard_utils import registry
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.errors import DataError, SettingsError

_ROOM = "a model that reasons first needs more tokens, as -T max_tokens={}"

logger = getLogger(__name__)

# The scores of the task that runs: Inspect may run one task with several models at the
# same time, each in a context of its own
_scores: ContextVar[list[SampleScore]] = ContextVar("scores")


def _measure(scores: list[SampleScore]) -> Measured:
    rows = []
    for sample in scores:
        row: dict[str, Any] = {"cluster": "", "harmful": False}
        row |= sample.sample_metadata or {}
        row |= sample.score.metadata or {}
        rows.append(row | {"label": sample.score.answer})
    columns = ["cluster", "harmful", "label", "kind", "finish_reason", "reasoning"]
    return measure_labels(pd.DataFrame(rows, columns=columns))


@metric
def refusing() -> Metric:
    """Measure how often and how consistently a system refuses.

    The measures are those of `requests.measure_labels`, over clusters.
    """

    def measure(scores: list[SampleScore]) -> Value:
        return dict(_measure(scores).values)

    return measure


@scorer(metrics=[refusing()])
def refused(labeller: str = "") -> Scorer:
    """Score `refused` 1 for a refusal and 0 else, `parsed` 0 if nothing can be read.

    Inspect would hide a score of NaN from the metrics. The label is the score's answer.
    A stop by a provider's filter is a refusal. `labeller` is that of `label_refusals`.
    """

    async def score(state: TaskState, target: Target) -> Score:
        output = state.output
        stop = output.stop_reason if output.choices else None
        label = label_answer(output.completion, stop, state.input_text, labeller)
        return Score(
            value={
                "refused": float(as_refused([label["label"]])[0] == 1),
                "parsed": float(label["label"] != "unparsed"),
            },
            answer=label["label"],
            explanation=label["rule"],
            metadata={
                "kind": label["kind"],
                "finish_reason": stop,
                "reasoning": _has_reasoning(state),
            },
        )

    return score


def _has_reasoning(state: TaskState) -> bool:
    if not state.output.choices:
        return False
    content = state.output.message.content
    usage = state.output.usage
    is_shown = isinstance(content, list) and any(
        isinstance(part, ContentReasoning) for part in content
    )
    return is_shown or bool(usage and usage.reasoning_tokens)


class SilenceWatch(EarlyStopping):
    """Ends a task whose first answers are all empty, and says why measures are NaN.

    What it says is `results.early_stopping.metadata` of the log. A task without a
    parsed answer ends with an error.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens

    async def start_task(
        self, task: EvalSpec, samples: list[Sample], epochs: int
    ) -> str:
        """Begin to collect the scores of a task."""
        _scores.set([])
        return "paraguard"

    async def schedule_sample(self, id: str | int, epoch: int) -> EarlyStop | None:
        """Skip a sample if the first answers are all empty."""
        scores = _scores.get()
        is_heard = any(one.score.answer != "unparsed" for one in scores)
        if is_heard or len(scores) < FIRST_ANSWERS:
            return None
        return EarlyStop(id=id, epoch=epoch, reason="no answer holds anything to read")

    async def complete_sample(
        self, id: str | int, epoch: int, scores: dict[str, SampleScore]
    ) -> None:
        """Collect the score of a sample."""
        _scores.get().extend(scores.values())

    async def complete_task(self) -> dict[str, Any]:
        """Return the share of parsed answers and why measures are NaN."""
        scores = _scores.get()
        measured = _measure(scores)
        if scores and not measured.n_parsed:
            room = _ROOM.format(max(MAX_TOKENS, 4 * self.max_tokens))
            raise DataError(f"{measured.note}; {room}")
        if measured.note:
            logger.warning("paraguard: %s", measured.note)
        return {"parsed": measured.values["parsed"], "note": measured.note}


@task
def paraguard(
    instruction: str = "none",
    labeller: str = "",
    corpus: str = str(CORPUS_FILE),
    twins: str = "",
    max_tokens: int = MAX_TOKENS,
) -> Task:
    """Send every request of a corpus, and of its harmful twins.

    Files are as `requests.read_requests` wants them. `instruction` is a system prompt
    of `data/system_prompts.yaml`, such as safety. An answer, with the reasoning before
    it, has at most `max_tokens`; its opening is labelled.
    """
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise SettingsError(
            f"-T max_tokens={max_tokens!r}: give a whole number of tokens from 1"
        )
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
        config=GenerateConfig(temperature=0, max_tokens=max_tokens),
        early_stopping=SilenceWatch(max_tokens),
    )


def _register_old_name() -> None:
    """Let `paraguard_utils/paraguard`, the task's name before 1.0.0, work until 1.1."""

    def old_task(
        instruction: str = "none",
        labeller: str = "",
        corpus: str = str(CORPUS_FILE),
        twins: str = "",
        max_tokens: int = MAX_TOKENS,
    ) -> Task:
        print(
            "inspect eval paraguard_utils/paraguard: write paraguard_tools/paraguard",
            file=sys.stderr,
        )
        return paraguard(instruction, labeller, corpus, twins, max_tokens)

    old_task.__module__ = "paraguard_utils"
    task(name="paraguard")(old_task)


_register_old_name()
