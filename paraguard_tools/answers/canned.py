"""Fixed texts: lines in which a product declines, and texts that answer anything."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from paraguard_tools.servers import stops
from paraguard_utils.errors import DataError

_MARKS = re.compile(r"[*_#`>\u200b-\u200f\u2060\ufeff]+")
_EDGES = " \t\n\"'\u201c\u201d()[]-\u2013\u2014:.!?\u3002\uff01"
_OPENING_CHARS = 640

MIN_REQUESTS = 5
"""From so many different requests on, one text that answers them is a fixed one."""
MIN_WORDS = 3  # fewer are a short answer, as a number or "Yes" is


class Line(NamedTuple):
    """A product's fixed line: whose it is, and the line as texts are compared."""

    provider: str
    text: str


def normalize_line(text: str) -> str:
    """Return a text as lines are compared: in lower case, without markup and margins.

    Examples
    --------
    >>> normalize_line("  **Sorry\u2026** I can\u2019t  chat. ")
    "sorry\u2026 i can't chat"
    """
    plain = _MARKS.sub("", text.replace("\u2019", "'").replace("\u2018", "'"))
    return " ".join(plain.lower().split()).strip(_EDGES)


@cache
def _read_lines() -> list[Line]:
    rows = stops.read_listed(stops.LINE_FIELD)
    return [Line(row.provider, normalize_line(row.value)) for row in rows]


@cache
def _all_lines() -> tuple[str, ...]:
    return tuple(line.text for line in _read_lines())


def find_line(text: str) -> str:
    """Return whose fixed line an answer is, or opens or ends with; "" if it has none.

    A product that streams an answer may cut it with such a line.

    Examples
    --------
    >>> find_line("Sorry, the model cannot answer this question.")
    'bedrock'
    """
    opening = normalize_line(text[:_OPENING_CHARS])
    ending = opening
    if len(text) > _OPENING_CHARS:
        ending = normalize_line(text[-_OPENING_CHARS:])
    if not (opening.startswith(_all_lines()) or ending.endswith(_all_lines())):
        return ""
    for line in _read_lines():
        if opening.startswith(line.text) or ending.endswith(line.text):
            return line.provider
    return ""


def read_phrases(file: Path) -> list[str]:
    """Read the lines in which a product declines: one a line, "#" for a comment.

    DataError if there is no such file, if it is not UTF-8, or if it has no phrase of
    three words or more: shorter ones are in answers of any kind.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file}: the phrases cannot be read ({error}); save them as UTF-8 text,"
            " one a line"
        ) from None
    lines = [line.strip() for line in text.splitlines()]
    phrases = [line for line in lines if line and not line.startswith("#")]
    for number, line in enumerate(lines, start=1):
        if line in phrases and not _is_long_enough(normalize_line(line)):
            raise DataError(
                f"{file}, line {number}: {line!r} is too short to tell a refusal; write"
                f" a phrase of {MIN_WORDS} words or more"
            )
    if not phrases:
        raise DataError(f"{file}: there is no phrase; write one a line")
    return phrases


def has_phrase(text: str, phrases: Sequence[str]) -> bool:
    """Return whether an answer's opening, or its end, has one of the phrases.

    `phrases` are those that a user declares, as `normalize_line` makes them.
    """
    if not phrases:
        return False
    opening = normalize_line(text[:_OPENING_CHARS])
    ending = normalize_line(text[-_OPENING_CHARS:])
    return any(phrase in opening or phrase in ending for phrase in phrases)


def find_canned_lines(
    requests: Sequence[object],
    answers: Sequence[object],
    labels: Sequence[str],
    min_requests: int = MIN_REQUESTS,
) -> pd.DataFrame:
    """List texts that answer many different requests and are no recognised refusal.

    Such a text may be the line in which a product declines: if it is, give it to the
    labeller with `phrases`.

    Parameters
    ----------
    requests, answers : sequences of n texts
    labels : sequence of n strings
        The answers' labels; what is rejected or blocked is left out.
    min_requests : int
        Of fewer different requests, a text is no fixed one.

    Returns
    -------
    DataFrame
        line (the first of its spellings), n (answers), n_requests and label, the most
        frequent line first.

    Examples
    --------
    >>> asked = ["How to sew?", "How to fly?", "How to dig?"]
    >>> found = find_canned_lines(asked, ["Ask at the desk."] * 3, ["accept"] * 3, 3)
    >>> found["n_requests"].tolist()
    [3]
    """
    rows = pd.DataFrame(
        {"request": list(requests), "line": list(answers), "label": list(labels)},
        dtype=object,
    )
    is_text = rows["line"].map(lambda text: isinstance(text, str)).astype(bool)
    rows = rows[is_text]
    rows = rows[~rows["label"].isin(["reject", "blocked"])]
    rows["key"] = rows["line"].map(
        {one: normalize_line(one) for one in set(rows["line"])}
    )
    rows = rows[rows["key"].map(_is_long_enough).astype(bool)]
    rows["request"] = rows["request"].map(lambda text: normalize_line(str(text)))
    groups = rows.groupby("key", sort=False)
    found = pd.DataFrame(
        {
            "line": groups["line"].first(),
            "n": groups.size(),
            "n_requests": groups["request"].nunique(),
            "label": groups["label"].first(),
        }
    )
    found = found[found["n_requests"] >= min_requests]
    found = found.sort_values(["n_requests", "n"], ascending=False, kind="stable")
    return found.reset_index(drop=True)


def _is_long_enough(line: str) -> bool:
    is_dense = len(line) >= 2 * MIN_WORDS and not line.isascii()
    return is_dense or len(line.split()) >= MIN_WORDS
