"""Words of a text, and how many two texts share."""

import re
from collections.abc import Hashable, Iterable

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


def split_words(text: str) -> list[str]:
    """Return the lower-cased word tokens of a text, in order, typographic apostrophes
    made plain.
    """
    return _WORD.findall(text.lower().replace("’", "'"))


def jaccard(a: Iterable[Hashable], b: Iterable[Hashable]) -> float:
    """Compute the Jaccard overlap |a & b| / |a | b| of two word collections, in [0, 1].

    1 if both are empty.
    """
    a, b = frozenset(a), frozenset(b)
    return len(a & b) / len(a | b) if a or b else 1.0
