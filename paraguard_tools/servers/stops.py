"""Find a provider's stop of an answer (`docs/method.md`, Labels), as
`data/provider_stops.csv` lists them.

A stop is found in the body of a response or of an error, in a finish reason, or in the
words that a product shows in place of an answer. It counts as a refusal of the system,
whichever part of the system refused.
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

_REASON = re.compile(r"(?P<value>[^()]+?)(?: \((?P<category>[^()]*)\))?")


class Stop(NamedTuple):
    """A stop: the provider, what it calls the stop, and what it says it was about, ""
    if it does not say.
    """

    provider: str
    value: str
    category: str = ""

    @property
    def reason(self) -> str:
        """The finish reason of a trace: the value, and the category in brackets."""
        return f"{self.value} ({self.category})" if self.category else self.value


@cache
def _listed(texts: bool) -> list[Any]:
    """Return the rows about texts, or those about bodies: provider, field, value and
    category of each.
    """
    frame = pd.read_csv(STOPS_FILE, keep_default_na=False)
    return list(frame[(frame["field"] == TEXT_FIELD) == texts].itertuples())


@cache
def _reasons() -> dict[str, tuple[str, str, bool]]:
    """Return provider, value, and whether any word may follow, by finish reason or code
    of an error in lower case.
    """
    found: dict[str, tuple[str, str, bool]] = {}
    for row in _listed(texts=False):
        name, any_value = row.field.rpartition(".")[2], row.value == ANY_VALUE
        if name not in ("type", "refusal"):
            said = name if any_value else row.value
            found.setdefault(said.lower(), (row.provider, said, any_value))
    return found


def find_stop(body: object) -> Stop | None:
    """Find a stop in the body of a response or of an error, which is any decoded JSON.

    Examples
    --------
    >>> find_stop({"stop_reason": "refusal", "stop_details": {"category": "cyber"}})
    Stop(provider='anthropic', value='refusal', category='cyber')
    >>> find_stop({"choices": [{"finish_reason": "stop"}]}) is None
    True
    """
    for row in _listed(texts=False):
        path, any_value = row.field.split("."), row.value == ANY_VALUE
        for there in _values(body, path):
            if (
                isinstance(there, str)
                and there
                and (any_value or there.lower() == row.value.lower())
            ):
                said = (
                    row.value
                    if not any_value
                    else path[-1]
                    if path[-1] == "refusal"
                    else f"{path[-1]} {there}"
                )
                return Stop(row.provider, said, _category(body, row.category))
    return None


def find_stop_in_error(body: object, said: str = "") -> Stop | None:
    """Find a stop in an error: in its body, with or without `error` around it, or in
    its message.
    """
    found = find_stop(body) or find_stop({"error": body}) or find_stop_in_text(said)
    return found or (
        find_stop_in_reason("content_filter")
        if "content_filter" in f"{said} {body}"
        else None
    )


def find_stop_in_reason(reason: object) -> Stop | None:
    """Find a stop in a finish reason as a trace, or a column of a log, has it.

    Examples
    --------
    >>> find_stop_in_reason("refusal (cyber)")
    Stop(provider='anthropic', value='refusal', category='cyber')
    """
    match = _REASON.fullmatch(reason.strip()) if isinstance(reason, str) else None
    if not match:
        return None
    field, *more = match["value"].split(" ")
    provider, value, any_word = _reasons().get(field.lower(), ("", "", False))
    if not provider or (
        more and not any_word
    ):  # a word follows, as in `blockReason OTHER`
        return None
    return Stop(provider, " ".join([value, *more]), match["category"] or "")


def find_stop_in_text(text: object) -> Stop | None:
    """Find a stop in the words that a product shows in place of an answer.

    Examples
    --------
    >>> find_stop_in_text("Invalid prompt: your prompt was flagged as potentially violating our usage policy.").provider
    'openai'
    """
    opening = (
        " ".join(text[:OPENING_CHARS].replace("\u2019", "'").split()).lower()
        if isinstance(text, str)
        else ""
    )
    return next(
        (
            Stop(row.provider, "block text")
            for row in _listed(texts=True)
            if row.value.lower() in opening
        ),
        None,
    )


def _values(body: object, path: list[str]) -> Iterator[object]:
    """Yield what lies at a path, through every item of a list on the way."""
    if isinstance(body, list):
        for item in body:
            yield from _values(item, path)
    elif not path:
        yield body
    elif isinstance(body, Mapping) and path[0] in body:
        yield from _values(body[path[0]], path[1:])


def _category(body: object, field: str) -> str:
    """Return what a stop was about: a name, or the names of those that are said to have
    filtered or blocked.
    """
    names: list[str] = []
    for there in _values(body, field.split(".")) if field else ():
        if isinstance(there, str):
            names.append(there)
        elif isinstance(there, Mapping):
            names += _filtered(there)
    return ", ".join(dict.fromkeys(re.sub(r"[()]", "", name) for name in names))[:80]


def _filtered(there: Mapping[str, Any]) -> list[str]:
    """Return names from Gemini's ratings, `{category, blocked}`, and from Azure's
    results, `{name: {filtered}}`.
    """
    if isinstance(there.get("category"), str):
        return (
            [there["category"].removeprefix("HARM_CATEGORY_").lower()]
            if there.get("blocked")
            else []
        )
    found = {name: about for name, about in there.items() if isinstance(about, Mapping)}
    return [
        name
        for name, about in found.items()
        if about.get("filtered") is True or about.get("detected") is True
    ]
