"""The parts of DR, differences of DR, and clusters counted by their content (ours).

DR itself is in `paraguard_utils.core.disagreement` (`docs/method.md`, Disagreement),
that of chosen pairs in `paraguard_utils.core.wording`.
"""

from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from paraguard_lab.core.inference import estimate_difference
from paraguard_utils.core.disagreement import (
    cluster_sums,
    log_disagreement_ratio,
    sums_by_cluster,
)
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, Statistic
from paraguard_utils.core.wording import MatchedRatio, PairRows, Phrasings

LOW_OVERLAP = 0.4  # pairs that share few words have a smaller overlap
HIGH_OVERLAP = 0.6  # pairs that share most words have at least this overlap


def disagreement_parts(
    n: ArrayLike, rejected: ArrayLike, multiplicity: ArrayLike = 1.0
) -> tuple[float, float, float]:
    """Return D_within, D_between and DR of clusters.

    Parameters
    ----------
    n, rejected : array-like of int, shape (clusters,)
        Scored prompts of each cluster, at least two, and rejected ones.
    multiplicity : array-like of float
        How often each cluster counts.

    Returns
    -------
    tuple of float
        The probabilities, in [0, 1], that two prompts of one cluster, and of two, are
        decided differently, and their ratio. NaN if all prompts are decided alike or
        there are fewer than two clusters.

    Examples
    --------
    >>> within, between, ratio = disagreement_parts([2, 2, 2], [1, 0, 2])
    >>> round(within, 3), round(between, 3), round(ratio, 3)
    (0.333, 0.667, 0.5)
    """
    sums = cluster_sums(n, rejected)
    times = np.broadcast_to(multiplicity, len(sums)).astype(float)
    shares, total, _, refused, opposite_own, own_pairs = times @ sums
    pairs = total**2 - own_pairs
    if not pairs:
        return np.nan, np.nan, np.nan
    within = shares / total
    between = (2 * refused * (total - refused) - opposite_own) / pairs
    ratio = within / between if between else np.nan
    return float(within), float(between), float(ratio)


def estimate_ratio_difference(
    clusters: ClusterBootstrap,
    first: tuple[np.ndarray, Statistic],
    second: tuple[np.ndarray, Statistic],
) -> Estimate:
    """Estimate one ratio of totals minus another by bootstrap-t.

    Each is given by what its totals are summed from, shape (n_clusters, width), and
    its logarithm as a function of these totals (`bootstrap_log_ratio`).
    """
    sides = []
    for sums, log_ratio in (first, second):
        sides.append((sums, partial(_exponentiate, log_ratio)))
    return estimate_difference(clusters, *sides)


def _exponentiate(
    log_ratio: Statistic, totals: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return a ratio of totals and its derivatives, from those of its logarithm."""
    value, slopes = log_ratio(totals)
    ratio = np.exp(value)
    return ratio, ratio[:, None] * slopes


def estimate_disagreement_difference(
    clusters: ClusterBootstrap, first: pd.DataFrame, second: pd.DataFrame
) -> Estimate:
    """Estimate DR of some decisions minus DR of others about the same clusters.

    Both come from `count_decisions`.

    Examples
    --------
    >>> from paraguard_utils.core.disagreement import count_decisions
    >>> cluster = ["a", "a", "b", "b", "c", "c"]
    >>> first = count_decisions([1, 0, 0, 0, 1, 1], cluster)
    >>> second = count_decisions([0, 0, 0, 0, 1, 1], cluster)
    >>> clusters = ClusterBootstrap(cluster)
    >>> round(estimate_disagreement_difference(clusters, first, second).value, 3)
    0.5
    """
    return estimate_ratio_difference(
        clusters,
        (sums_by_cluster(clusters, first), log_disagreement_ratio),
        (sums_by_cluster(clusters, second), log_disagreement_ratio),
    )


def estimate_pair_difference(
    clusters: ClusterBootstrap, phrasings: Phrasings, pairs: PairRows, minus: PairRows
) -> Estimate:
    """Estimate DR of some pairs minus DR of others, on the same resampled clusters.

    The parameters are those of `core.wording.estimate_pair_disagreement`.
    """
    first = MatchedRatio(clusters, phrasings, pairs)
    second = MatchedRatio(clusters, phrasings, minus)
    return estimate_ratio_difference(
        clusters, (first.sums, first.log_ratio), (second.sums, second.log_ratio)
    )


def cluster_profiles(decided: pd.DataFrame) -> pd.DataFrame:
    """Count clusters with equal n and rejected in a column `times`.

    A million prompts have a few dozen profiles.

    Examples
    --------
    >>> cluster_profiles(pd.DataFrame({"n": [2, 2], "rejected": [1, 1]}))
       n  rejected  times
    0  2         1      2
    """
    return decided.groupby(["n", "rejected"]).size().rename("times").reset_index()
