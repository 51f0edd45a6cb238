"""Read the rows of a log.

Its kind is found out by its content, compressed or not.

Tables (CSV, TSV, semicolons, Parquet), JSON lines and JSON documents of flat rows, chat
completions, batches with their input file, spans with OpenTelemetry's `gen_ai.*`
attributes, and logs of Inspect.
"""

import atexit
import gzip
import itertools
import json
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias

import pandas as pd

from paraguard_tools.servers import stops
from paraguard_tools.servers.stops import first_at
from paraguard_utils.errors import DataError, SettingsError

_Object: TypeAlias = Mapping[str, Any]

_HEAD_BYTES = 1 << 16  # by which the kind of a file is found out
STDIN = "-"
SURROGATE = re.compile(r"[\ud800-\udfff]")  # what a byte that is not UTF-8 is read as

_ABOUT_REFUSAL = [
    "refused",
    "rejected",
    "refusal",
    "reject",
    "refuse",
    "flagged",
    "blocked",
]
"""Names of columns in which yes means a refusal."""

USUAL_COLUMNS = {
    "text": ["text", "prompt", "request", "question", "input", "instruction"],
    "decision": ["decision", "label", *_ABOUT_REFUSAL[:3], "verdict", "flagged"],
    "cluster": ["cluster", "cluster_id", "meaning", "group"],
    "system": ["system", "model", "guard"],
    "harmful": ["harmful", "should_refuse", "unsafe"],
    "answer": ["answer", "response", "completion", "output", "generation"],
    "finish_reason": ["finish_reason", "stop_reason"],
    "annotation": ["annotation"],
    "score": ["score", "probability"],
}
"""Fields of a row, and the usual names of their columns; the first that is there is
taken.
"""


def read_words(meanings: Mapping[Any, str]) -> dict[str, Any]:
    """Return what each word means, from the words of each meaning.

    Examples
    --------
    >>> read_words({1: "one uno", 2: "two"})
    {'one': 1, 'uno': 1, 'two': 2}
    """
    known: dict[str, Any] = {}
    for meaning, words in meanings.items():
        known |= dict.fromkeys(words.split(), meaning)
    return known


YES_NO = read_words({True: "1 1.0 true yes", False: "0 0.0 false no"})
"""Words for yes and no, in lower case."""

_PLACES_OF_ANSWERS = {
    "choices": ("choices.message.content", "choices.message.refusal", "choices.text"),
    "output": ("output.content", "output.message.content", "output.text"),
    "candidates": ("candidates.content.parts",),
    "promptFeedback": (),
    "content": ("content",),
}
"""Fields by which a provider's response is known, and where the text is in it; without
a text there, the provider has stopped it.
"""

_OLDER_MESSAGES = {
    "input": ("gen_ai.prompt", "user"),
    "output": ("gen_ai.completion", "assistant"),
}
"""How the attributes of messages begin by an older convention, and who says them."""


class LogSource(NamedTuple):
    """A file, opened as often as needed.

    `kind`: table, parquet, lines, document or inspect. `name`: as the user wrote it.
    """

    path: Path
    kind: str
    encoding: str
    name: str

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

    def check(self, words: pd.Series, fine: pd.Series, problem: str) -> None:
        """Raise DataError about the first word that is not fine, by its row."""
        if fine.all():
            return
        row = fine.idxmin()
        word = words[row].encode("utf-8", "replace").decode()
        raise DataError(
            f"{self.name}, {self.place(int(row))}: {words.name} {word!r} {problem}; fix"
            f" it, leave the row out, or pass --{words.name} none"
        )

    def error(self, error: Exception) -> DataError:
        """Return what to raise about a file that cannot be read."""
        said = str(error).strip() or type(error).__name__
        # pandas counts rows without the header
        if opened := re.search(r"EOF inside string starting at row (\d+)", said):
            row = int(opened[1]) + 1
            said = f"a quotation mark that opens in row {row} is never closed"
        said = said.removeprefix("Error tokenizing data. C error: ").splitlines()[0]
        what = "text in UTF-8" if self.kind in ("table", "lines") else self.kind
        return DataError(
            f"{self.name}: this cannot be read as {what} ({said[:200]}); fix the file,"
            " or copy it again"
        )


def find_log_source(file: str | Path) -> LogSource:
    """Find out what kind of file this is; "-" is standard input.

    Raises DataError if there is none, if it is empty, and if its kind cannot be read.
    """
    name = str(file)
    path = _keep(sys.stdin.buffer) if name == STDIN else Path(file)
    if not path.is_file():
        raise DataError(f"{name}: there is no such file")
    if _read_head(path).startswith(b"\x1f\x8b"):
        try:
            with gzip.open(path) as opened:
                path = _keep(opened)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{name}: the compressed file is damaged ({error}); copy it again"
            ) from None
    head = _read_head(path)
    encoding = "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    text = head.decode(encoding, "replace").lstrip()
    if not text:
        raise DataError(
            f"{name}: the file is empty; it needs a header and rows, or a JSON object a"
            " line"
        )
    if head.startswith(b"PAR1"):
        kind = "parquet"
    elif head.startswith(b"PK\x03\x04") and b"xl/" not in head:
        kind = "inspect"
    elif "\0" in text:
        raise DataError(
            f"{name}: this is no text, an Excel workbook perhaps; pass CSV, JSON lines,"
            " Parquet or an Inspect log"
        )
    elif text[0] not in "{[":
        kind = "table"
        if "\ufffd" in text.splitlines()[0]:
            raise DataError(f"{name}: its header is not UTF-8; save it as UTF-8")
    else:
        first = text.splitlines()[0]
        is_whole = isinstance(_decode(first), dict) or len(first) >= _HEAD_BYTES // 2
        kind = "lines" if text[0] == "{" and is_whole else "document"
    return LogSource(path, kind, encoding, name)


def _read_head(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(_HEAD_BYTES)


def _keep(content: Any) -> Path:
    """Copy a stream to a file of this process, whose beginning is read twice."""
    with tempfile.NamedTemporaryFile(delete=False, prefix="paraguard-") as kept:
        atexit.register(Path(kept.name).unlink, missing_ok=True)
        shutil.copyfileobj(content, kept)
    return Path(kept.name)


def _decode(text: str) -> Any:
    """Decode JSON; return None for anything else."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_rows(
    source: LogSource, columns: Mapping[str, str], requests: str | Path = ""
) -> pd.DataFrame:
    """Read the rows of a file.

    Returns text, with one column for each field of `USUAL_COLUMNS` that the file has.
    The index counts rows of the file from 0; a value that is missing is NaN. `columns`
    names the column of each field: "" takes the usual name that is there, "none" takes
    nothing. `requests` is the input file of a batch, which has what was asked. Raises
    DataError if a row cannot be read, or a column that was named is not there.
    """
    if requests and source.kind not in ("lines", "document"):
        raise SettingsError(
            f"{source.name}: this is no batch, so that --input means nothing; leave it"
            " out"
        )
    if source.kind == "table":
        return _choose_columns(source, read_table(source, "surrogateescape"), columns)
    if source.kind == "parquet":
        return _choose_columns(source, _read_parquet(source), columns)
    if source.kind == "inspect":
        rows = list(_read_inspect(source, columns))
    else:
        asked = _read_requests(requests) if requests else {}
        rows = list(_read_objects(source, columns, asked))
    numbers = [number for number, _ in rows]
    fields = [fields for _, fields in rows]
    return _to_text(pd.DataFrame(fields, index=numbers, dtype=object))


def _choose_columns(
    source: LogSource, frame: pd.DataFrame, columns: Mapping[str, str]
) -> pd.DataFrame:
    """Return the columns of a table that are fields, under the fields' names."""
    named = [name for name in columns.values() if name not in ("", "none")]
    for name in named:
        if name not in frame:
            there = ", ".join(map(repr, list(frame)[:12]))
            raise DataError(
                f"{source.name}: there is no column {name!r}; there are {there}"
            )
    if len(set(named)) < len(named):
        raise DataError(
            f"{source.name}: one column cannot be two things; name different ones"
        )
    usual = {name.lower(): name for name in reversed(list(frame)) if name not in named}
    chosen = {}
    for field, name in columns.items():
        known = {name: name} if name else usual
        found = [one for one in _list_names(field, name) if one in known]
        if found:
            values = frame[known[found[0]]]
            is_refusal = _tells_refusal(field, found[0])
            chosen[field] = values.map(_as_decision) if is_refusal else values
    return pd.DataFrame(chosen, index=frame.index)


def _list_names(field: str, name: str) -> list[str]:
    """Return the columns in which a field may be: for "" those of the usual names."""
    if name == "none":
        return []
    return [name] if name else USUAL_COLUMNS[field]


def _tells_refusal(field: str, name: str) -> bool:
    """Return whether yes in a column is a refusal."""
    return field == "decision" and name.lower() in _ABOUT_REFUSAL


def _as_decision(value: Any) -> Any:
    """Turn yes and no about a refusal into decisions, and leave all else as it is."""
    bit = YES_NO.get(str(value).strip().lower())
    return value if bit is None else "reject" if bit else "accept"


def read_table(source: LogSource, errors: str = "strict") -> pd.DataFrame:
    """Read a table, each field as text; `errors` is that of `open`."""
    with _open_text(source) as opened:
        header = re.sub('"[^"]*"', "", opened.readline())
    separator = max(",\t;|", key=header.count)
    try:
        return pd.read_csv(
            source.path,
            sep=separator,
            dtype=object,
            keep_default_na=False,
            index_col=False,
            encoding=source.encoding,
            encoding_errors=errors,
        )
    except (OSError, ValueError) as error:
        raise source.error(error) from None


def _open_text(source: LogSource) -> IO[str]:
    return source.path.open(encoding=source.encoding, errors="replace")


def _read_parquet(source: LogSource) -> pd.DataFrame:
    try:
        return _to_text(pd.read_parquet(source.path).reset_index(drop=True))
    except ImportError:
        raise DataError(
            f"{source.name}: Parquet needs a package that is not there: pip install"
            " pyarrow"
        ) from None
    except (OSError, ValueError) as error:
        raise source.error(error) from None


def _to_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what each cell says, as text; None if it is missing."""

    def say(value: Any) -> Any:
        if isinstance(value, Mapping | list):
            return json.dumps(value)
        return value if value is None else SURROGATE.sub("\ufffd", str(value))

    return frame.where(frame.notna(), None).map(say)


def _list_objects(source: LogSource) -> Iterator[tuple[int, _Object]]:
    """Yield the objects of a JSON file, with the number of each from 0."""
    with _open_text(source) as opened:
        if source.kind == "lines":
            lines = enumerate(opened)
            items: Iterator[tuple[int, Any]] = (
                (number, _decode(line)) for number, line in lines if line.strip()
            )
        else:
            try:
                document = json.load(opened)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{source.name}: this is no JSON: {error}; fix the file"
                ) from None
            items = enumerate(document if isinstance(document, list) else [document])
        for number, item in items:
            if not isinstance(item, Mapping):
                raise DataError(
                    f"{source.name}, {source.place(number)}: this is no JSON object;"
                    " fix it"
                )
            yield number, item


def _read_requests(file: str | Path) -> dict[str, _Object]:
    """Return the requests of a batch by their custom_id."""
    source = find_log_source(file)
    return {str(item.get("custom_id")): item for _, item in _list_objects(source)}


def _read_objects(
    source: LogSource, columns: Mapping[str, str], asked: Mapping[str, _Object]
) -> Iterator[tuple[int, _Object]]:
    """Yield the fields of each row of a JSON file, with its number."""
    count = itertools.count()  # an export of spans has many in a line
    for number, item in _list_objects(source):
        if "samples" in item and "eval" in item:
            yield from _read_inspect(source, columns)
            return
        spans = list(_list_spans(item))
        for attributes in spans:
            if fields := _read_span(attributes, columns):
                yield next(count), fields
        if not spans:
            yield number, _read_record(item, columns, asked)


def _read_record(
    item: _Object, columns: Mapping[str, str], asked: Mapping[str, _Object]
) -> dict[str, Any]:
    """Return the fields of one record.

    It is a flat row, a chat completion, or a line of a batch.
    """
    request = asked.get(str(item.get("custom_id")), item)
    inside = [_mapping_at(request, name) for name in ("body", "params", "request")]
    request = next(filter(None, inside), request)
    fields = _read_fields(columns, item, request)
    messages = request.get("messages") or item.get("messages")
    text, answer = _read_conversation(messages)
    if text is not None:
        fields["text"] = text
    if fields["answer"] is None:
        fields["answer"] = answer
    for path in ("response.body", "response", "result.message", "result", ""):
        body = _mapping_at(item, path)
        answer = _find_answer(body)
        stop = stops.find_stop(body)
        if answer is not None or stop:
            ended = ("choices.finish_reason", "stop_reason", "stopReason")
            reasons = [stop.reason] if stop else [first_at(body, at) for at in ended]
            fields["answer"] = answer
            fields["finish_reason"] = next(filter(None, reasons), None)
            fields["system"] = fields["system"] or body.get("model")
            return fields
    if error := item.get("error") or first_at(item, "result.error"):
        stop = stops.find_stop_in_error(error, str(error))
        fields["finish_reason"] = stop.reason if stop else "error"
    return fields


def _mapping_at(item: _Object, path: str) -> _Object:
    found = first_at(item, path)
    return found if isinstance(found, Mapping) else {}


def _read_fields(columns: Mapping[str, str], *places: _Object) -> dict[str, Any]:
    """Return the fields of a row, as the first place that has one tells it.

    A place has a field itself or in its metadata.
    """
    fields: dict[str, Any] = dict.fromkeys(columns)
    for field, name in columns.items():
        for place, own in itertools.product(places, _list_names(field, name)):
            for value in (place.get(own), _mapping_at(place, "metadata").get(own)):
                is_usable = bool(name) or not isinstance(value, Mapping | list)
                if fields[field] is None and value is not None and is_usable:
                    is_refusal = _tells_refusal(field, own)
                    fields[field] = _as_decision(value) if is_refusal else value
    return fields


def _read_conversation(messages: Any) -> tuple[str | None, str | None]:
    """Return the last thing that a user said, and the answer to it.

    None for what is not there.
    """
    text = answer = None
    for message in messages if isinstance(messages, list) else ():
        role = first_at(message, "role")
        if role in ("user", "human"):
            text, answer = _join_texts(message.get("content")) or "", None
        elif role in ("assistant", "model") and text is not None:
            answer = _join_texts(message.get("content"))
    return text, answer


def _join_texts(content: Any) -> str | None:
    """Return the text of a message: itself, or its parts'."""
    if isinstance(content, list):
        return "".join(_join_texts(one) or "" for one in content)
    if isinstance(content, Mapping):
        return _join_texts(content.get("text", content.get("content")))
    return content if isinstance(content, str) else None


def _find_answer(body: _Object) -> str | None:
    """Return the text of a response of any provider; None if this is no response."""
    for field, places in _PLACES_OF_ANSWERS.items():
        if isinstance(body.get(field), Mapping | list):
            texts = (_join_texts(list(stops.values_at(body, path))) for path in places)
            return next(filter(None, texts), "")
    return None


def _list_spans(item: _Object) -> Iterator[_Object]:
    """Yield the attributes of a record's spans."""
    if isinstance(item.get("attributes"), Mapping):
        yield item["attributes"]
    for span in stops.values_at(item, "resourceSpans.scopeSpans.spans"):
        if isinstance(span, Mapping):
            yield _plain({"kvlistValue": {"values": span.get("attributes")}})


def _plain(value: Any) -> Any:
    """Return an attribute's value without its type."""
    if not isinstance(value, Mapping) or not value:
        return value
    kind, inside = next(iter(value.items()))
    if kind == "arrayValue":
        return [_plain(one) for one in inside.get("values") or []]
    if kind == "kvlistValue":
        pairs = inside.get("values") or []
        return {one["key"]: _plain(one.get("value")) for one in pairs}
    return inside


def _read_span(about: _Object, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a span about a model, by its attributes; none of another."""
    asked = _list_messages(about, "input")
    answered = _list_messages(about, "output")
    if not asked and not answered:
        return {}
    last = answered[-1] if answered else {}
    fields = _read_fields(columns, about)
    fields["text"] = _read_conversation(asked)[0]
    fields["answer"] = _join_texts(last.get("content"))
    reasons = _list_attribute(about, "gen_ai.response.finish_reasons")
    fields["finish_reason"] = last.get("finish_reason") or next(iter(reasons), None)
    if fields["answer"] is None and about.get("error.type"):
        fields["finish_reason"] = "error"
    for name in ("gen_ai.response.model", "gen_ai.request.model"):
        fields["system"] = fields["system"] or about.get(name)
    return fields


def _list_attribute(about: _Object, name: str) -> list[Any]:
    """Return a span's attribute that is a list, or the JSON of one."""
    found = about.get(name)
    if isinstance(found, str):
        found = _decode(found)
    return found if isinstance(found, list) else []


def _list_messages(about: _Object, kind: str) -> list[dict[str, Any]]:
    """Return the messages of a span.

    They are one attribute, or one for each message as older conventions do.
    """
    messages = []
    for one in _list_attribute(about, f"gen_ai.{kind}.messages"):
        if isinstance(one, Mapping):
            messages.append({"content": one.get("parts"), **one})
    begin, role = _OLDER_MESSAGES[kind]
    for number in itertools.count():
        fields = {
            name: about.get(f"{begin}.{number}.{name}")
            for name in ("content", "role", "finish_reason")
        }
        if fields["content"] is None:
            return messages
        messages.append(fields | {"role": fields["role"] or role})
    return messages


def _read_inspect(
    source: LogSource, columns: Mapping[str, str]
) -> Iterator[tuple[int, _Object]]:
    """Yield the samples of a log of Inspect, by its own reader."""
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
    for number, sample in enumerate(log.samples or ()):
        yield number, _read_sample(sample, log.eval.model, columns)


def _read_sample(sample: Any, model: str, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a sample of Inspect."""
    scores = {name: score.value for name, score in (sample.scores or {}).items()}
    fields = _read_fields(columns, sample.metadata or {}, scores)
    asked = sample.input
    if not isinstance(asked, str):
        asked = _read_conversation([one.model_dump() for one in asked])[0]
    fields["text"] = fields["text"] or asked
    fields["system"] = fields["system"] or model
    output = sample.output
    fields["answer"] = output.completion if output else None
    reason = output.stop_reason if output and output.choices else None
    fields["finish_reason"] = "error" if sample.error else reason
    return fields
