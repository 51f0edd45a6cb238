"""Pairs of wordings of one request in a log, whose requests may have many."""

import numpy as np
import pandas as pd

from paraguard_utils.core.estimates import SEED
from paraguard_utils.core.wording import PairRows

MAX_CLUSTER_PAIRS = 1_000
"""At most so many pairs of one cluster are compared: all of a cluster of 45."""


def draw_cluster_pairs(cluster: np.ndarray) -> PairRows:
    """Return the rows of pairs of prompts of one cluster, cluster by cluster.

    They are all pairs, as `core.wording.list_cluster_pairs` lists them. Of a cluster
    that has more than `MAX_CLUSTER_PAIRS`, so many are drawn, the same in every call:
    pairs grow with the square of a cluster, and one of 10,000 prompts has fifty
    million.

    Examples
    --------
    >>> first, second = draw_cluster_pairs(np.array(["a", "b", "a", "a"]))
    >>> first.tolist(), second.tolist()
    ([0, 0, 2], [2, 3, 3])
    """
    rows = pd.Series(np.arange(len(cluster)))
    rng = np.random.default_rng(SEED)
    parts = [(rows.to_numpy()[:0],) * 2]
    for _, own in rows.groupby(cluster):
        first, second = _choose_pairs(len(own), rng)
        members = own.to_numpy()
        parts.append((members[first], members[second]))
    firsts, seconds = zip(*parts, strict=True)
    return np.concatenate(firsts), np.concatenate(seconds)


def _choose_pairs(n: int, rng: np.random.Generator) -> PairRows:
    """Return pairs of n places in order: all of them, or so many drawn at random."""
    ends = np.cumsum(np.arange(n - 1, 0, -1))  # of the pairs that begin with a place
    n_pairs = n * (n - 1) // 2
    if n_pairs > MAX_CLUSTER_PAIRS:
        numbers = np.sort(rng.choice(n_pairs, MAX_CLUSTER_PAIRS, replace=False))
    else:
        numbers = np.arange(n_pairs)
    first = np.searchsorted(ends, numbers, side="right")
    last = n - 1 - (ends[first] - numbers - 1)
    return first, last
