"""Estimates with 95 % intervals over resampled clusters.

Means and shares over prompts (FRR, CI, CR and CD in Table 1) have percentile intervals:
`ClusterBootstrap` draws the clusters with replacement, and the interval runs from the
2.5th to the 97.5th percentile of the statistic. DR and what else goes through
`studentize` have bootstrap-t intervals. A share of 0 of n or n of n has the exact
(Clopper-Pearson) interval on its clusters instead (`docs/method.md`, Intervals and
comparisons).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import pandas as pd
from scipy.special import betaincinv

Strings: TypeAlias = Sequence[Any] | np.ndarray
Numbers: TypeAlias = Sequence[float] | np.ndarray  # one per prompt, also as a Series

N_RESAMPLES = 2000
SEED = 20251201

MIN_REFUSALS = 30  # CI and CR of fewer rejections than this are flagged

MIN_MIXED = 10
"""With fewer clusters decided both ways than this, intervals are too narrow to judge
DR, rephrasing or the excess.
"""

MAX_SEPARATE_CLUSTERS = 20_000
"""Above this number, equal clusters are resampled together: a million have a few
hundred different contents.
"""

_RESAMPLES_AT_ONCE = 250  # what is computed of so many is held in memory at a time

# A standardized value whose variance in a resample is at most this has no spread there
_MIN_VARIANCE = 1e-9


class _Interval(NamedTuple):
    value: float
    low: float
    high: float


class Estimate(_Interval):
    """An estimate with its 95 % interval, the tuple (value, low, high).

    Attributes
    ----------
    value : float
        NaN if it is undefined.
    low, high : float
        The ends of the interval; NaN if there is none.
    draws : numpy.ndarray, shape (resamples,)
        The statistic in every resample, NaN where it is undefined; paired with those of
        other estimates over the same clusters.

    Examples
    --------
    >>> draws = np.linspace(0, 1, 1001)
    >>> Estimate.percentile(0.5, draws)
    Estimate(0.500 [0.025, 0.975])
    """

    draws: np.ndarray

    def __new__(cls, value: float, low: float, high: float, draws: np.ndarray) -> Self:
        """Make an estimate of value, low and high, and attach its resampled values."""
        made = super().__new__(cls, float(value), float(low), float(high))
        made.draws = draws
        return made

    @classmethod
    def percentile(cls, value: float, draws: np.ndarray) -> Self:
        """Make the estimate with the 2.5th and 97.5th percentile of the defined draws.

        It has no interval if fewer than two draws are defined; if the value is
        undefined, so are all draws.
        """
        if not np.isfinite(value):
            return cls(np.nan, np.nan, np.nan, np.full_like(draws, np.nan))
        known = draws[np.isfinite(draws)]
        if len(known) < 2:
            return cls(value, np.nan, np.nan, draws)
        low, high = np.percentile(known, [2.5, 97.5])
        return cls(value, low, high, draws)

    def __sub__(self, other: "Estimate") -> "Estimate":
        """Subtract an estimate over the same clusters, paired by resample.

        Above `MAX_SEPARATE_CLUSTERS` clusters, resamples are not paired.
        """
        return Estimate.percentile(self.value - other.value, self.draws - other.draws)

    def __repr__(self) -> str:
        return f"Estimate({self.value:.3f} [{self.low:.3f}, {self.high:.3f}])"


class ClusterBootstrap:
    """The clusters of one corpus and their resamples.

    It turns values per prompt into estimates with intervals. Prompts of one cluster are
    resampled together, because they are not independent.

    Parameters
    ----------
    cluster_ids : sequence
        The cluster of each prompt of the corpus; they must be sortable.
    resamples, seed : int
        The same clusters, resampled with the same two, give paired estimates.
    multiplicity : array-like of int or None
        How often each cluster counts, in ascending order of clusters; None: once.

    Attributes
    ----------
    codes : Series of int
        Number of each cluster, by its id.

    Examples
    --------
    >>> clusters = ClusterBootstrap(["a", "a", "b", "c"])
    >>> clusters.share(["a", "a", "b", "c"], [True, True, False, False])
    Estimate(0.500 [0.000, 1.000])
    """

    def __init__(
        self,
        cluster_ids: Strings,
        resamples: int = N_RESAMPLES,
        seed: int = SEED,
        multiplicity: Numbers | None = None,
    ) -> None:
        names = sorted(set(cluster_ids))
        if multiplicity is None:
            multiplicity = np.ones(len(names))
        self.codes = pd.Series(range(len(names)), names)
        self.multiplicity = np.asarray(multiplicity, float)
        self.resamples = resamples
        self.seed = seed

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each cluster is drawn in each resample: (resamples, n_clusters)."""
        n = self.multiplicity.sum()
        rng = np.random.default_rng(self.seed)
        shares = self.multiplicity / n
        return rng.multinomial(int(n), shares, size=self.resamples).astype(float)

    def split_counts(self) -> list[np.ndarray]:
        """Return `counts` in parts of some resamples, to save memory."""
        return np.array_split(self.counts, 1 + self.resamples // _RESAMPLES_AT_ONCE)

    def merge_equal(self, columns: np.ndarray) -> tuple[Self, np.ndarray]:
        """Merge clusters with equal rows of `columns`, if there are very many.

        `columns` has shape (n_clusters, width). Up to `MAX_SEPARATE_CLUSTERS` clusters
        this returns them and `columns` as they are. Above, it returns the merged
        clusters, whose resamples are not paired with these, and their rows.
        """
        if len(self.codes) <= MAX_SEPARATE_CLUSTERS:
            return self, columns
        by_content = pd.Series(self.multiplicity).groupby(list(columns.T), dropna=False)
        times = by_content.sum()
        merged = type(self)(
            range(len(times)), self.resamples, self.seed, times.to_numpy()
        )
        return merged, times.index.to_frame().to_numpy(float)

    def sums(self, cluster_ids: Strings, *columns: Numbers) -> list[np.ndarray]:
        """Sum each column's values within clusters: shapes (n_clusters,)."""
        codes = self.codes.index.get_indexer(cluster_ids)
        return [
            np.bincount(codes, np.asarray(column, float), len(self.codes))
            for column in columns
        ]

    def estimate(
        self, statistic: Callable[..., np.ndarray], n: np.ndarray, *sums: np.ndarray
    ) -> Estimate:
        """Apply a statistic to the corpus and to every resample.

        Parameters
        ----------
        statistic : callable
            Takes the totals of `n` and of each of `sums`, returns an array.
        n, *sums : numpy.ndarray, shape (n_clusters,)
            Values per cluster, and what else is summed by cluster.

        Returns
        -------
        Estimate
            With a percentile interval; without one if fewer than two clusters have
            values, because resampling one cluster shows no spread.
        """
        clusters, merged = self.merge_equal(np.column_stack([n, *sums]))
        columns = list(merged.T.copy())
        totals = [(clusters.multiplicity * column).sum() for column in columns]
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(statistic(*np.array(totals)[:, None])[0])
            draws = statistic(*[clusters.counts @ column for column in columns])
        if np.count_nonzero(n) < 2 and np.isfinite(value):
            return Estimate(value, np.nan, np.nan, draws)
        return Estimate.percentile(value, draws)

    def estimate_from_counts(
        self, statistic: Callable[[np.ndarray], np.ndarray]
    ) -> Estimate:
        """Apply a statistic of how often each cluster counts, for what is no total.

        `statistic` takes counts of shape (draws, n_clusters) and returns shape
        (draws,).
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(statistic(np.ones((1, len(self.codes))))[0])
            draws = [statistic(counts) for counts in self.split_counts()]
        return Estimate.percentile(value, np.concatenate(draws))

    def undefined(self) -> Estimate:
        """Return the estimate of a measure that has no data: NaN throughout."""
        return Estimate(np.nan, np.nan, np.nan, np.full(self.resamples, np.nan))

    def mean(self, cluster_ids: Strings, values: Numbers) -> Estimate:
        """Estimate the mean of per-prompt values; NaN without values.

        Examples
        --------
        >>> clusters = ClusterBootstrap(["a", "a", "b"])
        >>> clusters.mean(["a", "a", "b"], [1, 0, 2]).value
        1.0
        """
        sums = self.sums(cluster_ids, np.ones(len(values)), values)
        return self.estimate(_mean, *sums)

    def share(self, cluster_ids: Strings, hits: Numbers) -> Estimate:
        """Estimate the share of values that hit, with a percentile interval.

        For 0 of n and n of n the interval is exact (binomial) on the clusters.
        """
        hits = np.asarray(hits, bool)
        share = self.mean(cluster_ids, hits)
        if share.value not in (0, 1):
            return share
        n = len(set(cluster_ids))
        low, high = binomial_interval(n if hits.all() else 0, n)
        return Estimate(share.value, low, high, share.draws)

    def deviation(self, cluster_ids: Strings, values: Numbers) -> Estimate:
        """Estimate the standard deviation (n - 1) of per-prompt values.

        NaN if there are fewer than two values.
        """
        values = np.asarray(values, float)
        if len(values) < 2:
            return self.undefined()
        centred = values - values.mean()  # moments of centred values lose no digits
        columns = [np.ones(len(values)), centred, centred**2]
        return self.estimate(_deviation, *self.sums(cluster_ids, *columns))

    def correlation(self, cluster_ids: Strings, x: Numbers, y: Numbers) -> Estimate:
        """Estimate Pearson's r of two per-prompt values.

        NaN if there are fewer than three, or no spread.
        """
        x = np.asarray(x, float)
        y = np.asarray(y, float)
        if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
            return self.undefined()
        a = (x - x.mean()) / x.std()
        b = (y - y.mean()) / y.std()
        columns = [np.ones(len(x)), a, b, a * a, b * b, a * b]
        return self.estimate(_correlation, *self.sums(cluster_ids, *columns))


def _mean(n: np.ndarray, total: np.ndarray) -> np.ndarray:
    return total / n


def _deviation(n: np.ndarray, total: np.ndarray, squares: np.ndarray) -> np.ndarray:
    variance = (squares - total**2 / n) / (n - 1)
    return np.where(n >= 2, np.sqrt(np.maximum(variance, 0.0)), np.nan)


def _correlation(
    n: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    xx: np.ndarray,
    yy: np.ndarray,
    xy: np.ndarray,
) -> np.ndarray:
    """Return Pearson's r from sums of standardized values.

    NaN if a resample leaves no spread but rounding.
    """
    variance_x = xx / n - (x / n) ** 2
    variance_y = yy / n - (y / n) ** 2
    known = (variance_x > _MIN_VARIANCE) & (variance_y > _MIN_VARIANCE)
    r = (xy / n - x * y / n**2) / np.sqrt(variance_x * variance_y)
    return np.where(known, r, np.nan)


Statistic: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From totals, shape (draws, width), to a value, shape (draws,), and its derivatives by
the totals, shape (draws, width).
"""


def estimate_with_error(
    counts: np.ndarray, columns: np.ndarray, statistic: Statistic
) -> tuple[np.ndarray, np.ndarray]:
    """Return a statistic and its standard error, for each row of counts.

    The error is that of the influence of each cluster on the statistic; no cluster is
    left out.

    Parameters
    ----------
    counts : numpy.ndarray, shape (draws, n_clusters)
        How often each cluster counts.
    columns : numpy.ndarray, shape (n_clusters, width)
        What the totals are summed from.
    statistic : callable
        Returns the value of totals and its derivatives (`Statistic`).
    """
    totals = counts @ columns
    value, slopes = statistic(totals)
    influence = slopes @ columns.T  # of each cluster on the value
    squares = (influence**2 * counts).sum(axis=1)
    total_influence = (slopes * totals).sum(axis=1)
    variance = squares - total_influence**2 / counts.sum(axis=1)
    return value, np.sqrt(np.maximum(variance, 0.0))


def bootstrap_t_interval(
    value: float, error: float, centred: np.ndarray
) -> tuple[float, float]:
    """Return the 95 % bootstrap-t interval of a value with a standard error.

    `centred` are the distances of the draws from the value, in standard errors of their
    own; NaN and infinity say nothing, minus infinity counts. The ends are NaN if
    resampling shows no spread.
    """
    known = centred[~np.isnan(centred) & ~np.isposinf(centred)]
    if len(known) < 2 or not error:
        return np.nan, np.nan
    low, high = value - error * np.percentile(known, [97.5, 2.5])
    return float(low), float(high)


def studentize(
    clusters: ClusterBootstrap, columns: np.ndarray, statistic: Statistic
) -> Estimate:
    """Estimate a smooth statistic of totals over clusters, by bootstrap-t.

    Percentile intervals of ratios are too narrow if few prompts count and are in few
    clusters; these are not, because each resample is measured in its own standard error
    (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 12.5).

    Parameters
    ----------
    clusters : ClusterBootstrap
    columns : numpy.ndarray, shape (n_clusters, width)
        What the totals are summed from.
    statistic : callable
        Returns the value of totals and its derivatives (`Statistic`).
    """
    clusters, columns = clusters.merge_equal(columns)
    once = clusters.multiplicity[None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        values, errors = estimate_with_error(once, columns, statistic)
        parts = []
        for counts in clusters.split_counts():
            parts.append(estimate_with_error(counts, columns, statistic))
        draws, draw_errors = np.hstack(parts)
        centred = (draws - values) / draw_errors
        centred[~np.isfinite(centred)] = np.nan
        # A logarithm of 0: whatever its error, it is below all others
        centred[np.isneginf(draws)] = -np.inf
        low, high = bootstrap_t_interval(values[0], errors[0], centred)
    return Estimate(values[0], low, high, draws)


def binomial_interval(hits: float, n: float) -> tuple[float, float]:
    """Return the exact 95 % interval of a share of n > 0 independent trials.

    It is Clopper and Pearson's; n may be an effective number that is not whole.

    Examples
    --------
    >>> low, high = binomial_interval(1, 10)
    >>> round(low, 3), round(high, 3)
    (0.003, 0.445)
    >>> low, high = binomial_interval(0.9 * 30.0, 30.0)
    >>> round(low, 3), round(high, 3)
    (0.735, 0.979)
    """
    low = betaincinv(hits, n - hits + 1, 0.025) if hits else 0.0
    high = betaincinv(hits + 1, n - hits, 0.975) if hits < n else 1.0
    return float(low), float(high)


def to_columns(estimates: Mapping[str, tuple[float, float, float]]) -> dict[str, float]:
    """Turn estimates into columns `name`, `name_low` and `name_high`.

    Examples
    --------
    >>> to_columns({"frr": (0.2, 0.1, 0.3)})
    {'frr': 0.2, 'frr_low': 0.1, 'frr_high': 0.3}
    """
    columns = {}
    for name, (value, low, high) in estimates.items():
        columns[name] = value
        columns[f"{name}_low"] = low
        columns[f"{name}_high"] = high
    return columns
