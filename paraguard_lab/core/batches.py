"""Query a loaded model without keeping its answers as traces."""

from collections.abc import Sequence

from paraguard_utils.models.engine import (
    Engine,
    TraceRow,
    count_shared_tokens,
    split_into_batches,
)
from paraguard_utils.models.loading import LoadedModel
from paraguard_utils.models.prompting import Decoding, Request


class RawEngine(Engine):
    """An engine whose answers keep control tokens and white space around them.

    Only the token that ends an answer is left out.
    """

    def read_tokens(self, tokens: list[int]) -> str:
        """Return an answer as text, with everything in it."""
        return str(self.tokenizer.decode(tokens))


def ask_in_batches(
    model: LoadedModel,
    requests: Sequence[Request],
    size: int,
    max_new_tokens: int,
    raw: bool = False,
) -> list[TraceRow]:
    """Query a model greedily, in the batches of `engine.split_into_batches`.

    Return trace rows in the order of the requests. `raw` keeps what `RawEngine`
    keeps.
    """
    if not requests:
        return []
    prefix = requests[0].token_ids[: count_shared_tokens(requests)]
    make_engine = RawEngine if raw else Engine
    engine = make_engine(model, prefix, Decoding(max_new_tokens))
    rows = {}
    for batch in split_into_batches(requests, size, max_new_tokens):
        for row in engine.ask(batch):
            rows[row["prompt_id"]] = row
    return [rows[request.prompt_id] for request in requests]
