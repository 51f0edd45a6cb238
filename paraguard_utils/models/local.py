"""Ask a model whose weights are loaded: prompts to tokens, tokens to batches, batches
to traces.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from tqdm import tqdm

from paraguard_utils.models import loading, prompting
from paraguard_utils.models.prompting import (
    OPEN_THOUGHT_PATTERN,
    Decoding,
    PromptContext,
    Request,
)
from paraguard_utils.schemas import Corpus, Traces
from paraguard_utils.stores import WHOLE, Shard


class WeightsBackend(ABC):
    """A model whose weights are loaded, here or elsewhere.

    Its prompts are tokenized here by `reader`.
    """

    def __init__(self, reader: loading.ModelReader) -> None:
        self.reader, self.tokenizer, self.name, self.argument = (
            reader,
            reader.tokenizer,
            reader.name,
            reader.argument,
        )

    def context(self, system_prompt_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        rendered = prompting.render_system_prompt(self.tokenizer, system_prompt_text)
        return PromptContext(
            self.reader.weights_id, self.reader.dtype, *rendered, decoding
        )

    @abstractmethod
    def embeddings(self, ids: list[int]) -> np.ndarray:
        """Return the input embeddings of tokens, float16, shape (tokens, dimensions)."""

    def answers(
        self,
        corpus: Corpus,
        context: PromptContext,
        system: str,
        known: set[str],
        batch: int,
        shard: Shard = WHOLE,
    ) -> Iterator[Traces]:
        """Ask the prompts that are not known, batch by batch.

        Of a shard (i, n), every n-th batch from the i-th on.
        """
        from paraguard_utils.models.engine import count_shared_tokens

        asked = prompting.tokenize_prompts(corpus, self.tokenizer, context)
        groups, size = _groups(
            asked, known, batch, context.decoding.max_new_tokens, shard
        )
        if not groups:
            return
        prefix = asked[0].token_ids[: count_shared_tokens(asked)]
        done = size - sum(
            map(len, groups)
        )  # progress is shown if the system has a name
        with tqdm(
            total=size, initial=done, desc=system, unit="prompt", disable=not system
        ) as bar:
            for rows in self._asked(groups, prefix, context):
                yield rows
                bar.update(len(rows))

    @abstractmethod
    def _asked(
        self,
        groups: list[list[Request]],
        prefix: tuple[int, ...],
        context: PromptContext,
    ) -> Iterator[Traces]:
        """Ask batches of requests that all begin with the prefix.

        Yield trace rows as they come.
        """


class LocalBackend(WeightsBackend):
    """A model loaded on this machine."""

    def __init__(self, model: loading.LoadedModel) -> None:
        super().__init__(model)
        self.model = model

    def embeddings(self, ids: list[int]) -> np.ndarray:
        """Return the input embeddings of tokens, float16, shape (tokens, dimensions)."""
        weight = self.model.network.get_input_embeddings().get_parameter("weight")
        return weight.detach()[ids].float().cpu().numpy().astype(np.float16)

    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what the meta file of traces records beside the context."""
        return {"device": str(self.model.network.device)}

    def _asked(
        self,
        groups: list[list[Request]],
        prefix: tuple[int, ...],
        context: PromptContext,
    ) -> Iterator[Traces]:
        yield from map(make_batch_runner(self.model, prefix, context), groups)


def make_batch_runner(
    model: loading.LoadedModel, prefix: tuple[int, ...], context: PromptContext
) -> Callable[[Sequence[Request]], Traces]:
    """Return a function from a batch of requests, all beginning with the prefix, to
    trace rows in the same order.
    """
    from paraguard_utils.models.engine import Engine

    temperature = getattr(context.decoding, "temperature", 0.0)
    engine = Engine(model, prefix, context.decoding.max_new_tokens, temperature)
    opened = OPEN_THOUGHT_PATTERN.search(context.suffix)

    def ask(group: Sequence[Request]) -> Traces:
        rows = pd.DataFrame(engine.ask(group))
        if opened:
            rows["response"] = f"{opened[1]}\n" + rows["response"]
        return rows

    return ask


def _groups(
    asked: list[Request], known: set[str], size: int, more: int, shard: Shard = WHOLE
) -> tuple[list[list[Request]], int]:
    """Return the batches still to be asked, and how many prompts there are in all."""
    from paraguard_utils.models.engine import split_into_batches

    # A batch decides the padding and with it the last bits of every number, so resumed
    # runs and shards keep the batches of the unbroken run of which nothing is known;
    # the rest comes last.
    whole = split_into_batches(asked, size, more)[shard[0] - 1 :: shard[1]]
    open_ = [
        [request for request in group if request.prompt_id not in known]
        for group in whole
    ]
    kept = [
        group
        for group, left in zip(whole, open_, strict=True)
        if len(left) == len(group)
    ]
    rest = [
        request
        for group, left in zip(whole, open_, strict=True)
        if len(left) < len(group)
        for request in left
    ]
    return kept + split_into_batches(rest, size, more), sum(map(len, whole))
