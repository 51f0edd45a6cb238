"""Do shared words decide, rather than meaning? DR of chosen pairs of phrasings (ours;
`docs/method.md`).
"""

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, Statistic
from paraguard_utils.core.words import jaccard, split_words

PairRows: TypeAlias = tuple[
    np.ndarray, np.ndarray
]  # first and second rows of pairs, each of shape (pairs,)

LOW_OVERLAP, HIGH_OVERLAP = 0.4, 0.6
"""Pairs that share few words have an overlap below the first; those that share most
reach the second.
"""


class Phrasings(NamedTuple):
    """Decided prompts whose pairs are compared.

    Attributes
    ----------
    cluster : numpy.ndarray, shape (n,)
    refused : numpy.ndarray of float, shape (n,)
        1 refused, 0 answered, NaN set aside.
    style : numpy.ndarray of str, shape (n,)
        How a prompt is written. Two prompts are compared with unrelated prompts of the
        same two styles, so that a style that is refused more often does not count as
        disagreement. One style for all compares with all prompts.
    """

    cluster: np.ndarray
    refused: np.ndarray
    style: np.ndarray


def list_cluster_pairs(cluster: ArrayLike) -> PairRows:
    """Return the rows of all pairs of prompts of one cluster, cluster by cluster.

    Examples
    --------
    >>> first, second = list_cluster_pairs(["a", "b", "a", "a"])
    >>> first.tolist(), second.tolist()
    ([0, 0, 2], [2, 3, 3])
    """
    cluster = np.asarray(cluster)
    rows = pd.Series(range(len(cluster))).groupby(cluster).indices.values()
    made = [pair for own in rows for pair in itertools.combinations(own, 2)]
    first, second = np.array(made, int).reshape(-1, 2).T
    return first, second


def word_overlap(
    texts: Sequence[str], first: np.ndarray, second: np.ndarray
) -> np.ndarray:
    """Compute the Jaccard overlap of the words of pairs of texts, in [0, 1], shape
    (pairs,).

    Examples
    --------
    >>> word_overlap(["How to kill weeds", "kill"], np.array([0]), np.array([1]))
    array([0.25])
    """

    @lru_cache(4096)  # the pairs of one cluster follow each other
    def own(row: int) -> frozenset[str]:
        return frozenset(split_words(texts[row]))

    return np.array(
        [
            jaccard(own(i), own(j))
            for i, j in zip(first.tolist(), second.tolist(), strict=True)
        ]
    )


def _totals(
    clusters: ClusterBootstrap,
    phrasings: Phrasings,
    first: np.ndarray,
    second: np.ndarray,
) -> tuple[np.ndarray, Statistic]:
    """Return the sums by cluster that a DR of pairs is made of, and how its logarithm
    follows from their totals.
    """
    scored, rejected = ~np.isnan(phrasings.refused), phrasings.refused == 1
    names, style = np.unique(phrasings.style.astype(str), return_inverse=True)
    cluster = clusters.codes.loc[phrasings.cluster].to_numpy()
    known = scored[first] & scored[second]
    first, second = first[known], second[known]
    ends = np.sort(np.column_stack([style[first], style[second]]), axis=1)
    combinations, which = np.unique(ends, axis=0, return_inverse=True)
    size, k, m = len(clusters.codes), len(combinations), len(names)

    def table(
        rows: np.ndarray, column: np.ndarray, weights: np.ndarray, width: int
    ) -> np.ndarray:
        """Sum weights by cluster and column."""
        flat = np.bincount(
            rows * width + column, weights=weights.astype(float), minlength=size * width
        )
        return flat.reshape(size, width)

    n = table(cluster, style, scored, m)
    r = table(cluster, style, scored & rejected, m)
    differ = table(
        cluster[first],
        np.zeros(len(first), int),
        rejected[first] != rejected[second],
        1,
    )
    counted = table(cluster[first], which.reshape(-1), np.ones(len(first)), k)
    s, t = combinations.reshape(-1, 2).T
    own = r[:, s] * (n - r)[:, t] + r[:, t] * (n - r)[:, s]
    sums = np.hstack([differ, n, r, counted, own, n[:, s] * n[:, t]])

    def log_ratio(totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ln DR and its derivatives by the totals, shape (draws, 1 + 2 styles +
        3 combinations).
        """
        different, n, r, counted, own, pairs = np.split(
            totals, np.cumsum([1, m, m, k, k]), axis=1
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            pairs = n[:, s] * n[:, t] - pairs
            pairs = np.where(
                counted > 0, pairs, np.inf
            )  # two styles without a pair in a resample do not count
            chance = (r[:, s] * (n - r)[:, t] + r[:, t] * (n - r)[:, s] - own) / pairs
            expected = (counted * chance).sum(axis=1, keepdims=True)
            by = (
                counted / pairs / expected
            )  # derivative of ln(expected) by the numerator of a combination's chance
            by_n, by_r = np.zeros_like(n), np.zeros_like(r)
            for one, other in ((s, t), (t, s)):
                for i in range(k):
                    by_n[:, one[i]] += by[:, i] * (
                        r[:, other[i]] - chance[:, i] * n[:, other[i]]
                    )
                    by_r[:, one[i]] += by[:, i] * (n - 2 * r)[:, other[i]]
            slopes = np.hstack(
                [1 / different, -by_n, -by_r, -chance / expected, by, -by * chance]
            )
            return (np.log(different) - np.log(expected))[:, 0], slopes

    return sums, log_ratio


def estimate_pair_disagreement(
    clusters: ClusterBootstrap, phrasings: Phrasings, ends: PairRows
) -> Estimate:
    """Estimate DR of some pairs of one cluster, with marginals matched by style.

    Pairs not both scored are left out.

    Returns
    -------
    Estimate
        At least 0: 0 if meaning decides, 1 if it does not. Bootstrap-t over clusters on
        the log scale. NaN without a pair, and if nothing could differ.
    """
    return disagreement.bootstrap_log_ratio(
        clusters, *_totals(clusters, phrasings, *ends)
    )


def estimate_pair_difference(
    clusters: ClusterBootstrap, phrasings: Phrasings, one: PairRows, other: PairRows
) -> Estimate:
    """Estimate DR of some pairs minus DR of others by bootstrap-t on the same resampled
    clusters.
    """
    sides = (_totals(clusters, phrasings, *ends) for ends in (one, other))
    return disagreement.estimate_ratio_difference(clusters, *sides)


def too_few_for_pairs(refused: np.ndarray, ends: PairRows) -> bool:
    """Return whether fewer than `disagreement.MIN_DECISIONS_EACH` prompts in the pairs
    are refused, or answered.
    """
    own = refused[np.union1d(*ends)]
    return bool(
        min((own == 1).sum(), (own == 0).sum()) < disagreement.MIN_DECISIONS_EACH
    )
