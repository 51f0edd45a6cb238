"""Read the rows of a log in parts.

Its kind is found out by its content, compressed or not.

Tables (CSV, TSV, semicolons, Parquet), JSON lines and JSON documents of flat rows, chat
completions, batches with their input file, spans with OpenTelemetry's `gen_ai.*`
attributes, and logs of Inspect.
"""

import atexit
import csv
import gzip
import io
import itertools
import json
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias

import pandas as pd

from paraguard_tools.servers import stops
from paraguard_utils.errors import DataError

_Object: TypeAlias = Mapping[str, Any]

CHUNK_ROWS = 50_000  # read at a time
_HEAD_BYTES = 1 << 16  # by which the kind of a file is found out
STDIN = "-"

USUAL_COLUMNS = {
    "text": ("text", "prompt", "request", "question", "input", "instruction"),
    "decision": (
        "decision",
        "label",
        "refused",
        "rejected",
        "refusal",
        "verdict",
        "flagged",
    ),
    "cluster": ("cluster", "cluster_id", "meaning", "group"),
    "system": ("system", "model", "system", "guard"),
    "harmful": ("harmful", "should_refuse", "unsafe"),
    "answer": ("answer", "response", "completion", "output", "generation"),
    "finish_reason": ("finish_reason", "stop_reason"),
    "annotation": ("annotation",),
    "score": ("score", "probability"),
}
"""Fields of a row, and the usual names of their columns; the first that is there is
taken.
"""

YES_NO = {
    "1": True,
    "true": True,
    "yes": True,
    "1.0": True,
    "0": False,
    "false": False,
    "no": False,
    "0.0": False,
}
"""Words for yes and no, in lower case."""

_ABOUT_REFUSAL = frozenset(
    ["refused", "rejected", "refusal", "reject", "refuse", "flagged", "blocked"]
)
"""Names of columns in which yes means a refusal."""


class LogSource(NamedTuple):
    """A file, opened as often as needed.

    `kind`: table, parquet, lines, document or inspect. `packed`: compressed by gzip.
    `separator`: of a table's columns. `name`: as the user wrote it.
    """

    path: Path
    kind: str
    packed: bool = False
    encoding: str = "utf-8-sig"
    separator: str = ","
    name: str = ""

    @property
    def first(self) -> int:
        """The number by which the user knows the first row.

        A table's header is row 1.
        """
        return 2 if self.kind == "table" else 1

    def place(self, row: int) -> str:
        """Return how the user finds a row, which is counted from 0."""
        unit = {"table": "row", "lines": "line"}.get(self.kind, "record")
        return f"{unit} {row + self.first}"

    def bytes(self) -> IO[bytes]:
        """Open it, decompressed."""
        return gzip.open(self.path) if self.packed else self.path.open("rb")  # type: ignore[return-value]


def find_log_source(file: str | Path) -> LogSource:
    """Find out what kind of file this is; "-" is standard input.

    Raises DataError if there is none, if it is empty, and if its kind cannot be read.
    """
    name = str(file)
    path = _stored() if name == STDIN else Path(file)
    if not path.is_file():
        raise DataError(f"{name}: there is no such file")
    with path.open("rb") as opened:
        head = opened.read(_HEAD_BYTES)
    packed = head.startswith(b"\x1f\x8b")
    if packed:
        try:
            with gzip.open(path) as opened:
                head = opened.read(_HEAD_BYTES)
        except (OSError, EOFError) as error:
            raise DataError(
                f"{name}: the compressed file is damaged ({error}); copy it again"
            ) from None
    kind, more = _kind(name, path, head)
    return LogSource(path, kind, packed, name=name, **more)


def _stored() -> Path:
    """Copy standard input to a file of this process, since rows are read twice."""
    with tempfile.NamedTemporaryFile(delete=False, prefix="paraguard-") as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept)
    atexit.register(Path(kept.name).unlink, missing_ok=True)
    return Path(kept.name)


def _kind(name: str, path: Path, head: bytes) -> tuple[str, dict[str, str]]:
    if not head.strip():
        raise DataError(
            f"{name}: the file is empty; it needs a header and rows, or a JSON object a"
            " line"
        )
    if head.startswith(b"PAR1"):
        return "parquet", {}
    if head.startswith(b"PK\x03\x04"):
        return _archive(name, path), {}
    encoding = "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    text = head.decode(encoding, "ignore")
    if "\0" in text:
        raise DataError(
            f"{name}: this is no text: pass CSV, JSON lines, Parquet or an Inspect log"
        )
    opening = text.lstrip()
    if opening[0] not in "{[":
        if "\ufffd" in head.decode(encoding, "replace").lstrip().splitlines()[0]:
            raise DataError(f"{name}: its header is not UTF-8; save it as UTF-8")
        return "table", {"encoding": encoding, "separator": _separator(opening)}
    first = opening.splitlines()[0]
    whole = opening[0] == "{" and (
        isinstance(_decoded(first), dict) or len(first) >= _HEAD_BYTES // 2
    )
    return "lines" if whole else "document", {"encoding": encoding}


def _archive(name: str, path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            inside = archive.namelist()
    except zipfile.BadZipFile:
        raise DataError(f"{name}: the archive is damaged; copy it again") from None
    if any(part.startswith("xl/") for part in inside):
        raise DataError(
            f"{name}: this is an Excel workbook; save the sheet as CSV and pass that"
        )
    if not any(
        part.startswith(("header.json", "_journal/", "samples/")) for part in inside
    ):
        raise DataError(
            f"{name}: this is an archive of {len(inside)} files, no log of Inspect;"
            " pass a file out of it"
        )
    return "inspect"


def _separator(text: str) -> str:
    """Return what separates the columns of a table's header."""
    header = next(csv.reader(io.StringIO(text.splitlines()[0]), delimiter="\0"), [""])[
        0
    ]
    counts = {mark: header.count(mark) for mark in ",\t;|"}
    return max(counts, key=lambda mark: counts[mark]) if any(counts.values()) else ","


def _decoded(text: str) -> Any:
    """Decode JSON; return None for anything else."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_parts(
    source: LogSource, columns: Mapping[str, str], requests: str | Path = ""
) -> Iterator[pd.DataFrame]:
    """Read a file in parts.

    They are frames of text, with one column for each field of `USUAL_COLUMNS` that the
    file has. The index counts rows of the file from 0; a value that is missing is NaN.
    `columns` names the column of each field: "" takes the usual name that is there,
    "none" takes nothing. `requests` is the input file of a batch, which has what was
    asked. Raises DataError if a row cannot be read, or a column that was named is not
    there.
    """
    if source.kind in ("table", "parquet"):
        frames = _table(source) if source.kind == "table" else _parquet(source)
        yield from (_choose(source, frame, columns) for frame in frames)
        return
    asked = _asked(requests) if requests else {}
    made = (
        _inspect(source, columns)
        if source.kind == "inspect"
        else _rows(source, columns, asked)
    )
    while batch := list(itertools.islice(made, CHUNK_ROWS)):
        rows = [
            {name: _text(value) for name, value in fields.items() if value is not None}
            for _, fields in batch
        ]
        yield pd.DataFrame(rows, index=[number for number, _ in batch], dtype=object)


def _choose(
    source: LogSource, frame: pd.DataFrame, columns: Mapping[str, str]
) -> pd.DataFrame:
    """Return the columns of a table that are fields, under the fields' names."""
    names = {field: name for field, name in columns.items() if name and name != "none"}
    if missing := [name for name in names.values() if name not in frame]:
        there = ", ".join(map(repr, list(frame)[:12]))
        raise DataError(
            f"{source.name}: there is no column {missing[0]!r}; there are {there}"
        )
    lowered = {name.lower(): name for name in reversed(list(frame))}
    for field, name in columns.items():
        if not name:
            usual = [
                lowered[one]
                for one in USUAL_COLUMNS[field]
                if lowered.get(one, "") not in ("", *names.values())
            ]
            if usual:
                names[field] = usual[0]
    if len(set(names.values())) < len(names):
        raise DataError(
            f"{source.name}: one column cannot be two things; name different ones"
        )
    chosen = frame[list(names.values())].set_axis(list(names), axis=1)
    if names.get("decision", "").lower() in _ABOUT_REFUSAL:
        chosen["decision"] = chosen["decision"].map(_as_refusal)
    return chosen


def _as_refusal(value: Any) -> Any:
    """Turn yes and no of a column about refusals into decisions.

    Return all else as it is.
    """
    bit = YES_NO.get(str(value).strip().lower())
    return value if bit is None else "reject" if bit else "accept"


def _table(source: LogSource) -> Iterator[pd.DataFrame]:
    try:
        with (
            source.bytes() as opened,
            pd.read_csv(
                opened,
                sep=source.separator,
                dtype=object,
                keep_default_na=False,
                na_values=[],
                chunksize=CHUNK_ROWS,
                index_col=False,
                encoding=source.encoding,
                encoding_errors="surrogateescape",
            ) as reader,
        ):
            yield from reader
    except pd.errors.ParserError as error:
        raise DataError(f"{source.name}: {_said(error)}; mend that line") from None
    except (OSError, EOFError, UnicodeError, ValueError) as error:
        raise DataError(
            f"{source.name}: cannot be read ({_said(error)}); save it as CSV in UTF-8"
        ) from None


def _said(error: Exception) -> str:
    said = (
        str(error).strip().splitlines()[0]
        if str(error).strip()
        else type(error).__name__
    )
    if opened := re.search(r"EOF inside string starting at row (\d+)", said):
        return (
            f"a quotation mark that opens in row {int(opened[1]) + 1} is never closed"
        )
    return said.replace("Error tokenizing data. C error: ", "")[:200]


def _parquet(source: LogSource) -> Iterator[pd.DataFrame]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(
            f"{source.name}: Parquet needs a package that is not there: pip install"
            " pyarrow"
        ) from None
    start = 0
    try:
        for batch in parquet.ParquetFile(source.path).iter_batches(CHUNK_ROWS):
            frame = batch.to_pandas()
            frame.index = pd.RangeIndex(start, start + len(frame))
            start += len(frame)
            yield frame.where(frame.notna(), None).map(_text)
    except (ArrowException, OSError) as error:
        raise DataError(
            f"{source.name}: the Parquet file is damaged ({_said(error)}); copy it"
            " again"
        ) from None


def _text(value: Any) -> Any:
    """Return what a cell says, as text."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, Mapping | list) else str(value)


def _objects(source: LogSource) -> Iterator[tuple[int, _Object]]:
    """Yield the objects of a JSON file, with the number of each from 0."""
    with io.TextIOWrapper(source.bytes(), source.encoding, errors="replace") as opened:
        try:
            if source.kind == "lines":
                items: Iterator[Any] = (
                    (number, _decoded(line))
                    for number, line in enumerate(opened)
                    if line.strip()
                )
            else:
                document = json.load(opened)
                items = enumerate(
                    document if isinstance(document, list) else [document]
                )
            for number, item in items:
                if not isinstance(item, Mapping):
                    unit = "that line" if source.kind == "lines" else "the file"
                    raise DataError(
                        f"{source.name}, {source.place(number)}: this is no JSON"
                        f" object; mend {unit}"
                    )
                yield number, item
        except (OSError, EOFError) as error:
            raise DataError(
                f"{source.name}: the compressed file is damaged ({error}); copy it"
                " again"
            ) from None
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{source.name}: this is no JSON: {_said(error)}; mend the file"
            ) from None


def _rows(
    source: LogSource, columns: Mapping[str, str], asked: Mapping[str, _Object]
) -> Iterator[tuple[int, _Object]]:
    count = itertools.count()  # an export of spans has many in a line
    for number, item in _objects(source):
        if "samples" in item and "eval" in item:
            yield from _inspect(source, columns)
            return
        spans = list(_spans(item))
        yield from (
            (next(count), fields)
            for span in spans
            if (fields := _of_span(span, columns))
        )
        if not spans:
            yield number, _of_record(item, columns, asked)


def _of_record(
    item: _Object, columns: Mapping[str, str], asked: Mapping[str, _Object]
) -> dict[str, Any]:
    """Return the fields of one record.

    It is a flat row, a chat completion, or a line of a batch.
    """
    request = asked.get(str(item.get("custom_id")), item)
    request = next(
        (
            own
            for name in ("body", "params", "request")
            if (own := _mapping(request, name))
        ),
        request,
    )
    places = (
        ("response", "body"),
        ("response",),
        ("result",),
        ("result", "message"),
        (),
    )
    bodies = (_mapping(item, *path) for path in places)
    body = next(
        (own for own in bodies if _answer(own) is not None or stops.find_stop(own)),
        None,
    )
    fields = {
        field: _named(field, name, item, request) for field, name in columns.items()
    }
    said, came = _conversation(
        (request if request.get("messages") is not None else item).get("messages")
    )
    fields["text"] = fields["text"] if said is None else said
    fields["answer"] = came if fields["answer"] is None else fields["answer"]
    if body is not None:
        stop = stops.find_stop(body)
        ended = (
            _at(body, "choices", 0, "finish_reason")
            or body.get("stop_reason")
            or body.get("stopReason")
        )
        fields |= {
            "answer": _answer(body),
            "finish_reason": stop.reason if stop else ended,
        }
        fields["system"] = fields["system"] or body.get("model")
    elif error := item.get("error") or _at(item, "result", "error"):
        stop = stops.find_stop_in_error(error, str(error))
        fields["finish_reason"] = stop.reason if stop else "error"
    return fields


def _at(item: Any, *path: str | int) -> Any:
    """Return what lies at a path of keys and numbers; None if nothing does."""
    for step in path:
        if isinstance(item, Mapping):
            item = item.get(step)
        else:
            item = (
                item[step]
                if isinstance(item, list) and isinstance(step, int) and step < len(item)
                else None
            )
    return item


def _mapping(item: _Object, *path: str) -> _Object:
    found = _at(item, *path)
    return found if isinstance(found, Mapping) else {}


def _named(field: str, name: str, *places: _Object) -> Any:
    """Return what the first place tells under a name, or a usual one.

    The place has it itself or in its metadata.
    """
    if name == "none":
        return None
    for place in itertools.chain.from_iterable(
        (own, _mapping(own, "metadata")) for own in places
    ):
        for own in (name,) if name else USUAL_COLUMNS[field]:
            value = place.get(own)
            if value is not None and (name or not isinstance(value, Mapping | list)):
                return (
                    _as_refusal(value)
                    if field == "decision" and own.lower() in _ABOUT_REFUSAL
                    else value
                )
    return None


def _conversation(messages: Any) -> tuple[str | None, str | None]:
    """Return the last thing that a user said, and the answer to it.

    None for what is not there.
    """
    said = (
        [one for one in messages if isinstance(one, Mapping)]
        if isinstance(messages, list)
        else []
    )
    asked = [
        place for place, one in enumerate(said) if one.get("role") in ("user", "human")
    ]
    if not asked:
        return None, None
    after = [
        one
        for one in said[asked[-1] + 1 :]
        if one.get("role") in ("assistant", "model")
    ]
    return _content(said[asked[-1]].get("content")) or "", (
        _content(after[-1].get("content")) if after else None
    )


def _content(content: Any) -> str | None:
    """Return the text of a message: itself, or its parts'."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list):
        return None
    texts = [
        one.get("text", one.get("content")) if isinstance(one, Mapping) else one
        for one in content
    ]
    return "".join(text for text in texts if isinstance(text, str))


def _answer(body: _Object) -> str | None:
    """Return the text of a response of any provider; None if this is no response."""
    if isinstance(choice := _at(body, "choices", 0), Mapping):
        said = _content(_at(choice, "message", "content")) or _at(
            choice, "message", "refusal"
        )
        return said or choice.get("text") or ""
    if isinstance(output := body.get("output"), list):
        return "".join(_content(_at(one, "content")) or "" for one in output)
    if isinstance(body.get("candidates"), list) or "promptFeedback" in body:
        return _content(_at(body, "candidates", 0, "content", "parts")) or ""
    if "stopReason" in body:
        return _content(_at(body, "output", "message", "content")) or ""
    if body.get("type") == "message" or "stop_reason" in body:
        return _content(body.get("content")) or ""
    return None


def _asked(requests: str | Path) -> dict[str, _Object]:
    """Return the requests of a batch by their custom_id."""
    source = find_log_source(requests)
    if source.kind not in ("lines", "document"):
        raise DataError(
            f"{source.name}: the input of a batch has a JSON object a line; pass the"
            " file that was sent"
        )
    return {str(item.get("custom_id")): item for _, item in _objects(source)}


def _spans(item: _Object) -> Iterator[_Object]:
    """Yield the spans of a record, their attributes as a mapping."""
    if isinstance(item.get("attributes"), Mapping):
        yield item
    for resource in item.get("resourceSpans") or []:
        for scope in resource.get("scopeSpans") or []:
            for span in scope.get("spans") or []:
                yield {
                    **span,
                    "attributes": _plain(
                        {"kvlistValue": {"values": span.get("attributes")}}
                    ),
                }


def _plain(value: Any) -> Any:
    """Return an attribute's value without its type."""
    if not isinstance(value, Mapping):
        return value
    (kind, inside), *_ = [*value.items(), ("", None)]
    if kind == "arrayValue":
        return [_plain(one) for one in inside.get("values") or []]
    if kind == "kvlistValue":
        return {
            one["key"]: _plain(one.get("value")) for one in inside.get("values") or []
        }
    return inside


def _of_span(span: _Object, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a span about a model; none of any other."""
    about = span["attributes"]
    asked, answered = (_messages(about, kind) for kind in ("input", "output"))
    if asked is None and answered is None:
        return {}
    came = answered[-1] if answered else {}
    fields = {field: _named(field, name, about) for field, name in columns.items()}
    fields["text"], fields["answer"] = (
        _conversation(asked)[0],
        _content(came.get("content")),
    )
    fields["finish_reason"] = came.get("finish_reason") or _at(
        _value(about, "gen_ai.response.finish_reasons"), 0
    )
    if fields["answer"] is None and about.get("error.type"):
        fields["finish_reason"] = "error"
    fields["system"] = (
        fields["system"]
        or about.get("gen_ai.response.model")
        or about.get("gen_ai.request.model")
    )
    return fields


def _value(about: _Object, name: str) -> Any:
    """Return an attribute of a span, decoded if it is JSON."""
    found = about.get(name)
    return _decoded(found) if isinstance(found, str) else found


def _messages(about: _Object, kind: str) -> list[dict[str, Any]] | None:
    """Return the messages of a span.

    They are one attribute, as JSON or not, or one for each message as older
    conventions do.
    """
    if isinstance(found := _value(about, f"gen_ai.{kind}.messages"), list):
        return [
            {"content": one.get("parts", one.get("content")), **one}
            for one in found
            if isinstance(one, Mapping)
        ]
    old, role = {
        "input": ("gen_ai.prompt", "user"),
        "output": ("gen_ai.completion", "assistant"),
    }[kind]
    made: list[dict[str, Any]] = []
    while (content := about.get(f"{old}.{len(made)}.content")) is not None:
        said = {
            name: about.get(f"{old}.{len(made)}.{name}")
            for name in ("role", "finish_reason")
        }
        made.append(
            {
                "content": content,
                "role": said["role"] or role,
                "finish_reason": said["finish_reason"],
            }
        )
    return made or None


def _inspect(
    source: LogSource, columns: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the samples of a log of Inspect, by its own reader."""
    try:
        from inspect_ai.log import read_eval_log, read_eval_log_samples
    except ImportError:
        raise DataError(
            f"{source.name}: this is a log of Inspect, read by its own package: pip"
            " install inspect_ai"
        ) from None
    kind: Literal["eval", "json"] = "eval" if source.kind == "inspect" else "json"
    try:
        header = read_eval_log(str(source.path), header_only=True, format=kind)
        if header.eval.dataset.sample_ids is None:  # such a log is read whole
            samples: Any = read_eval_log(str(source.path), format=kind).samples or ()
        else:
            samples = read_eval_log_samples(
                str(source.path), all_samples_required=False, format=kind
            )
        for number, sample in enumerate(samples):
            yield number, _of_sample(sample, header.eval.model, columns)
    except (ValueError, OSError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{source.name}: Inspect cannot read this log ({_said(error)})"
        ) from None


def _of_sample(sample: Any, model: str, columns: Mapping[str, str]) -> dict[str, Any]:
    scores = {name: score.value for name, score in (sample.scores or {}).items()}
    fields = {
        field: _named(field, name, sample.metadata or {}, scores)
        for field, name in columns.items()
    }
    asked, output = sample.input, sample.output
    if not isinstance(asked, str):
        asked = _conversation([one.model_dump() for one in asked])[0]
    fields |= {"text": fields["text"] or asked, "system": fields["system"] or model}
    fields["answer"] = output.completion if output else None
    fields["finish_reason"] = (
        "error"
        if sample.error
        else output.stop_reason
        if output and output.choices
        else None
    )
    return fields
