"""Agreement, shares, differences and corrections for several tests.

They are defined in the method (`docs/method.md`, Intervals and comparisons).
"""

from collections.abc import Callable, Iterable
from statistics import NormalDist

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # scipy.stats takes a second to import

from paraguard_utils.core.estimates import (
    ClusterBootstrap,
    Estimate,
    Numbers,
    Statistic,
    Strings,
    binomial_interval,
    studentize,
    to_columns,
)

_ROUNDING = 1e-12

POWER_ERRORS = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)
"""Standard errors of the smallest change that four of five samples would show."""


def standard_error(estimate: Estimate) -> float:
    """Return the standard deviation of the defined draws; NaN if fewer than two are."""
    known = estimate.draws[np.isfinite(estimate.draws)]
    return float(known.std()) if len(known) > 1 else np.nan


def two_sided_p(estimate: Estimate) -> float:
    """Return the bootstrap p of zero: twice the smaller share of draws on a side.

    NaN if fewer than two draws are defined.
    """
    known = estimate.draws[np.isfinite(estimate.draws)]
    if len(known) < 2:
        return np.nan
    n_beyond = min(np.count_nonzero(known <= 0), np.count_nonzero(known >= 0))
    return float(min(1.0, 2 * (1 + n_beyond) / (1 + len(known))))


def normal_p(estimate: Estimate) -> float:
    """Return the two-sided normal p of an estimate, if the truth is zero.

    The standard error is that of its resamples; if it is 0, p is NaN.
    """
    error = standard_error(estimate)
    if not error or np.isnan(error):
        return np.nan
    return 2 * NormalDist().cdf(-abs(estimate.value) / error)


def estimate_parts(
    clusters: ClusterBootstrap,
    shares: Callable[..., dict[str, np.ndarray]],
    names: Iterable[str],
    sums: Iterable[np.ndarray],
) -> dict[str, Estimate]:
    """Estimate each of the named shares, which a function returns of totals.

    `sums` holds what the totals are summed from, each of shape (n_clusters,).
    """
    return {
        name: clusters.estimate(lambda *totals, of=name: shares(*totals)[of], *sums)
        for name in names
    }


def degrees_of_freedom(influence: np.ndarray) -> float:
    """Return how many degrees of freedom the variance of an estimate has.

    The variance is the sum of squares of the clusters' influences. The fewer clusters
    make up most of it, the less certain it is: Satterthwaite's formula has as many
    degrees as a chi-square variable with the same mean and variance.

    Parameters
    ----------
    influence : numpy.ndarray, shape (n_clusters,)
        Their scale and mean do not matter.

    Returns
    -------
    float
        At most n_clusters - 1.

    Examples
    --------
    Two of 100 clusters make up all of the variance.

    >>> round(degrees_of_freedom(np.array([1.0, -1.0] + 98 * [0.0])), 2)
    4.08
    """
    squares = (influence - influence.mean()) ** 2
    most = len(squares) - 1
    if not squares.any():
        return most
    shares = squares / squares.sum()
    excess = (shares**2).sum() - 1 / len(shares)
    return float(min(2 / excess, most)) if excess > _ROUNDING else most


def jackknife_t(estimate: Estimate, left_out: np.ndarray) -> Estimate:
    """Replace an estimate's interval by that of the jackknife.

    The ends are t quantiles with `degrees_of_freedom`. Percentiles of resamples are too
    narrow if few clusters make up most of the variance (`benchmarks/hangs_on.py`).

    Parameters
    ----------
    estimate : Estimate
    left_out : numpy.ndarray, shape (n_clusters,)
        The value without each of the clusters.

    Returns
    -------
    Estimate
        Without an interval if leaving out one of the clusters makes the value
        undefined, or changes nothing.

    Notes
    -----
    Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 11; Bell and
    McCaffrey, Survey Methodology 28 (2002), for the degrees of freedom.

    Examples
    --------
    The mean of 1, 2 and 6 is 3, with the standard error 1.53 and 2 degrees of freedom.

    >>> mean = Estimate(3.0, np.nan, np.nan, np.array([]))
    >>> jackknife_t(mean, np.array([4.0, 3.5, 1.5]))
    Estimate(3.000 [-3.572, 9.572])
    """
    n = len(left_out)
    error = np.sqrt((n - 1) * left_out.var()) if np.isfinite(left_out).all() else 0.0
    if error < _ROUNDING:
        return Estimate(estimate.value, np.nan, np.nan, estimate.draws)
    reach = stdtrit(degrees_of_freedom(left_out), 0.975) * error
    low, high = estimate.value - reach, estimate.value + reach
    return Estimate(estimate.value, low, high, estimate.draws)


def estimate_kappa(
    clusters: ClusterBootstrap, cluster_ids: Strings, first: Strings, second: Strings
) -> Estimate:
    """Estimate Cohen's kappa of two labellings by any sortable labels, in [-1, 1].

    It is NaN without labels and, in a resample too, if both use one and the same label
    only.

    Examples
    --------
    >>> ids = ["a", "b", "c", "d"]
    >>> estimate_kappa(ClusterBootstrap(ids), ids, [1, 1, 0, 0], [1, 0, 0, 0]).value
    0.5
    """
    first = np.asarray(first)
    second = np.asarray(second)
    columns = [np.ones(len(first)), first == second]
    for label in np.union1d(first, second):
        columns += [first == label, second == label]
    sums = clusters.sums(cluster_ids, *columns)
    return clusters.estimate(_kappa, *sums)


def _kappa(n: np.ndarray, equal: np.ndarray, *uses: np.ndarray) -> np.ndarray:
    """Return Cohen's kappa from how often two labellings use each label.

    `uses` has the first and the second labelling's, label after label.
    """
    both = np.zeros_like(n)
    for first, second in zip(uses[::2], uses[1::2], strict=True):
        both = both + first * second
    chance = both / n**2
    return (equal / n - chance) / (1 - chance)


def share_of_clusters(
    clusters: ClusterBootstrap, cluster_ids: Strings, hits: Numbers
) -> Estimate:
    """Estimate the share of clusters that hit, one value each.

    It has Wilson's interval; NaN without clusters.
    """
    hits = np.asarray(hits, bool)
    if not len(hits):
        return clusters.undefined()
    share = clusters.mean(cluster_ids, hits)
    low, high = wilson_interval(int(hits.sum()), len(hits))
    return Estimate(share.value, low, high, share.draws)


def wilson_interval(hits: int, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of n > 0 independent trials.

    Examples
    --------
    >>> low, high = wilson_interval(1, 10)
    >>> round(low, 3), round(high, 3)
    (0.018, 0.404)
    """
    z = NormalDist().inv_cdf(0.975)
    share = hits / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    spread = np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    spread *= z / (1 + z**2 / n)
    low = centre - spread if hits else 0.0
    high = centre + spread if hits < n else 1.0
    return float(low), float(high)


def estimate_difference(
    clusters: ClusterBootstrap,
    first: tuple[np.ndarray, Statistic],
    second: tuple[np.ndarray, Statistic],
) -> Estimate:
    """Estimate one smooth statistic of totals minus another, by bootstrap-t.

    Each is given by what its totals are summed from, shape (n_clusters, width), and the
    statistic.
    """
    columns, statistic = first
    other_columns, other_statistic = second
    width = columns.shape[1]

    def difference(totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slopes = statistic(totals[:, :width])
        other, other_slopes = other_statistic(totals[:, width:])
        return value - other, np.hstack([slopes, -other_slopes])

    return studentize(clusters, np.hstack([columns, other_columns]), difference)


def exact_share(hits: int, n: int, name: str = "share") -> dict[str, float]:
    """Return `name`, `name`_low and _high, the share of n independent trials.

    The interval is Clopper-Pearson's; NaN if n is 0.
    """
    share = (np.nan, np.nan, np.nan)
    if n:
        low, high = binomial_interval(hits, n)
        share = (hits / n, low, high)
    return to_columns({name: share})


def adjust_holm(p: pd.Series) -> np.ndarray:
    """Adjust p-values for the number of tests, by Holm's step-down procedure.

    The smallest of m p-values is multiplied by m, the next by m - 1, and so on; none
    may become smaller than the one before it, or larger than 1. NaN stays NaN and
    counts as no test.

    Examples
    --------
    >>> adjust_holm(pd.Series([0.01, np.nan, 0.04, 0.03])).round(2)
    array([0.03,  nan, 0.06, 0.06])
    """
    ordered = p.reset_index(drop=True).dropna().sort_values()
    adjusted = ordered * np.arange(len(ordered), 0, -1)
    return adjusted.cummax().clip(upper=1).reindex(range(len(p))).to_numpy(float)
