"""Find a provider's stop of an answer (`docs/method.md`, Labels).

`data/provider_stops.csv` lists them. A stop is found in the body of a response or of an
error, in a finish reason, or in the words that a product shows in place of an answer.
It counts as a refusal of the system, whichever part of the system refused. Limits of
rate, accounts that cannot pay and keys that are not valid are no stops.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import pandas as pd

from paraguard_utils import paths

STOPS_FILE = paths.DATA / "provider_stops.csv"
ANY_VALUE = "*"  # alone, or at the end of a value: whatever follows
TEXT_FIELD = "text"  # the field of rows that are words in place of an answer
MESSAGE_FIELD = "message"  # of rows that are words of an error's message
LINE_FIELD = "line"  # of rows that are a product's fixed text, in which it declines
MESSAGE_CHARS = 4000  # characters of a message that are read
OPENING_CHARS = 600  # characters of an answer in which such words are looked for
_CATEGORY_CHARS = 80

# Where an error has words; at the top level, an error has a code beside them
_MESSAGES = ("error", "error.message", "error.metadata.raw", "base_resp.status_msg")
# "content_filter_results" is a report of what was looked at, and no stop
_NAMES_FILTER = re.compile(r"\bcontent_filter\b")

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
def read_listed(field: str = "") -> list[Any]:
    """Return the rows of a field of words; of "", those about bodies.

    Their columns are provider, field, value, category and reason.
    """
    frame = pd.read_csv(STOPS_FILE, keep_default_na=False)
    words = (TEXT_FIELD, MESSAGE_FIELD, LINE_FIELD)
    is_asked = frame["field"] == field if field else ~frame["field"].isin(words)
    return list(frame[is_asked].itertuples())


def find_stop(body: object) -> Stop | None:
    """Find a stop in the body of a response or of an error, which is any decoded JSON.

    Examples
    --------
    >>> find_stop({"stop_reason": "refusal", "stop_details": {"category": "cyber"}})
    Stop(provider='anthropic', value='refusal', category='cyber')
    >>> find_stop({"error": "Content violates usage guidelines."}).provider
    'xai'
    >>> find_stop({"choices": [{"finish_reason": "stop"}]}) is None
    True
    """
    for read in (body, *_list_errors(body)):
        stop = _find_by_value(read) or _find_by_message(read)
        if stop:
            return stop
    return None


def _list_errors(body: object) -> Iterator[Mapping[str, Any]]:
    """Yield a body's errors that are not where most providers have them."""
    for error in values_at(body, "choices.error"):
        yield {"error": error}
    if isinstance(body, Mapping) and "code" in body and "choices" not in body:
        yield {"error": body}


@cache
def _list_by_key() -> dict[str, list[Any]]:
    """Return the rows about bodies by the first key of their paths."""
    by_key: dict[str, list[Any]] = {}
    for row in read_listed():
        by_key.setdefault(row.field.partition(".")[0], []).append(row)
    return by_key


def _find_by_value(body: object) -> Stop | None:
    if isinstance(body, list):
        return next(filter(None, map(_find_by_value, body)), None)
    if not isinstance(body, Mapping):
        return None
    for key, rows in _list_by_key().items():
        for row in rows if key in body else ():
            stop = _match_row(row, body)
            if stop:
                return stop
    return None


def _match_row(row: Any, body: object) -> Stop | None:
    for value in values_at(body, row.field):
        name = _name_stop(row, value)
        if name:
            return Stop(row.provider, name, _find_category(body, row.category))
    return None


def _name_stop(row: Any, value: object) -> str:
    """Return what a provider calls a stop; "" if the value of the field is none."""
    field = row.field.rpartition(".")[2]
    if row.value == ANY_VALUE:
        if not isinstance(value, str) or not value or value.endswith("_UNSPECIFIED"):
            return ""
        # A refusal's value is its text
        return row.reason or (field if field == "refusal" else f"{field} {value}")
    if not isinstance(value, str | int):
        return ""
    listed = row.value.lower()
    found = str(value).lower()
    if listed.endswith(ANY_VALUE):
        is_listed = found.startswith(listed.removesuffix(ANY_VALUE))
    else:
        # Clients write a value of an enumeration with its name before it
        is_listed = listed in (found, found.rpartition(".")[2])
    return (row.reason or row.value) if is_listed else ""


def _find_by_message(body: object) -> Stop | None:
    for path in _MESSAGES:
        for message in values_at(body, path):
            stop = find_stop_in_message(message)
            if stop:
                return stop
    return None


def find_stop_in_message(message: object) -> Stop | None:
    """Find a stop in the message of an error, which is known to be one.

    Examples
    --------
    >>> find_stop_in_message("400: Content Exists Risk").provider
    'deepseek'
    >>> find_stop_in_message("429: Rate limit reached") is None
    True
    """
    if not isinstance(message, str):
        return None
    words = " ".join(message[:MESSAGE_CHARS].split()).lower()
    for row in read_listed(MESSAGE_FIELD):
        if row.value.lower() in words:
            return Stop(row.provider, row.reason or "content_filter")
    return None


def find_stop_in_error(body: object, message: str = "") -> Stop | None:
    """Find a stop in an error: in its body, or in its message.

    The body is with or without `error` around it.
    """
    stop = (
        find_stop(body)
        or find_stop({"error": body})
        or find_stop_in_text(message)
        or find_stop_in_message(message)
    )
    if stop is None and _NAMES_FILTER.search(f"{message} {body}"):
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
    name, _, word = match["value"].rpartition(".")[2].partition(" ")
    for row in [*read_listed(), *read_listed(MESSAGE_FIELD)]:
        field = row.field.rpartition(".")[2]
        takes_word = row.value == ANY_VALUE and not row.reason
        value = row.reason or (field if takes_word else row.value)
        if not row.reason and field in ("type", "refusal"):
            continue
        if value.lower() == name.lower() and (takes_word or not word):
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
    for row in read_listed(TEXT_FIELD):
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
