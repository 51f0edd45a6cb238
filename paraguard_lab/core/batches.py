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


def ask_in_batches(
    model: LoadedModel,
    requests: Sequence[Request],
    size: int,
    max_new_tokens: int,
    raw: bool = False,
) -> list[TraceRow]:
    """Query a model greedily, in the batches of `engine.split_into_batches`.

    Return trace rows in the order of the requests. `raw` is that of `Engine`.
    """
    if not requests:
        return []
    prefix = requests[0].token_ids[: count_shared_tokens(requests)]
    engine = Engine(model, prefix, Decoding(max_new_tokens), raw=raw)
    rows = {}
    for batch in split_into_batches(requests, size, max_new_tokens):
        for row in engine.ask(batch):
            rows[row["prompt_id"]] = row
    return [rows[request.prompt_id] for request in requests]
