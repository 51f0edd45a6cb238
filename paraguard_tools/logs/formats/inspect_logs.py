"""Read logs of Inspect, by its own reader."""

from collections.abc import Iterator
from typing import Any, Literal

from paraguard_tools.logs.formats.fields import (
    Object,
    Row,
    flatten_columns,
    read_conversation,
)
from paraguard_tools.logs.formats.sources import LogSource
from paraguard_utils.errors import DataError


def is_inspect(item: Object) -> bool:
    """Return whether a document is a log of Inspect."""
    return "eval" in item and ("samples" in item or {"version", "status"} <= set(item))


def read_inspect(source: LogSource, named: frozenset[str]) -> Iterator[Row]:
    """Yield the samples of a log of Inspect; epochs are runs of one text."""
    try:
        from inspect_ai.log import read_eval_log
    except ImportError:
        raise DataError(
            f"{source.name}: this is a log of Inspect, read by its own package: pip"
            " install inspect_ai"
        ) from None
    # No ending says which of its two formats this is
    kind: Literal["eval", "json"] = "eval" if source.kind == "inspect" else "json"
    try:
        log = read_eval_log(str(source.path), format=kind)
    # BadZipFile and others of its own
    except Exception as error:
        raise source._replace(kind="a log of Inspect").error(error) from None
    if not log.samples:
        raise DataError(
            f"{source.name}: this log of Inspect has no samples; pass one that is"
            " whole, not its header only or one written with --no-log-samples"
        )
    for number, sample in enumerate(log.samples):
        yield _read_sample(number, sample, log.eval.model, named)


def _read_sample(number: int, sample: Any, model: str, named: frozenset[str]) -> Row:
    """Return the row of a sample."""
    scores = {name: score.value for name, score in (sample.scores or {}).items()}
    columns = flatten_columns(
        sample.metadata or {},
        scores,
        {"id": sample.id, "epoch": sample.epoch},
        named=named,
    )
    asked = sample.input
    if not isinstance(asked, str):
        asked = read_conversation([one.model_dump() for one in asked])[0]
    output = sample.output
    found = {
        "text": asked,
        "answer": output.completion if output else None,
        "finish_reason": output.stop_reason if output and output.choices else None,
        "model": model,
        "id": sample.id,
    }
    if sample.error:
        found["finish_reason"] = "error"
    if not found["answer"] and output and output.choices:
        content = output.choices[0].message.content
        parts = content if isinstance(content, list) else []
        found["reasoning"] = any(one.type == "reasoning" for one in parts)
    return Row(number, columns, found)
