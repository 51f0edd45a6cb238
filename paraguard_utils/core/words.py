"""Words of a text, and how many two texts share."""

import re
from collections.abc import Hashable, Iterable

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


def split_words(text: str) -> list[str]:
    """Return the lower-cased words of a text, in order.

    Typographic apostrophes become plain ones.

    Examples
    --------
    >>> split_words("Don't kill the process!")
    ["don't", 'kill', 'the', 'process']
    """
    return _WORD.findall(text.lower().replace("’", "'"))


def jaccard(a: Iterable[Hashable], b: Iterable[Hashable]) -> float:
    """Compute the Jaccard overlap |a & b| / |a | b| of two word collections, in [0, 1].

    It is 1 if both are empty.

    Examples
    --------
    >>> jaccard(["kill", "the", "process"], ["stop", "the", "process"])
    0.5
    """
    a = frozenset(a)
    b = frozenset(b)
    if not a and not b:
        return 1.0
    return len(a & b) / len(a | b)
