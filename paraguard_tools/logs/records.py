"""Read the rows of a log, whatever its format (`formats.registry`).

It also finds out which of its columns is what, and says so.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import re2

from paraguard_tools.logs.conversations import names_conversations
from paraguard_tools.logs.formats import chats, objects, registry, tables
from paraguard_tools.logs.formats.fields import (
    BESIDE_ANSWERS,
    COMPLIANCE_COLUMNS,
    REFUSAL_COLUMNS,
    USUAL_COLUMNS,
    YES_NO,
    Object,
    Row,
    read_words,
)
from paraguard_tools.logs.formats.sources import (
    STDIN,
    SURROGATE,
    LogSource,
    decode,
    find_log_source,
    map_text,
)
from paraguard_tools.logs.formats.tables import read_table
from paraguard_utils.errors import DataError, SettingsError

__all__ = [
    "STDIN",
    "SURROGATE",
    "USUAL_COLUMNS",
    "YES_NO",
    "LogSource",
    "Told",
    "find_log_source",
    "read_rows",
    "read_table",
    "read_words",
]

_HEAD_ROWS = 20  # by which the format of records is found out
_HINT_ROWS = 5_000  # in which columns that may name clusters are looked for
_MAX_HINTS = 4

_FLAGS = ("reasoning", "after_stop")
"""Fields that a format tells as yes or no."""

_FOUND = ("text", "answer", "finish_reason", "repeat")
"""Fields that a format itself tells, before any column of a usual name."""


@dataclass(frozen=True)
class Told:
    """What a file tells, row by row.

    Attributes
    ----------
    frame : DataFrame
        Text or None, with a column for each field of `USUAL_COLUMNS` that the file has,
        and as far as its format tells them `id`, `reasoning` and `after_stop` (bool).
    raw : DataFrame
        All columns of the file.
    columns : dict of str to str
        The column that was taken for each field.
    notes : list of str
        Sentences for whoever reads the numbers.
    format : str
        The name of the format.
    requests : int
        Requests of the batch's input file.
    """

    frame: pd.DataFrame
    raw: pd.DataFrame
    columns: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    format: str = "table"
    requests: int = 0


def read_rows(
    source: LogSource, columns: Mapping[str, str], requests: str | Path = ""
) -> Told:
    r"""Read the rows of a file.

    The index counts rows of the file from 0. `columns` names the column of each field:
    "" takes the usual name that is there, "none" takes nothing. A cluster may be
    `COLUMN~PATTERN`: what the pattern (RE2) matches is cut off. `requests` is the input
    file of a batch, which has what was asked. Raises DataError if a row cannot be read,
    or a column that was named is not there.
    """
    try:
        return _read_rows(source, dict(columns), requests)
    except RecursionError:
        raise DataError(
            f"{source.name}: a value is nested too deep to be read; leave it out"
        ) from None


def _read_rows(
    source: LogSource, columns: dict[str, str], requests: str | Path
) -> Told:
    if requests and source.kind not in ("lines", "document"):
        raise SettingsError(
            f"{source.name}: this is no batch, so that --input means nothing; leave it"
            " out"
        )
    pattern = ""
    given = columns.get("cluster", "")
    if "~" in given:
        columns["cluster"], _, pattern = given.partition("~")
    named = frozenset(columns.values()) - {"", "none"}
    context = registry.ReadContext(source, named)
    if requests:
        context.requests = _read_requests(requests)
    if source.kind in ("table", "parquet"):
        told = _read_table_file(context, columns)
    else:
        told = _read_object_file(context, columns)
    if pattern:
        _cut_clusters(source, told.frame, given, pattern)
    return told


def _read_table_file(context: registry.ReadContext, columns: Mapping[str, str]) -> Told:
    source = context.source
    if source.kind == "parquet":
        raw = tables.read_parquet(source)
    else:
        raw = read_table(source, "surrogateescape")
    head = [_load_cells(one) for one in _to_records(raw.head(_HEAD_ROWS))]
    known = registry.find_format(head)
    nested = [name for name in raw if _is_nested(raw[name])] if len(raw) else []
    if known or ("messages" in nested or "response" in nested or "choices" in nested):
        records = enumerate(_load_cells(one) for one in _to_records(raw))
        return _assemble(context, known or registry.CHATS, records, columns)
    frame = tables.to_text(raw) if source.kind == "parquet" else raw
    return _choose_columns(context, frame, pd.DataFrame(index=frame.index), columns)


def _is_nested(values: Any) -> bool:
    first = values.dropna().iloc[:1] if isinstance(values, pd.Series) else ()
    return any(
        hasattr(one, "tolist") or isinstance(one, Mapping | list) for one in first
    )


def _to_records(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    names = [str(name) for name in frame.columns]
    for values in frame.itertuples(index=False, name=None):
        yield dict(zip(names, values, strict=True))


def _load_cells(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table with JSON in its cells decoded."""
    loaded = {}
    for name, value in record.items():
        if hasattr(value, "tolist") and not isinstance(value, str):
            value = value.tolist()
        if isinstance(value, str) and value[:1] in ("{", "["):
            found = decode(value)
            value = value if found is None else found
        is_missing = value is None or value == "" or value != value
        loaded[name] = None if is_missing is True else value
    return loaded


def _read_object_file(
    context: registry.ReadContext, columns: Mapping[str, str]
) -> Told:
    source = context.source
    records: Iterator[tuple[int, Object]] = iter(())
    known = registry.FORMATS[0]  # the only one in an archive
    if source.kind != "inspect":
        records = objects.list_objects(source)
        head = list(itertools.islice(records, _HEAD_ROWS))
        known = registry.find_format(one for _, one in head) or registry.CHATS
        if known is registry.CHATS and head and _is_chunk(head[0][1]):
            chunks = [one for _, one in [*head, *records]]
            head, records = list(enumerate(objects.join_chunks(chunks))), iter(())
        records = itertools.chain(head, records)
    return _assemble(context, known, records, columns)


def _is_chunk(record: Object) -> bool:
    """Return whether a record is a chunk of a streamed response."""
    kind = record.get("type")
    return record.get("object") == "chat.completion.chunk" or kind == "message_start"


def _assemble(
    context: registry.ReadContext,
    known: registry.Format,
    records: Iterable[tuple[int, Object]],
    columns: Mapping[str, str],
) -> Told:
    """Return what a reader of records finds."""
    answered: set[str] = set()
    if context.requests:
        records = _note_answered(records, answered)
    rows = list(_check_shapes(context.source, known, known.read(records, context)))
    if context.requests:
        last = rows[-1].number + 1 if rows else 0
        asked = context.requests
        for missing in chats.read_missing(asked, answered, context.named):
            rows.append(missing._replace(number=last))
            last += 1
        if strange := len(answered - set(asked) - {""}):
            context.notes.append(
                f"{strange:,} results answer no request of the input file: it may be"
                " that of another batch."
            )
    numbers = [row.number for row in rows]
    index = pd.Index(numbers if len(set(numbers)) == len(numbers) else range(len(rows)))
    raw = pd.DataFrame([row.columns for row in rows], index=index, dtype=object)
    found = pd.DataFrame([row.found for row in rows], index=index, dtype=object)
    told = _choose_columns(context, raw, found, columns)
    notes, n = context.notes, len(context.requests)
    return Told(told.frame, told.raw, told.columns, notes, known.name, n)


def _check_shapes(
    source: LogSource, known: registry.Format, rows: Iterable[Row]
) -> Iterator[Row]:
    """Yield rows; raise DataError, with the file's name, about a shape of no format."""
    done = 0
    try:
        for row in rows:
            yield row
            done += 1
    except (TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
        raise DataError(
            f"{source.name}: behind {done:,} rows, a record has not the shape of"
            f" {known.name} ({type(error).__name__}); fix it, or leave it out"
        ) from None
    except DataError as error:
        said = str(error)
        raise DataError(
            said if said.startswith(source.name) else f"{source.name}, {said}"
        ) from None


def _note_answered(
    records: Iterable[tuple[int, Object]], answered: set[str]
) -> Iterator[tuple[int, Object]]:
    for number, item in records:
        answered.add(chats.find_custom_id(item))
        yield number, item


def _read_requests(file: str | Path) -> dict[str, Object]:
    """Return the requests of a batch by their custom_id."""
    source = find_log_source(file)
    if source.kind not in ("lines", "document"):
        raise DataError(f"{source.name}: the input of a batch is JSON lines")
    found = {}
    for number, item in objects.list_objects(source):
        custom_id = chats.find_custom_id(item)
        if not custom_id:
            raise DataError(
                f"{source.name}, {source.place(number)}: there is no custom_id, so this"
                " is no input of a batch"
            )
        found[custom_id] = item
    return found


def _choose_columns(
    context: registry.ReadContext,
    raw: pd.DataFrame,
    found: pd.DataFrame,
    columns: Mapping[str, str],
) -> Told:
    """Find the columns that are fields, and return them under the fields' names.

    `found` has what the format itself tells. A column that the user names wins over it,
    and it wins over columns of usual names.
    """
    source = context.source
    _check_named(source, raw, columns)
    found = found.dropna(axis=1, how="all")
    named = {name for name in columns.values() if name not in ("", "none")}
    there = [str(name) for name in raw.columns]
    usual: dict[str, list[str]] = {}
    for name in there:
        if name not in named:
            usual.setdefault(name.strip().lower(), []).append(name)
    taken: dict[str, str] = {}
    for field_name, name in columns.items():
        if name == "none":
            continue
        if name:
            taken[field_name] = name
        else:
            one = _find_usual(source, field_name, usual, set(taken.values()))
            if not one or not _fits_field(field_name, raw[one]):
                continue
            own = (
                found[field_name]
                if field_name in _FOUND and field_name in found
                else None
            )
            if own is not None and (own.notna() & raw[one].notna()).any():
                continue
            taken[field_name] = one
    is_answered = "answer" in taken or "answer" in found
    decision = taken.get("decision", "")
    if is_answered and decision.lower() in BESIDE_ANSWERS and not columns["decision"]:
        del taken["decision"]
        context.notes.append(
            f"The column {decision!r} was not taken for the decision, since it may"
            " judge the requests: the answers were labelled. --decision"
            f" {decision} takes it."
        )
    if is_answered and "harmful" in taken and not columns["harmful"]:
        name = taken["harmful"]
        context.notes.append(
            f"The column {name!r} was taken to say which requests should be refused. If"
            " it judges the answers, pass --harmful none, or name another column."
        )
    chosen = {one: _values_of(raw, one, name) for one, name in taken.items()}
    for field_name in map(str, found):
        given = columns.get(field_name, "")
        if given:
            continue
        values = found[field_name].astype(object)
        others = chosen.get(field_name)
        if others is None:
            others = pd.Series(None, raw.index, dtype=object)
        chosen[field_name] = values.where(values.notna(), others)
    frame = pd.DataFrame(chosen, index=raw.index, dtype=object)
    if "model" in frame:
        models = frame.pop("model")
        if columns.get("system") != "none":
            own = frame.get("system", models)
            frame["system"] = own.where(own.notna(), models)
    if source.kind != "table":
        flags = {name: frame.pop(name) for name in _FLAGS if name in frame}
        frame = tables.to_text(frame)
        for name, values in flags.items():
            frame[name] = values.fillna(False).astype(bool)
    return Told(frame, raw, taken, context.notes)


def _check_named(
    source: LogSource, raw: pd.DataFrame, columns: Mapping[str, str]
) -> None:
    """Raise DataError if a column that was named is not there, or is there twice."""
    named = [name for name in columns.values() if name not in ("", "none")]
    there = list(raw.columns)
    for name in named:
        if name not in there:
            shown = ", ".join(map(repr, there[:12]))
            raise DataError(
                f"{source.name}: there is no column {name!r}; there are {shown}"
            )
        if there.count(name) > 1:
            raise DataError(
                f"{source.name}: two columns are named {name!r}; rename one of them"
            )
    if len(set(named)) < len(named):
        raise DataError(
            f"{source.name}: one column cannot be two things; name different ones"
        )


def _find_usual(
    source: LogSource,
    field_name: str,
    usual: Mapping[str, list[str]],
    taken: set[str],
) -> str:
    """Return the column of a usual name for a field; "" if there is none."""
    for name in USUAL_COLUMNS[field_name]:
        found = [one for one in usual.get(name, ()) if one not in taken]
        if len(found) > 1:
            shown = " and ".join(map(repr, found[:2]))
            remedy = f"name one with --{field_name}"
            if found[0] == found[1]:
                remedy = "rename one of them"
            raise DataError(
                f"{source.name}: both columns {shown} may be the {field_name}; {remedy}"
            )
        if found:
            return found[0]
    return ""


def _fits_field(field_name: str, values: pd.Series) -> bool:
    """Return whether a column of a usual name has what its field needs."""
    if field_name in ("repeat", "turn"):
        return _is_count(values)
    if field_name == "conversation":
        return names_conversations(values)
    return True


def _is_count(values: pd.Series) -> bool:
    """Return whether a column numbers something."""
    words = values.dropna().unique()[:1000]
    return len(words) > 0 and all(str(one).strip().isdigit() for one in words)


def _values_of(raw: pd.DataFrame, field_name: str, name: str) -> pd.Series:
    """Return the values of a column; yes and no about a refusal are decisions."""
    values = raw[name]
    if field_name != "decision":
        return values
    lower = name.strip().lower()
    if lower in REFUSAL_COLUMNS:
        return map_text(values, lambda one: _as_decision(one, "reject", "accept"))
    if lower in COMPLIANCE_COLUMNS:
        return map_text(values, lambda one: _as_decision(one, "accept", "reject"))
    return values


def _as_decision(value: Any, if_yes: str, if_no: str) -> Any:
    """Turn yes and no into decisions, and leave all else as it is."""
    bit = YES_NO.get(str(value).strip().lower())
    return value if bit is None else if_yes if bit else if_no


def _cut_clusters(
    source: LogSource, frame: pd.DataFrame, given: str, pattern: str
) -> None:
    """Cut off what a pattern matches in the ids of requests."""
    try:
        options = re2.Options()
        options.log_errors = False
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        said = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
        raise DataError(
            f"--cluster {given!r}: {pattern!r} is no pattern: {said}"
        ) from None
    ids = map_text(frame["cluster"].fillna(""))
    whole = {one: compiled.sub("", one) for one in ids.unique()}
    if all(one == cut for one, cut in whole.items()):
        raise DataError(
            f"{source.name}: the pattern of --cluster {given!r} matches no id, such as"
            f" {ids.iloc[0][:60]!r}"
        )
    if blank := next((one for one, cut in whole.items() if one and not cut), ""):
        raise DataError(
            f"{source.name}: the pattern of --cluster {given!r} cuts off all of"
            f" {blank[:60]!r}; match the end of an id only"
        )
    frame["cluster"] = ids.map(whole)


def _show(value: Any) -> str:
    return SURROGATE.sub("\ufffd", str(value))


def _has_several(texts: pd.Series, values: pd.Series) -> bool:
    """Return whether rows of one value have different texts."""
    return bool((texts.groupby(values.to_numpy()).nunique() > 1).any())


def suggest_clusters(
    raw: pd.DataFrame, taken: Iterable[str], texts: pd.Series | None = None
) -> list[str]:
    r"""Suggest options by which rows of a log could be grouped.

    Examples
    --------
    >>> suggest_clusters(pd.DataFrame({"id": ["a-1", "a-2", "b-1", "b-2"]}), [])
    ["--cluster 'id~[-_.:/]+[0-9a-z]+$'"]
    """
    head = raw.head(_HINT_ROWS)
    found = []
    used = set(taken)
    for name in head.columns:
        if name in used or list(head.columns).count(name) > 1:
            continue
        values = map_text(head[name].dropna(), _show)
        n = values.nunique()
        if len(values) < len(head) or n < 2 or values.str.len().mean() > 80:
            continue
        if n <= len(head) / 2:
            if texts is None or _has_several(texts.iloc[: len(head)], values):
                found.append(f"--cluster {name}")
        elif "id" in str(name).lower():
            cut = values.str.replace(r"[-_.:/]+[0-9a-z]+$", "", regex=True)
            if 2 <= cut.nunique() <= len(head) / 2:
                found.append(f"--cluster '{name}~[-_.:/]+[0-9a-z]+$'")
    return found[:_MAX_HINTS]
