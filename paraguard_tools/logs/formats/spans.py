"""Read spans about models: OpenTelemetry's `gen_ai.*`, and OpenInference (Phoenix)."""

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from paraguard_tools.logs.conversations import has_earlier_stop
from paraguard_tools.logs.formats.fields import (
    Object,
    Row,
    find_error_reason,
    flatten_columns,
    join_texts,
    read_conversation,
    value_at,
)
from paraguard_tools.logs.formats.sources import decode
from paraguard_tools.servers.stops import values_at
from paraguard_utils.errors import DataError

_OLDER_MESSAGES = {
    "input": ("gen_ai.prompt", "user"),
    "output": ("gen_ai.completion", "assistant"),
}
"""How the attributes of messages begin by an older convention, and who says them."""

_PREFIX = "attributes."  # of the columns of Phoenix's data frames
_METADATA = "metadata."  # of the attributes that Phoenix returns one by one
_HIDDEN = "__REDACTED__"  # what OpenInference writes for texts that it was to hide


def is_otlp(item: Object) -> bool:
    """Return whether a record is an export of OTLP."""
    return "resourceSpans" in item or "resource_spans" in item


def is_openinference(item: Object) -> bool:
    """Return whether a record is a span of OpenInference."""
    about = _find_attributes(item)
    names = about if about is not None else ()
    return any(name.split(".")[0] in ("llm", "openinference") for name in names)


def is_span(item: Object) -> bool:
    """Return whether a record is a span with attributes."""
    return _find_attributes(item) is not None and not is_otlp(item)


def read_spans(
    records: Iterable[tuple[int, Object]], named: frozenset[str]
) -> Iterator[Row]:
    """Yield a row for each span about a model; others are left out."""
    count = itertools.count()  # an export of spans has many in a line
    for number, item in records:
        for about, span in _list_spans(number, item):
            answers = _read_openinference(_decode_messages(about, number), span)
            if answers is None:
                fields = _read_gen_ai(about)
                answers = [fields] if fields else []
            if not answers:
                continue
            place = next(count)
            columns = flatten_columns(_decode_metadata(about), span, named=named)
            for fields in answers:
                yield Row(place, columns, fields)


def _list_spans(number: int, item: Object) -> Iterator[tuple[Object, Object]]:
    """Yield the attributes of a record's spans, and the spans."""
    if not is_otlp(item):
        about = _find_attributes(item)
        if about is not None:
            yield about, item
        return
    path = "resourceSpans.scopeSpans.spans"
    if "resource_spans" in item:
        path = "resource_spans.scope_spans.spans"
    for span in values_at(item, path):
        for one in span if isinstance(span, list) else [span]:
            if isinstance(one, Mapping):
                about = _plain_attributes(one.get("attributes"))
                if about is None:
                    raise DataError(
                        f"record {number + 1}: the attributes of a span are neither a"
                        " list nor an object; export the spans again"
                    )
                yield about, one


def _find_attributes(item: Object) -> Object | None:
    """Return the attributes of a span that is a record or a row of Phoenix's frame."""
    about = item.get("attributes")
    if isinstance(about, Mapping):
        return about
    if isinstance(about, list):  # Phoenix returns spans of OTLP without their export
        return _plain_attributes(about) or None
    flat = {}
    for name, value in item.items():
        if name.startswith(_PREFIX):
            flat[name.removeprefix(_PREFIX)] = value
    if flat and "span_kind" in item:
        flat.setdefault("openinference.span.kind", item["span_kind"])
    return flat or None


def _plain_attributes(pairs: Any) -> Object | None:
    """Return a span's attributes by name; None if they have no form of OTLP's."""
    if pairs is None:
        return {}
    if isinstance(pairs, Mapping):
        return {name: _plain(value) for name, value in pairs.items()}
    if not isinstance(pairs, list):
        return None
    found = {}
    for one in pairs:
        if isinstance(one, Mapping) and isinstance(one.get("key"), str):
            found[one["key"]] = _plain(one.get("value"))
    return found


def _plain(value: Any) -> Any:
    """Return an attribute's value without its type."""
    if not isinstance(value, Mapping):
        return value
    # Some writers name the other types too, with nothing in them
    said = [(kind, inside) for kind, inside in value.items() if inside is not None]
    if len(said) != 1:
        return value
    kind, inside = said[0]
    kind = str(kind).replace("_value", "Value")
    listed = inside.get("values") if isinstance(inside, Mapping) else inside
    if kind == "arrayValue":
        return [_plain(one) for one in listed] if isinstance(listed, list) else []
    if kind == "kvlistValue":
        return _plain_attributes(listed) or {}
    return inside if kind.endswith("Value") else value


def _decode_metadata(about: Object) -> Object:
    """Return attributes whose metadata is an object.

    It may be the text of one, or an attribute for each of its names.
    """
    said = about.get("metadata")
    if said is None:
        said = {
            name.removeprefix(_METADATA): value
            for name, value in about.items()
            if name.startswith(_METADATA)
        }
    found = _decode_cell(said) if isinstance(said, str) else said
    return {**about, "metadata": found} if isinstance(found, Mapping) else about


def _decode_cell(text: str) -> Any:
    """Return the lists and objects that a cell of a table shows; None for others.

    They are JSON, or as Python shows them if a data frame was written as CSV. Nothing
    is evaluated but literals.
    """
    found = decode(text)
    if found is None and text[:1] in ("[", "{"):
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
    return found


def _decode_messages(about: Object, number: int) -> Object:
    """Return attributes in which the cells that show messages are lists.

    Raises DataError if such a cell cannot be read.
    """
    decoded = {}
    for name in ("llm.input_messages", "llm.output_messages"):
        cell = about.get(name)
        if not isinstance(cell, str) or cell[:1] not in ("[", "{"):
            continue
        decoded[name] = _decode_cell(cell)
        if decoded[name] is None:
            raise DataError(
                f"record {number + 1}: {name} is neither JSON nor a list as Python"
                " shows it; write the data frame as Parquet or as JSON lines"
            )
    return {**about, **decoded}


def _nest(about: Object) -> dict[str, Any]:
    """Return dotted attributes as objects and lists in one another.

    Numbers in names are places in lists, which become keys here.
    """
    nested: dict[str, Any] = {}
    for name, value in about.items():
        place = nested
        *path, last = str(name).split(".")
        for part in path:
            inside = place.get(part)
            if not isinstance(inside, dict):
                inside = dict(inside) if isinstance(inside, Mapping) else {}
                place[part] = inside
            place = inside
        place[last] = value
    return nested


def _list_nested(found: Any) -> list[Any]:
    """Return the items of a list, or of an object whose keys are places of one."""
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(found, str):
        found = _decode_cell(found)
    if isinstance(found, Mapping):
        places = sorted((name for name in found if str(name).isdigit()), key=int)
        return [found[name] for name in places]
    return found if isinstance(found, list) else []


def _list_openinference(nested: Object, kind: str) -> list[dict[str, Any]]:
    """Return the messages of a span of OpenInference."""
    messages = []
    for one in _list_nested(value_at(nested, f"llm.{kind}_messages")):
        inside = _nest(one) if isinstance(one, Mapping) else {}
        message = inside.get("message", inside)
        if isinstance(message, Mapping):
            parts = _list_nested(message.get("contents"))
            texts = [value_at(_nest(part), "message_content.text") for part in parts]
            said = [text for text in texts if isinstance(text, str)]
            content = message.get("content")
            content = "".join(said) if content is None and said else content
            messages.append({"role": message.get("role"), "content": content})
    return messages


def _read_openinference(about: Object, span: Object) -> list[dict[str, Any]] | None:
    """Return the fields of each answer in a span of OpenInference.

    None if it is none, nothing if it is not about a model.
    """
    nested = _nest(about)
    kind = value_at(nested, "openinference.span.kind")
    if kind is None and "llm" not in nested:
        return None
    if kind is not None and str(kind).upper() != "LLM":
        return []
    asked = _list_openinference(nested, "input")
    answered = _list_openinference(nested, "output")
    text = read_conversation(asked)[0]
    if text is None:
        text = _read_value(nested, "input")
    answers = [join_texts(one.get("content")) for one in answered]
    if not answers:
        answers = [_read_value(nested, "output")]
    elif len(answers) != _count_choices(nested):
        answers = answers[-1:]  # the messages of one answer
    fields = {
        "text": _show(text),
        "model": value_at(nested, "llm.model_name"),
        "id": value_at(span, "context.span_id") or span.get("spanId"),
        "after_stop": has_earlier_stop(asked),
    }
    found = []
    for place, answer in enumerate(map(_show, answers)):
        reason = value_at(nested, "llm.finish_reason") or None
        if not answer and _has_failed(span):
            reason = find_error_reason(_find_status_message(span))
        one = {**fields, "answer": answer, "finish_reason": reason}
        if len(answers) > 1:
            one["repeat"] = place
        if text is not None or answer is not None:
            found.append(one)
    return found


def _show(text: str | None) -> str | None:
    """Return a text; "" if it was hidden when the span was made."""
    return "" if text == _HIDDEN else text


def _count_choices(nested: Object) -> int:
    """Return how many answers a span's request asked for."""
    given = value_at(nested, "llm.invocation_parameters")
    found = _decode_cell(given) if isinstance(given, str) else given
    n = found.get("n") if isinstance(found, Mapping) else None
    return n if isinstance(n, int) else 1


def _has_failed(span: Object) -> bool:
    for name in ("status.code", "status.status_code", "status_code", "status"):
        status = value_at(span, name)
        if str(status).rpartition("_")[2] in ("ERROR", "2"):
            return True
    return False


def _find_status_message(span: Object) -> Any:
    """Return what a span says of its error."""
    for name in ("status.message", "status.description", "status_message"):
        message = value_at(span, name)
        if message:
            return message
    return None


def _read_value(nested: Object, kind: str) -> str | None:
    """Return what went in or out of a span as text; none if it is JSON."""
    value = value_at(nested, f"{kind}.value")
    is_json = str(value_at(nested, f"{kind}.mime_type")).endswith("json")
    return value if isinstance(value, str) and not is_json else None


def _read_gen_ai(about: Object) -> dict[str, Any]:
    """Return the fields of a span about a model, by its attributes; none of another."""
    asked = _list_messages(about, "input")
    answered = _list_messages(about, "output")
    if not asked and not answered:
        return {}
    last = answered[-1] if answered else {}
    reasons = _list_attribute(about, "gen_ai.response.finish_reasons")
    fields = {
        "text": read_conversation(asked)[0],
        "after_stop": has_earlier_stop(asked),
        "answer": join_texts(last.get("content")),
        "finish_reason": last.get("finish_reason") or next(iter(reasons), None),
        "model": about.get("gen_ai.response.model"),
        "id": about.get("gen_ai.response.id"),
    }
    if fields["answer"] is None and about.get("error.type"):
        fields["finish_reason"] = "error"
    fields["model"] = fields["model"] or about.get("gen_ai.request.model")
    return fields


def _list_attribute(about: Object, name: str) -> list[Any]:
    """Return a span's attribute that is a list, or the JSON of one."""
    found = about.get(name)
    if isinstance(found, str):
        found = decode(found)
    return found if isinstance(found, list) else []


def _list_messages(about: Object, kind: str) -> list[dict[str, Any]]:
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
