"""Words of a text, and how many two texts share."""

import re
from collections.abc import Hashable, Iterable
from typing import Any, overload

import numpy as np

WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


def words(text: str) -> list[str]:
    """Return the lower-cased word tokens of a text, in order, typographic apostrophes made plain."""
    return WORD.findall(text.lower().replace("’", "'"))


def jaccard(a: Iterable[Hashable], b: Iterable[Hashable]) -> float:
    """Jaccard overlap |a & b| / |a | b| of two word collections, in [0, 1]; 1 when both are empty."""
    a, b = frozenset(a), frozenset(b)
    return jaccard_of_sizes(len(a & b), len(a), len(b))


@overload
def jaccard_of_sizes(common: int, a: int, b: int) -> float: ...
@overload
def jaccard_of_sizes(common: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray: ...
def jaccard_of_sizes(common: Any, a: Any, b: Any) -> Any:
    """Jaccard overlap of two collections, or of many pairs at once, from their sizes.

    Parameters
    ----------
    common, a, b : int or numpy.ndarray of int, shapes that broadcast
        Sizes of a & b, of a and of b.

    Returns
    -------
    float or numpy.ndarray, in [0, 1]
        1 where both are empty.
    """
    union = a + b - common
    empty = union == 0  # 0 of 0 counts as 1 of 1
    return (common + empty) / (union + empty)
