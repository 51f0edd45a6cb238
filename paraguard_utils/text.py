"""Clean, compare and describe texts."""

import difflib
import re
import unicodedata
from collections.abc import Iterable

from paraguard_utils.core.words import split_words

# Function words and the frames of a polite request: they carry no intent, so a prefix
# made of them is no paraphrase.
STOPWORDS = frozenset(
    """
    a about after again all also am an and any are as at be because been before being by
    but can could describe did do does explain for from get give had has have he help
    her here hers him his how i i'd i'll i'm if in into is it it's its just know let
    let's like make may me might more most my need no not of on one or our out over
    please she should show so some such tell than thanks that the their them then there
    these they this those through to too up us want was we were what what's when where
    which while who why will with would you your
    """.split()  # noqa: SIM905
)

ENGLISH_CODES = frozenset({"en", "pcm"})
"""What the language identifier calls English: chatty lower-case English is close to
Nigerian Pidgin."""

CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""Characters that a CSV file cannot carry or a reader cannot see; tab and line feed are
not among them."""

# Control, direction, zero-width, private, surrogate, unassigned
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cs", "Cn"})

# Thinking that was cut off before its end has no answer after it.
THINKING_BLOCK = re.compile(r"(?is)\A\s*<think(?:ing)?>(?:.*?</think(?:ing)?>|.*)")


def replace_control(text: str) -> str:
    """Replace control characters by U+FFFD."""
    return CONTROL_CHARACTERS.sub("\ufffd", text)


def has_hidden(text: str) -> bool:
    """Return whether a text has a character that no reader sees.

    Tab and line feed do not count.
    """
    return any(
        unicodedata.category(mark) in _HIDDEN_CATEGORIES
        for mark in set(text) - set("\t\n")
    )


def match_key(text: str) -> str:
    """Join a text's words.

    Two texts with the same key differ in case, punctuation or spaces only.
    """
    return " ".join(split_words(text))


def content_words(text: str) -> frozenset[str]:
    """Return the words of a text that are not stop words."""
    return frozenset(split_words(text)) - STOPWORDS


def is_only_framed(text: str, seed: str) -> bool:
    """Return whether a paraphrase is its seed in another frame.

    Then the content words of one are in the other, in the same order.

    Examples
    --------
    >>> is_only_framed("Could you explain how bees fly?", "How do bees fly?")
    True
    """
    shorter, longer = sorted(map(_list_content_words, (text, seed)), key=len)
    rest = iter(longer)
    return all(word in rest for word in shorter)


def _list_content_words(text: str) -> list[str]:
    return [word for word in split_words(text) if word not in STOPWORDS]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: what was probably meant.

    It is "" if nothing is close.
    """
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
