"""Read flat rows, chat completions, responses of providers, and batches."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from paraguard_tools.logs.conversations import has_earlier_stop
from paraguard_tools.logs.formats.fields import (
    Object,
    Row,
    flatten_columns,
    join_texts,
    mapping_at,
    read_conversation,
    read_responses,
    value_at,
)
from paraguard_tools.logs.formats.objects import join_chunks, join_events
from paraguard_tools.servers import stops

_BODIES = (
    "response.body",
    "response",
    "result.message",
    "result",
    "modelOutput",
    "completion",
    "",
)
"""Where the response of a provider is in a record."""

_REQUESTS = ("body", "params", "request", "modelInput")
"""Where what was sent is in a record, or in a line of a batch's input."""

NO_RESULT = "no result"  # the finish reason of a request that has none


def read_chats(
    records: Iterable[tuple[int, Object]],
    named: frozenset[str],
    asked: dict[str, Object],
) -> Iterator[Row]:
    """Yield the rows of flat records, chat logs and batches.

    `asked` has the requests of a batch by their custom_id.
    """
    for number, item in records:
        if not asked and _is_flat(item):
            yield Row(number, item, {})
        else:
            yield from read_record(number, item, named, asked)


def _is_flat(item: Object) -> bool:
    """Return whether a record has columns only: nothing nested, streamed or failed."""
    if item.get("error") or item.get("custom_id"):
        return False
    if str(item.get("response", "")).startswith(("data:", "event:")):
        return False
    return not any(isinstance(value, dict | list) for value in item.values())


def read_record(
    number: int,
    item: Object,
    named: frozenset[str] = frozenset(),
    asked: Object | None = None,
) -> Iterator[Row]:
    """Yield the row of one record, or one for each answer that it has."""
    custom_id = str(item.get("custom_id", item.get("recordId")))
    request = (asked or {}).get(custom_id, item)
    inside = [mapping_at(request, name) for name in _REQUESTS]
    request = next(filter(None, inside), request)
    columns = flatten_columns(item, _without_system(request, item), named=named)
    found = _read_request(request, item)
    if "messages" in found:
        del found["messages"]
        columns = _without_system(columns, {})
    bodies = list(_list_bodies(item))
    for body in bodies:
        rows = [found | fields for fields in read_responses(body)]
        if rows:
            for fields in rows:
                yield Row(number, columns, fields)
            return
    if reason := _find_error(item):
        found["finish_reason"] = reason
        found.setdefault("answer", None)
        if isinstance(item.get("error"), str):
            columns = {name: columns[name] for name in columns if name != "error"}
    yield Row(number, columns, found)


def _without_system(request: Object, item: Object) -> Object:
    """Leave out a system prompt, which is no system's name."""
    if request is item or "system" not in request:
        return {} if request is item else request
    return {name: request[name] for name in request if name != "system"}


def _read_request(request: Object, item: Object) -> dict[str, Any]:
    """Return what was asked, and the answer if it is in the conversation too."""
    found: dict[str, Any] = {}
    places = ("messages", "contents", "input")
    for one, name in itertools.product((request, item), places):
        conversation = one.get(name)
        if isinstance(conversation, list):
            text, answer = read_conversation(conversation)
            if text is not None:
                found["text"] = text
                found["messages"] = True
                found["after_stop"] = has_earlier_stop(conversation)
                if answer is not None:
                    found["answer"] = answer
                break
    for name in ("input", "prompt"):
        text = None if request is item else join_texts(request.get(name))
        if text and "text" not in found:
            found["text"] = text
    return found


def _list_bodies(item: Object) -> Iterator[Object]:
    """Yield what may be the response of a provider in a record."""
    response = item.get("response")
    if isinstance(response, str) and response.startswith(("data:", "event:")):
        yield from join_events(response)
    elif isinstance(response, list) and response:
        yield from join_chunks(response)
    for path in _BODIES:
        body = mapping_at(item, path)
        if body:
            yield body


def _find_error(item: Object) -> str:
    """Return the finish reason of a request that failed; "" if it did not."""
    kind = value_at(item, "result.type")
    failed = kind if kind in ("errored", "expired", "canceled") else None
    places = ("error", "result.error", "response.body.error", "response.error")
    found = next(filter(None, (value_at(item, path) for path in places)), failed)
    code = value_at(item, "response.status_code")
    if not found and isinstance(code, int) and code >= 400:
        found = f"status {code}"
    if not found or str(found).strip().lower() in ("false", "0", "no", "none"):
        return ""
    stop = stops.find_stop_in_error(found, str(found))
    return stop.reason if stop else "error"


def find_custom_id(item: Object) -> str:
    """Return the name of a request in its batch; "" if it has none."""
    found = item.get("custom_id", item.get("recordId"))
    return "" if found is None else str(found)


def read_missing(
    asked: dict[str, Object], answered: set[str], named: frozenset[str]
) -> Iterator[Row]:
    """Yield a row for each request of a batch that has no result."""
    for number, (custom_id, item) in enumerate(asked.items()):
        if custom_id not in answered:
            for row in read_record(number, item, named):
                ended = {"finish_reason": NO_RESULT, "answer": None, "id": custom_id}
                model = row.columns.get("model")
                yield row._replace(found={**row.found, **ended, "model": model})
