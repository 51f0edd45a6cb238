"""Find a provider's stop of an answer (`docs/method.md`, Labels).

`data/provider_stops.csv` lists them. A stop is found in the body of a response or of an
error, in a finish reason, or in the words that a product shows in place of an answer.
It counts as a refusal of the system, whichever part of the system refused.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import pandas as pd

from paraguard_utils import paths

STOPS_FILE = paths.DATA / "provider_stops.csv"
ANY_VALUE = "*"
TEXT_FIELD = "text"  # the field of rows that are words in place of an answer
OPENING_CHARS = 600  # characters of an answer in which such words are looked for
_CATEGORY_CHARS = 80

_REASON = re.compile(r"(?P<value>[^()]+?)(?: \((?P<category>[^()]*)\))?")


class Stop(NamedTuple):
    """A stop: the provider, what it calls the stop, and what it says it was about.

    The category is "" if it does not say.
    """

    provider: str
    value: str
    category: str = ""

    @property
    def reason(self) -> str:
        """The finish reason of a trace: the value, and the category in brackets."""
        return f"{self.value} ({self.category})" if self.category else self.value


@cache
def _read_listed(texts: bool) -> list[Any]:
    """Return the rows about texts, or those about bodies.

    Their columns are provider, field, value and category.
    """
    frame = pd.read_csv(STOPS_FILE, keep_default_na=False)
    is_text = frame["field"] == TEXT_FIELD
    return list(frame[is_text == texts].itertuples())


def find_stop(body: object) -> Stop | None:
    """Find a stop in the body of a response or of an error, which is any decoded JSON.

    Examples
    --------
    >>> find_stop({"stop_reason": "refusal", "stop_details": {"category": "cyber"}})
    Stop(provider='anthropic', value='refusal', category='cyber')
    >>> find_stop({"choices": [{"finish_reason": "stop"}]}) is None
    True
    """
    for row in _read_listed(texts=False):
        for value in values_at(body, row.field):
            if isinstance(value, str) and value:
                name = _name_stop(row.value, row.field.rpartition(".")[2], value)
                if name:
                    return Stop(row.provider, name, _find_category(body, row.category))
    return None


def _name_stop(listed: str, field: str, value: str) -> str:
    """Return what a provider calls a stop; "" if the value of the field is none."""
    if listed != ANY_VALUE:
        return listed if value.lower() == listed.lower() else ""
    # A refusal's value is its text
    return field if field == "refusal" else f"{field} {value}"


def find_stop_in_error(body: object, message: str = "") -> Stop | None:
    """Find a stop in an error: in its body, or in its message.

    The body is with or without `error` around it.
    """
    stop = find_stop(body) or find_stop({"error": body}) or find_stop_in_text(message)
    if stop is None and "content_filter" in f"{message} {body}":
        return find_stop_in_reason("content_filter")
    return stop


def find_stop_in_answer(reason: object, text: object) -> Stop | None:
    """Find a stop in an answer's finish reason or text."""
    return find_stop_in_reason(reason) or find_stop_in_text(text)


def find_stop_in_reason(reason: object) -> Stop | None:
    """Find a stop in a finish reason as a trace, or a column of a log, has it.

    Examples
    --------
    >>> find_stop_in_reason("refusal (cyber)")
    Stop(provider='anthropic', value='refusal', category='cyber')
    """
    return _find_reason(reason.strip()) if isinstance(reason, str) else None


@cache
def _find_reason(reason: str) -> Stop | None:
    match = _REASON.fullmatch(reason)
    if not match:
        return None
    name, _, word = match["value"].partition(" ")
    for row in _read_listed(texts=False):
        field = row.field.rpartition(".")[2]
        takes_word = row.value == ANY_VALUE
        value = field if takes_word else row.value
        if field in ("type", "refusal") or value.lower() != name.lower():
            continue
        if takes_word or not word:
            value = f"{value} {word}".strip()
            return Stop(row.provider, value, match["category"] or "")
    return None


def find_stop_in_text(text: object) -> Stop | None:
    """Find a stop in the words that a product shows in place of an answer.

    Examples
    --------
    >>> text = "Invalid prompt: your prompt was flagged as potentially violating our"
    >>> find_stop_in_text(f"{text} usage policy.").provider
    'openai'
    """
    if not isinstance(text, str):
        return None
    opening = text[:OPENING_CHARS].replace("\u2019", "'")
    words = " ".join(opening.split()).lower()
    for row in _read_listed(texts=True):
        if row.value.lower() in words:
            return Stop(row.provider, "block text")
    return None


def values_at(body: object, path: str) -> Iterator[object]:
    """Yield what a body has at a path of keys, through every item of a list on the way.

    Examples
    --------
    >>> list(values_at({"choices": [{"text": "a"}, {"text": "b"}]}, "choices.text"))
    ['a', 'b']
    """
    key, _, rest = path.partition(".")
    for item in body if isinstance(body, list) else [body]:
        if not key:
            yield item
        elif isinstance(item, Mapping) and key in item:
            yield from values_at(item[key], rest)


def first_at(body: object, path: str) -> Any:
    """Return the first value at a path; None if there is none."""
    return next(values_at(body, path), None)


def _find_category(body: object, field: str) -> str:
    """Return what a stop was about.

    That is a name, or the names of what is said to have filtered or blocked.
    """
    names: list[str] = []
    for value in values_at(body, field) if field else ():
        if isinstance(value, str):
            names.append(value)
        elif isinstance(value, Mapping):
            names += _list_filters(value)
    plain = [re.sub(r"[()]", "", name) for name in names]
    return ", ".join(dict.fromkeys(plain))[:_CATEGORY_CHARS]


def _list_filters(rating: Mapping[str, Any]) -> list[str]:
    """Return the names of what filtered or blocked.

    Gemini's ratings are `{category, blocked}`, Azure's results `{name: {filtered}}`.
    """
    category = rating.get("category")
    if isinstance(category, str):
        name = category.removeprefix("HARM_CATEGORY_").lower()
        return [name] if rating.get("blocked") else []
    names = []
    for name, result in rating.items():
        marks = result if isinstance(result, Mapping) else {}
        if marks.get("filtered") is True or marks.get("detected") is True:
            names.append(name)
    return names
