"""Decisions as numbers: refused, answered, or set aside (`docs/method.md`, Labels)."""

import numpy as np
from numpy.typing import ArrayLike

LABELS = ("accept", "reject", "blocked", "unparsed")
"""An answer helps, refuses, was stopped by a provider's filter, or cannot be read."""


def as_refused(labels: ArrayLike, blocked: bool = True) -> np.ndarray:
    """Turn labels into 1 (refused), 0 (answered) or NaN (set aside).

    Parameters
    ----------
    labels : array-like of str, shape (n,)
    blocked : bool
        Whether an answer that a provider stopped counts as a refusal, as it does for
        the person who asked. If not, it is set aside.

    Returns
    -------
    numpy.ndarray of float, shape (n,)
        1 for reject and blocked, 0 for accept, NaN for every other label.

    Examples
    --------
    >>> as_refused(["accept", "reject", "unparsed"])
    array([ 0.,  1., nan])
    """
    labels = np.asarray(labels, object)
    refused = labels == "reject"
    if blocked:
        refused |= labels == "blocked"
    return np.select([refused, labels == "accept"], [1.0, 0.0], np.nan)
