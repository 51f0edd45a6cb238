"""Decisions as numbers: refused, answered, or set aside (`docs/method.md`, Labels)."""

import numpy as np
from numpy.typing import ArrayLike

LABELS = ("accept", "reject", "blocked", "unparsed")
"""What an answer can be: help, a refusal, stopped by a provider's filter, or nothing that can be read."""


def as_refused(labels: ArrayLike) -> np.ndarray:
    """Turn labels into numbers, as all measures take them.

    Parameters
    ----------
    labels : array-like of str, shape (n,)

    Returns
    -------
    numpy.ndarray of float, shape (n,)
        1 for reject, 0 for accept, NaN for what is neither.

    Examples
    --------
    >>> as_refused(["accept", "reject", "unparsed"])
    array([ 0.,  1., nan])
    """
    labels = np.asarray(labels, object)
    return np.select([labels == "reject", labels == "accept"], [1.0, 0.0], np.nan)
