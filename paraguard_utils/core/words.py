"""Words of a text, and how many two texts share."""

import re
from collections.abc import Hashable, Iterable
from typing import Any

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


def split_words(text: str) -> list[str]:
    """Return the lower-cased word tokens of a text, in order, typographic apostrophes made plain."""
    return _WORD.findall(text.lower().replace("’", "'"))


def jaccard(a: Iterable[Hashable], b: Iterable[Hashable]) -> float:
    """Compute the Jaccard overlap |a & b| / |a | b| of two word collections, in [0, 1]; 1 if both are empty."""
    a, b = frozenset(a), frozenset(b)
    return float(jaccard_of_sizes(len(a & b), len(a), len(b)))


def jaccard_of_sizes(common: Any, a: Any, b: Any) -> Any:
    """Compute the Jaccard overlap of pairs of collections from the sizes of a & b, of a, of b; 1 if both are empty."""
    union = a + b - common
    empty = union == 0
    return (common + empty) / (union + empty)
