"""Ratios of totals over clusters that differ in size, as the clusters of logs do."""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from paraguard_lab.core.inference import (
    degrees_of_freedom,
    estimate_difference,
    standard_error,
)
from paraguard_utils.core.estimates import (
    N_RESAMPLES,
    SEED,
    ClusterBootstrap,
    Estimate,
    binomial_interval,
    studentize,
)

_ROUNDING = 1e-9  # a ratio as close as this to 0 or 1 is there

RatioSums: TypeAlias = tuple[np.ndarray, np.ndarray]
"""How much counts in each cluster, and how much of it hits; shapes (n_clusters,)."""


def ratio_of_totals(clusters: ClusterBootstrap, sums: RatioSums) -> Estimate:
    """Estimate a ratio of totals over clusters that differ in size, by bootstrap-t.

    Parameters
    ----------
    clusters : ClusterBootstrap
    sums : (numpy.ndarray, numpy.ndarray), each of shape (n_clusters,)
        How much counts in each cluster, and how much of it hits.

    Returns
    -------
    Estimate
        NaN if nothing counts; a ratio of 0 or 1 has the exact interval on the
        clusters that have a value. A reliable interval needs about 30 prompts, and 10
        clusters that are decided both ways.

    Examples
    --------
    >>> clusters = ClusterBootstrap(["a", "b", "c", "d"])
    >>> n, hits = np.array([3, 2, 4, 1]), np.array([1, 2, 0, 1])
    >>> ratio_of_totals(clusters, (n, hits)).value
    0.4
    """
    if not sums[0].any():
        return clusters.undefined()
    estimate = studentize(clusters, np.column_stack(sums), divide_totals)
    value, low, high = estimate
    if min(value, 1 - value) < _ROUNDING:
        low, high = _interval_at_end(value, sums)
    low, high = np.clip([low, high], 0.0, 1.0)
    return Estimate(value, low, high, estimate.draws)


def _interval_at_end(value: float, sums: RatioSums) -> tuple[float, float]:
    """Return the exact interval of a ratio of 0 or 1, on the clusters that count."""
    n_clusters = int(np.count_nonzero(sums[0]))
    return binomial_interval(n_clusters * round(value), n_clusters)


def share_of_totals(
    clusters: ClusterBootstrap, sums: RatioSums, reduce: bool = False
) -> Estimate:
    """Estimate a ratio of totals that may lie near 0 or 1.

    The interval is Clopper and Pearson's for as many independent trials as would have
    the variance of the resamples, at most as many as count. Where all that does not hit
    lies in few clusters, a bootstrap-t interval ends at 0, and percentiles are too
    narrow (`benchmarks/phrasings.py`).

    Parameters
    ----------
    clusters : ClusterBootstrap
    sums : (numpy.ndarray, numpy.ndarray), each of shape (n_clusters,)
        How much counts in each cluster, and how much of it hits.
    reduce : bool
        Whether the trials are fewer, the fewer clusters make up most of the variance
        (`inference.degrees_of_freedom`).

    Returns
    -------
    Estimate
        NaN if nothing counts; a ratio of 0 or 1 has the exact interval on the
        clusters that have a value.

    Notes
    -----
    Korn and Graubard, Survey Methodology 24 (1998), for proportions of few.

    Examples
    --------
    >>> clusters = ClusterBootstrap(["a", "b", "c", "d"])
    >>> n, hits = np.array([3, 2, 4, 1]), np.array([1, 2, 0, 1])
    >>> share_of_totals(clusters, (n, hits)).value
    0.4
    """
    if not sums[0].any():
        return clusters.undefined()
    estimate = clusters.estimate(lambda n, hits: hits / n, *sums)
    value = estimate.value
    if min(value, 1 - value) < _ROUNDING:
        low, high = _interval_at_end(value, sums)
        return Estimate(value, low, high, estimate.draws)
    error = standard_error(estimate)
    if not error:
        return Estimate(value, np.nan, np.nan, estimate.draws)
    n_trials = min(value * (1 - value) / error**2, sums[0].sum())
    if reduce:
        degrees = degrees_of_freedom(sums[1] - value * sums[0])
        n_trials *= (stdtrit(np.inf, 0.975) / stdtrit(degrees, 0.975)) ** 2
    low, high = binomial_interval(value * n_trials, n_trials)
    return Estimate(value, low, high, estimate.draws)


def subtract_shares(first: Estimate, second: Estimate) -> Estimate:
    """Estimate a share minus another, by Newcombe's combination of their intervals.

    Both are from `share_of_totals` over the same clusters.
    """
    value = first.value - second.value
    low = value - np.hypot(first.value - first.low, second.high - second.value)
    high = value + np.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value, low, high, first.draws - second.draws)


def bound_change(rises: int, falls: int, n_clusters: int) -> tuple[float, float]:
    """Bound the share of clusters that changed, up (positive) and down (negative).

    Resampling shows too little spread where few clusters changed, and none where none
    did. Both ends are Clopper and Pearson's, each wrong in at most 2.5 % of samples.

    Examples
    --------
    No cluster of three changed: 71 % of all clusters may.

    >>> low, high = bound_change(0, 0, 3)
    >>> round(low, 2), round(high, 2)
    (-0.71, 0.71)
    """
    falling = binomial_interval(falls, n_clusters)[1]
    rising = binomial_interval(rises, n_clusters)[1]
    return -falling, rising


def divide_totals(totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what hits over what counts, and its derivatives (`Statistic`)."""
    n, hits = totals.T
    return hits / n, np.stack([-hits / n**2, 1 / n], axis=-1)


def ratio_difference(
    clusters: ClusterBootstrap, first: RatioSums, second: RatioSums
) -> Estimate:
    """Estimate one ratio of totals minus another, by bootstrap-t.

    Both are given as for `ratio_of_totals`; NaN if nothing counts in one.

    Examples
    --------
    >>> clusters = ClusterBootstrap(["a", "b", "c", "d"])
    >>> n, hits = np.array([3, 2, 4, 1]), np.array([1, 2, 0, 1])
    >>> round(ratio_difference(clusters, (n, hits), (n, n - hits)).value, 3)
    -0.2
    """
    if not (first[0].any() and second[0].any()):
        return clusters.undefined()
    sides = [(np.column_stack(sums), divide_totals) for sums in (first, second)]
    difference = estimate_difference(clusters, *sides)
    low, high = np.clip(difference[1:], -1.0, 1.0)
    return Estimate(difference.value, low, high, difference.draws)


def false_refusal_rate(
    refused: ArrayLike,
    cluster: ArrayLike,
    *,
    n_resamples: int = N_RESAMPLES,
    random_state: int = SEED,
) -> Estimate:
    """Estimate the share of harmless requests that are refused.

    Parameters
    ----------
    refused : array-like of float or bool, shape (n,)
        1 refused, 0 answered, NaN set aside.
    cluster : array-like, shape (n,)
        Requests of one cluster ask the same.
    n_resamples, random_state : int
        Number and seed of the resamples of clusters.

    Returns
    -------
    Estimate
        In [0, 1]; exact on clusters if nothing or everything is refused; NaN without a
        decision.

    Notes
    -----
    The interval is a bootstrap-t, which suits logs whose clusters differ in size. That
    of FRR in Table 1 (`analysis.system.System.frr`) is a percentile interval.

    See Also
    --------
    paraguard_lab.core.rephrasing.estimate_refused_requests : The share of requests that
        are refused, once or always.

    Examples
    --------
    >>> false_refusal_rate([1, 0, 0, 0], ["a", "a", "b", "b"]).value
    0.25
    """
    refused = np.asarray(refused, float)
    cluster = np.asarray(cluster)
    clusters = ClusterBootstrap(cluster, n_resamples, random_state)
    n, hits = clusters.sums(cluster, ~np.isnan(refused), refused == 1)
    return ratio_of_totals(clusters, (n, hits))
