"""Read the JSON objects of a file: a line each, one document, or a stream's events."""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from paraguard_tools.logs.formats.fields import Object
from paraguard_tools.logs.formats.sources import LogSource, decode
from paraguard_utils.errors import DataError

_LISTS = ("data", "rows", "records", "items", "examples", "responses", "spans", "runs")
"""Names under which a document has its rows, if it says nothing else of them."""


def list_objects(source: LogSource) -> Iterator[tuple[int, Object]]:
    """Yield the objects of a JSON file, with the number of each from 0."""
    if source.kind == "lines":
        items = _list_lines(source)
    elif source.kind == "events":
        items = enumerate(_join_dump(source))
    else:
        items = enumerate(_list_document(source))
    for number, item in items:
        if not isinstance(item, Mapping):
            raise DataError(
                f"{source.name}, {source.place(number)}: this is no JSON object; fix it"
            )
        yield number, item


def _list_lines(source: LogSource) -> Iterator[tuple[int, Any]]:
    with source.open_text() as opened:
        lines = ((number, line) for number, line in enumerate(opened) if line.strip())
        first = next(lines, None)
        second = next(lines, None)
        if first and second is None:  # a document in one line
            yield from enumerate(unwrap(decode(first[1])))
            return
        for number, line in itertools.chain(filter(None, (first, second)), lines):
            yield number, decode(line)


def _list_document(source: LogSource) -> list[Any]:
    """Return the objects of a document, or of several behind one another."""
    with source.open_text() as opened:
        content = opened.read()
    decoder = json.JSONDecoder()
    found, place = [], _skip_blank(content, 0)
    try:
        while place < len(content):
            item, place = decoder.raw_decode(content, place)
            found.append(item)
            place = _skip_blank(content, place)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{source.name}: this is no JSON: {error}; fix the file"
        ) from None
    if len(found) > 1:
        return found
    document = found[0]
    if isinstance(document, list):
        return document
    return list(unwrap(document))


def _skip_blank(content: str, place: int) -> int:
    while place < len(content) and content[place] in " \t\r\n\ufeff":
        place += 1
    return place


def unwrap(document: Any) -> Iterator[Any]:
    """Yield the rows of a document that only wraps a list of them, or itself."""
    lists = [name for name in _LISTS if _is_rows(document, name)]
    if len(lists) == 1 and not {"choices", "messages"} & set(document):
        yield from document[lists[0]]
    else:
        yield document


def _is_rows(document: Any, name: str) -> bool:
    rows = document.get(name) if isinstance(document, Mapping) else None
    return isinstance(rows, list) and all(isinstance(one, Mapping) for one in rows)


def _join_dump(source: LogSource) -> list[Object]:
    """Return the responses of a stream that was dumped as it came."""
    with source.open_text() as opened:
        return join_events(opened.read())


def join_events(dump: str) -> list[Object]:
    r"""Join the chunks of streamed responses.

    Examples
    --------
    >>> dump = 'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n'
    >>> join_events(dump)[0]["choices"][0]["message"]["content"]
    'a'
    """
    chunks: list[Any] = []
    for line in dump.split("\n"):
        name, _, content = line.strip().partition(":")
        if name == "data" and content.strip() == "[DONE]":
            chunks.append(None)
        elif name == "data":
            chunks.append(decode(content.strip()))
    return join_chunks(chunks)


def join_chunks(chunks: list[Any]) -> list[Object]:
    """Join decoded chunks to responses; None ends one, and so does another id."""
    joined: list[_Joined] = []
    is_open = False
    for chunk in chunks:
        if not isinstance(chunk, Mapping):
            is_open = False
            continue
        key = _find_key(chunk)
        starts = chunk.get("type") == "message_start" or (
            key is not None and joined and joined[-1].key not in (None, key)
        )
        if not is_open or starts:
            joined.append(_Joined())
            is_open = True
        joined[-1].add(chunk, key)
    return [one.body() for one in joined]


def _find_key(chunk: Object) -> Any:
    """Return the id of the response that a chunk belongs to."""
    for place in (chunk, chunk.get("message"), chunk.get("response")):
        if isinstance(place, Mapping) and isinstance(place.get("id"), str):
            return place["id"]
    return chunk.get("responseId")


class _Joined:
    """A response that is put together from its chunks."""

    def __init__(self) -> None:
        self.key: Any = None
        self.about: dict[str, Any] = {}
        self.choices: dict[Any, dict[str, Any]] = {}
        self.whole: Object = {}

    def add(self, chunk: Object, key: Any) -> None:
        """Add a chunk of OpenAI's, Anthropic's or Gemini's kind."""
        self.key = self.key or key
        for place in (chunk, chunk.get("message"), chunk.get("delta")):
            if isinstance(place, Mapping):
                for name in ("id", "model", "error", "stop_reason", "stop_details"):
                    if place.get(name) is not None:
                        self.about[name] = place[name]
        if isinstance(chunk.get("response"), Mapping):
            self.whole = chunk["response"]
        delta = chunk.get("delta")
        if isinstance(delta, Mapping) and isinstance(delta.get("text"), str):
            self._say(0, "content", delta["text"])
        elif (
            isinstance(delta, str) and chunk.get("type") == "response.output_text.delta"
        ):
            self._say(0, "content", delta)
        for one in chunk.get("choices") or ():
            self._add_choice(one)
        for number, one in enumerate(chunk.get("candidates") or ()):
            self._add_candidate(number, one)
        if isinstance(chunk.get("promptFeedback"), Mapping):
            self.about["promptFeedback"] = chunk["promptFeedback"]

    def _choice(self, number: Any) -> dict[str, Any]:
        return self.choices.setdefault(number, {"index": number, "message": {}})

    def _say(self, number: Any, name: str, text: str) -> None:
        message = self._choice(number)["message"]
        message[name] = message.get(name, "") + text

    def _add_choice(self, one: Any) -> None:
        if not isinstance(one, Mapping):
            return
        number = one.get("index", 0)
        delta = one.get("delta")
        said = delta if isinstance(delta, Mapping) else {"content": one.get("text")}
        for name in ("content", "refusal", "reasoning_content", "reasoning"):
            text = said.get(name)
            if isinstance(text, str):
                self._say(number, name, text)
        for name in ("finish_reason", "content_filter_results"):
            if one.get(name):
                self._choice(number)[name] = one[name]

    def _add_candidate(self, number: int, one: Any) -> None:
        from paraguard_tools.logs.formats.fields import join_texts

        if isinstance(one, Mapping):
            content = one.get("content")
            self._say(number, "content", join_texts(content) or "")
            if one.get("finishReason"):
                self._choice(number)["finishReason"] = one["finishReason"]

    def body(self) -> Object:
        """Return the response."""
        if self.whole.get("output"):
            return self.whole
        choices = list(self.choices.values())
        reasons = [one["finishReason"] for one in choices if "finishReason" in one]
        candidates = [{"finishReason": reason} for reason in reasons]
        if not choices and "error" in self.about:
            return self.about
        body = {**self.about, "choices": choices}
        if candidates:  # a stop of Gemini's is found there
            body["candidates"] = candidates
        return body
