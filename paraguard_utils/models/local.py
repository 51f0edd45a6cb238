"""Query a model whose weights are loaded.

Prompts become tokens, tokens batches and batches traces.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from tqdm import tqdm

from paraguard_utils.models import loading, prompting
from paraguard_utils.models.prompting import (
    Decoding,
    PromptContext,
    Request,
    Workload,
)
from paraguard_utils.schemas import Traces

Batch: TypeAlias = Sequence[Request]


class WeightsBackend(ABC):
    """A model whose weights are loaded, here or elsewhere.

    Its prompts are tokenized here, by `reader`.
    """

    def __init__(self, reader: loading.ModelReader) -> None:
        self.reader = reader
        self.tokenizer = reader.tokenizer
        self.name = reader.name
        self.argument = reader.argument

    def context(self, system_prompt_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        before, after = prompting.render_system_prompt(
            self.tokenizer, system_prompt_text
        )
        return PromptContext(
            self.reader.weights_id, self.reader.dtype, before, after, decoding
        )

    @abstractmethod
    def embeddings(self, ids: list[int]) -> np.ndarray:
        """Return tokens' input embeddings, float16, shape (tokens, dimensions)."""

    @abstractmethod
    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what the meta file of traces records beside the context."""

    def answers(self, workload: Workload, context: PromptContext) -> Iterator[Traces]:
        """Query the prompts of a workload batch by batch, and yield their traces.

        Of a shard (i, n), every n-th batch from the i-th on.
        """
        from paraguard_utils.models import engine

        requests = prompting.tokenize_prompts(workload.prompts, self.tokenizer, context)
        batches = engine.split_into_batches(
            requests, workload.batch, context.decoding.max_new_tokens
        )
        number, shards = workload.shard
        batches = batches[number - 1 :: shards]
        remaining = find_remaining_batches(batches, workload.known)
        if not remaining:
            return
        prefix = requests[0].token_ids[: engine.count_shared_tokens(requests)]
        total = sum(len(batch) for batch in batches)
        with tqdm(
            total=total,
            initial=total - sum(len(batch) for batch in remaining),
            desc=workload.title,
            unit="prompt",
            disable=not workload.title,
        ) as bar:
            for traces in self.answer_batches(remaining, prefix, context):
                yield traces
                bar.update(len(traces))

    @abstractmethod
    def answer_batches(
        self, batches: Sequence[Batch], prefix: tuple[int, ...], context: PromptContext
    ) -> Iterator[Traces]:
        """Query batches of requests that all begin with the prefix.

        Yield traces as they come.
        """


class LocalBackend(WeightsBackend):
    """A model loaded on this machine."""

    def __init__(self, model: loading.LoadedModel) -> None:
        super().__init__(model)
        self.model = model

    def embeddings(self, ids: list[int]) -> np.ndarray:
        """Return tokens' input embeddings, float16, shape (tokens, dimensions)."""
        layer = self.model.network.get_input_embeddings()
        rows = layer.get_parameter("weight").detach()[ids]
        return rows.float().cpu().numpy().astype(np.float16)

    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what the meta file of traces records beside the context."""
        return {"device": str(self.model.network.device)}

    def answer_batches(
        self, batches: Sequence[Batch], prefix: tuple[int, ...], context: PromptContext
    ) -> Iterator[Traces]:
        """Query batches one after another."""
        from paraguard_utils.models.engine import Engine

        engine = Engine(self.model, prefix, context.decoding)
        for batch in batches:
            yield make_traces(engine.ask(batch), context)


def make_traces(rows: list[dict[str, Any]], context: PromptContext) -> Traces:
    """Return rows of an engine as traces.

    An answer begins with the mark of thinking that the chat template opens, if any.
    """
    traces = pd.DataFrame(rows)
    open_thought = prompting.OPEN_THOUGHT_PATTERN.search(context.suffix)
    if open_thought:
        traces["response"] = f"{open_thought[1]}\n" + traces["response"]
    return traces


def find_remaining_batches(
    batches: Sequence[Batch], known: Collection[str]
) -> list[Batch]:
    """Return the batches without the prompts that are known.

    A batch decides the padding, and with it the last bits of every number. So those of
    which nothing is known are as in an unbroken run, and none is filled up.
    """
    remaining: list[Batch] = []
    for batch in batches:
        unknown = [request for request in batch if request.prompt_id not in known]
        if unknown:
            remaining.append(unknown)
    return remaining
