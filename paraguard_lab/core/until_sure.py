"""Stop asking a model when its DR is certainly above or below a limit (ours).

The bounds may be looked at as often as one likes (`docs/method.md`, Disagreement).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils.core.disagreement import (
    cluster_sums,
    count_decisions,
    log_disagreement_ratio,
    too_few_for_disagreement,
)

CLUSTERS_AT_ONCE = 10  # clusters that are decided between two looks at DR


def disagreement_so_far(
    decided: pd.DataFrame, planned: int, alpha: float = 0.1
) -> tuple[float, float, float]:
    """Estimate DR of the clusters decided so far, with bounds that hold at any stop.

    Parameters
    ----------
    decided : DataFrame
        From `count_decisions`, of clusters in random order.
    planned : int
        Clusters that are asked at most; the bounds are narrowest at half of them.
    alpha : float
        Probability that DR is outside the bounds at any time, half of it on either
        side.

    Returns
    -------
    value, low, high : float
        NaN where DR is, and the bounds if they rest on too little
        (`too_few_for_disagreement`).

    Notes
    -----
    An asymptotic confidence sequence on the log scale (Waudby-Smith et al., arXiv
    2103.06476, theorem 2.2).
    """
    sums = cluster_sums(decided["n"], decided["rejected"])
    value, slopes = log_disagreement_ratio(sums.sum(axis=0))
    if not np.isfinite(value) or too_few_for_disagreement(decided):
        return float(np.exp(value)), np.nan, np.nan
    n_clusters = len(decided)
    influence = sums @ slopes
    variance = (influence**2).sum() - influence.sum() ** 2 / n_clusters
    error = np.sqrt(max(variance, 0.0))
    # rho^2 of the theorem, times the clusters so far
    log_alpha = np.log(alpha)
    rho = (-2 * log_alpha + np.log(1 - 2 * log_alpha)) / (planned / 2) * n_clusters
    half = error * np.sqrt(2 * (rho + 1) / rho * np.log(np.sqrt(rho + 1) / alpha))
    value, low, high = np.exp([value, value - half, value + half]).tolist()
    return value, low, high


class EarlyVerdict(NamedTuple):
    """The verdict on DR when asking stopped.

    Attributes
    ----------
    verdict : str
        worse (than the limit), not worse, or too little to say.
    value, low, high : float
        DR, with the bounds of `disagreement_so_far`.
    limit : float
    rows, clusters : int
        How many prompts were decided, in how many clusters.
    planned : int
        How many clusters there are.
    """

    verdict: str
    value: float
    low: float
    high: float
    limit: float
    rows: int
    clusters: int
    planned: int

    @property
    def line(self) -> str:
        """One line for a log."""
        return (
            f"{self.verdict} after {self.clusters} of {self.planned} clusters,"
            f" {self.rows} prompts: DR {self.value:.2f} [{self.low:.2f},"
            f" {self.high:.2f}] against {self.limit:g}"
        )


def judge_until_sure(
    order: np.ndarray, decide: Callable[[np.ndarray], pd.DataFrame], limit: float
) -> EarlyVerdict:
    """Decide clusters until it is certain whether DR is above a limit.

    Each verdict is wrong in at most 5 % of runs.

    Parameters
    ----------
    order : numpy.ndarray
        Cluster ids in random order; `CLUSTERS_AT_ONCE` are decided at a time.
    decide : callable
        Takes cluster ids and returns a frame with the columns cluster_id and refused
        (1, 0 or NaN).
    limit : float

    Examples
    --------
    Half of the wordings of each of 100 requests are refused, so that DR is above 1.

    >>> prompts = pd.DataFrame({"cluster_id": np.repeat(np.arange(100), 4)})
    >>> prompts["refused"] = [0, 1, 0, 1] * 100
    >>> def decide(clusters):
    ...     return prompts[prompts["cluster_id"].isin(clusters)]
    >>> judge_until_sure(np.arange(100), decide, limit=1.0).line
    'worse after 50 of 100 clusters, 200 prompts: DR 1.33 [1.33, 1.33] against 1'
    """
    verdict = "too little to say"
    parts: list[pd.DataFrame] = []
    value, low, high = np.nan, np.nan, np.nan
    rows = pd.DataFrame(columns=["cluster_id", "refused"])
    for start in range(0, len(order), CLUSTERS_AT_ONCE):
        decisions = decide(order[start : start + CLUSTERS_AT_ONCE])
        parts.append(decisions[["cluster_id", "refused"]])
        rows = pd.concat(parts)
        decided = count_decisions(rows["refused"], rows["cluster_id"])
        value, low, high = disagreement_so_far(decided, len(order))
        if low > limit:
            verdict = "worse"
            break
        if high <= limit:
            verdict = "not worse"
            break
    n_clusters = rows["cluster_id"].nunique()
    return EarlyVerdict(
        verdict, value, low, high, limit, len(rows), n_clusters, len(order)
    )
