"""The formats of logs: what each is, how it is recognised, and who reads it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from paraguard_tools.logs.formats import (
    chats,
    harnesses,
    inspect_logs,
    spans,
    traces,
)
from paraguard_tools.logs.formats.fields import Object, Row
from paraguard_tools.logs.formats.sources import LogSource

Records = Iterable[tuple[int, Object]]


@dataclass
class ReadContext:
    """What a reader is told of its file, and what it has to say of it."""

    source: LogSource
    named: frozenset[str] = frozenset()
    requests: dict[str, Object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Format:
    """A format whose records are JSON objects, or rows of a table like them.

    `recognise` tells by one record, or by a file's kind where it is None; `read` turns
    the records of a file into rows.
    """

    name: str
    about: str
    recognise: Callable[[Object], bool]
    read: Callable[[Records, ReadContext], Iterator[Row]]


def _never(record: Object) -> bool:
    return False


def _read_chats(records: Records, context: ReadContext) -> Iterator[Row]:
    return chats.read_chats(records, context.named, context.requests)


def _read_spans(records: Records, context: ReadContext) -> Iterator[Row]:
    return spans.read_spans(records, context.named)


def _read_inspect(records: Records, context: ReadContext) -> Iterator[Row]:
    return inspect_logs.read_inspect(context.source, context.named)


def _read_lm_eval(records: Records, context: ReadContext) -> Iterator[Row]:
    return harnesses.read_lm_eval(records, context.named, context.source)


def _read_garak(records: Records, context: ReadContext) -> Iterator[Row]:
    return harnesses.read_garak(records, context.named, context.notes)


def _read_promptfoo(records: Records, context: ReadContext) -> Iterator[Row]:
    return harnesses.read_promptfoo(records, context.named)


def _read_helm(records: Records, context: ReadContext) -> Iterator[Row]:
    return harnesses.read_helm(records, context.named, context.source)


def _read_langfuse(records: Records, context: ReadContext) -> Iterator[Row]:
    return traces.read_langfuse(records, context.named)


def _read_langsmith(records: Records, context: ReadContext) -> Iterator[Row]:
    return traces.read_langsmith(records, context.named)


TABLE_FORMAT = Format(
    "table",
    "CSV, TSV, or fields between ; or |, with comments before the header; Parquet",
    _never,
    _read_chats,
)
CHATS = Format(
    "JSON rows",
    "flat rows, chat completions, responses of any provider, streamed ones, and batches"
    " (--input, --errors); a line each, or one document",
    _never,
    _read_chats,
)

FORMATS = [
    Format(
        "Inspect",
        "its .eval or .json; needs pip install inspect_ai",
        inspect_logs.is_inspect,
        _read_inspect,
    ),
    Format(
        "lm-evaluation-harness",
        "samples_*.jsonl of a task that generates (--log_samples)",
        harnesses.is_lm_eval,
        _read_lm_eval,
    ),
    Format("garak", "*.report.jsonl", harnesses.is_garak, _read_garak),
    Format(
        "promptfoo",
        "promptfoo eval --output results.json, or .jsonl",
        harnesses.is_promptfoo,
        _read_promptfoo,
    ),
    Format("HELM", "scenario_state.json", harnesses.is_helm, _read_helm),
    Format(
        "OTLP",
        "OpenTelemetry's export, with gen_ai.* or OpenInference attributes",
        spans.is_otlp,
        _read_spans,
    ),
    Format(
        "OpenInference",
        "spans of Phoenix as JSON, or its data frame as a table",
        spans.is_openinference,
        _read_spans,
    ),
    Format("spans", "one a line, with gen_ai.* attributes", spans.is_span, _read_spans),
    Format(
        "Langfuse",
        "its export of traces or observations, as JSON or CSV",
        traces.is_langfuse,
        _read_langfuse,
    ),
    Format(
        "LangSmith",
        "its export of runs, as JSON, CSV or Parquet",
        traces.is_langsmith,
        _read_langsmith,
    ),
    TABLE_FORMAT,
    CHATS,
]
"""All formats; the first that recognises one of a file's first records reads it."""


def find_format(head: Iterable[Object]) -> Format | None:
    """Return the format of a file by its first records; None if they are plain rows."""
    records = list(head)
    for one in FORMATS:
        if any(map(one.recognise, records)):
            return one
    return None


def list_formats() -> str:
    """Return the formats, a line each."""
    width = max(len(one.name) for one in FORMATS)
    return "\n".join(f"{one.name:{width}}  {one.about}" for one in FORMATS)
