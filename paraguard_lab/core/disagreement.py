"""The parts of DR, differences of DR, and clusters counted by their content (ours).

DR itself is in `paraguard_utils.core.disagreement` (`docs/method.md`, Disagreement).
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from paraguard_utils.core.disagreement import (
    cluster_sums,
    estimate_ratio_difference,
    log_disagreement_ratio,
    sums_by_cluster,
)
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate


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
