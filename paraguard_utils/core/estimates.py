"""Estimates with 95 % intervals over resampled clusters (`docs/method.md`, Intervals
and comparisons).

Most intervals are percentile intervals over resampled clusters; ratios of totals have
bootstrap-t intervals. A share of 0 of n or n of n has the exact (Clopper-Pearson)
interval on its clusters instead.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple, Self, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import pandas as pd

# A standardized value whose variance in a resample is at most this has no spread there
_MIN_VARIANCE = 1e-9

Strings: TypeAlias = Sequence[Any] | np.ndarray
Numbers: TypeAlias = (
    Sequence[float] | np.ndarray
)  # one value per prompt, also as a Series

N_RESAMPLES = 2000
_RESAMPLES_AT_ONCE = 250  # resamples whose influences are held in memory at a time

MAX_SEPARATE_CLUSTERS = 20_000
"""Above this number, equal clusters are resampled together: a million have a few
hundred different contents.
"""

SEED = 20251201
POWER_ERRORS = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)
"""Standard errors of the smallest change that four of five samples would show."""

MIN_REFUSALS = 30  # CI and CR of fewer rejections than this are flagged

MIN_MIXED = 10
"""With fewer clusters decided both ways than this, percentile intervals are too narrow
to judge the excess.
"""


class _Interval(NamedTuple):
    value: float
    low: float
    high: float


class Estimate(_Interval):
    """An estimate with its 95 % interval: (value, low, high).

    Attributes
    ----------
    value : float
        NaN if it is undefined.
    low, high : float
        The ends of the interval; NaN if there is none.
    draws : numpy.ndarray, shape (resamples,)
        The statistic in every resample, NaN where it is undefined; paired with those of
        other estimates over the same clusters.
    """

    draws: np.ndarray

    def __new__(cls, value: float, low: float, high: float, draws: np.ndarray) -> Self:
        """Make an estimate of value, low and high, and attach its resampled values."""
        made = super().__new__(cls, float(value), float(low), float(high))
        made.draws = draws
        return made

    @classmethod
    def percentile(cls, value: float, draws: np.ndarray) -> Self:
        """Make the estimate whose interval runs from the 2.5th to the 97.5th percentile
        of the defined draws.

        It has no interval if fewer than two draws are defined; if the value is
        undefined, so are all draws.
        """
        known = draws[np.isfinite(draws)]
        if not np.isfinite(value):
            return cls(np.nan, np.nan, np.nan, np.full_like(draws, np.nan))
        low, high = (
            np.percentile(known, [2.5, 97.5]) if len(known) > 1 else (np.nan, np.nan)
        )
        return cls(value, low, high, draws)

    @property
    def error(self) -> float:
        """The standard deviation of the defined draws; NaN below two of them."""
        known = self.draws[np.isfinite(self.draws)]
        return float(known.std()) if len(known) > 1 else np.nan

    @property
    def p(self) -> float:
        """Two-sided bootstrap p of zero: twice the smaller share of draws on a side.

        NaN below two defined draws.
        """
        known = self.draws[np.isfinite(self.draws)]
        beyond = 1 + min(np.count_nonzero(known <= 0), np.count_nonzero(known >= 0))
        return (
            float(min(1.0, 2 * beyond / (1 + len(known)))) if len(known) > 1 else np.nan
        )

    def __sub__(self, other: "Estimate") -> "Estimate":
        """Subtract an estimate over the same clusters, at most `MAX_SEPARATE_CLUSTERS`,
        paired by resample.
        """
        return Estimate.percentile(self[0] - other[0], self.draws - other.draws)

    def __repr__(self) -> str:
        return f"Estimate({self.value:.3f} [{self.low:.3f}, {self.high:.3f}])"


class ClusterBootstrap:
    """The clusters of one corpus and their resamples: turns per-prompt values into
    estimates with intervals.

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
    """

    def __init__(
        self,
        cluster_ids: Strings,
        resamples: int = N_RESAMPLES,
        seed: int = SEED,
        multiplicity: Numbers | None = None,
    ) -> None:
        self.codes = pd.Series(
            {name: i for i, name in enumerate(sorted(set(cluster_ids)))}
        )
        self.multiplicity = (
            np.ones(len(self.codes))
            if multiplicity is None
            else np.asarray(multiplicity, float)
        )
        self.drawn_with = (resamples, seed)

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each cluster is drawn in each resample, shape (resamples,
        n_clusters).
        """
        return _draw_counts(*self.drawn_with, tuple(self.multiplicity.tolist()))

    def merge_equal(self, columns: np.ndarray) -> tuple[Self, np.ndarray]:
        """Merge clusters with equal rows of `columns`, (n_clusters, width), above
        `MAX_SEPARATE_CLUSTERS`.

        Returns the clusters, whose resamples are not paired with these once merged, and
        their rows.
        """
        if len(self.codes) <= MAX_SEPARATE_CLUSTERS:
            return self, columns
        frame = pd.DataFrame(columns)
        found = (
            pd.Series(self.multiplicity)
            .groupby([frame[name].to_numpy() for name in frame], dropna=False)
            .sum()
        )
        merged = type(self)(range(len(found)), *self.drawn_with, found.to_numpy())
        return merged, found.index.to_frame().to_numpy(float)

    def sums(self, cluster_ids: Strings, values: Numbers) -> np.ndarray:
        """Sum values within clusters: shape (n_clusters,)."""
        return self._totals(cluster_ids, values)[0]

    def _totals(self, cluster_ids: Strings, *columns: Numbers) -> list[np.ndarray]:
        """Sum each column within clusters.

        Looking clusters up takes longer than summing.
        """
        codes, n = self.codes.index.get_indexer(cluster_ids), len(self.codes)
        return [
            np.bincount(codes, weights=np.asarray(column, float), minlength=n)
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
        own, columns = self.merge_equal(np.column_stack([n, *sums]))
        sums = (n, *sums) if own is self else tuple(columns.T)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(
                statistic(
                    *(np.array([(own.multiplicity * column).sum()]) for column in sums)
                )[0]
            )
            draws = statistic(*(own.counts @ column for column in sums))
        if np.count_nonzero(n) < 2 and np.isfinite(value):
            return Estimate(value, np.nan, np.nan, draws)
        return Estimate.percentile(value, draws)

    def undefined(self) -> Estimate:
        """Return the estimate of a measure that has no data: NaN throughout."""
        return Estimate(np.nan, np.nan, np.nan, np.full(self.drawn_with[0], np.nan))

    def mean(self, cluster_ids: Strings, values: Numbers) -> Estimate:
        """Estimate the mean of per-prompt values; NaN without values."""
        columns = self._totals(cluster_ids, np.ones(len(values)), values)
        return self.estimate(lambda n, total: total / n, *columns)

    def share(self, cluster_ids: Strings, hits: Numbers) -> Estimate:
        """Estimate the share of values that hit, by resampling clusters.

        Exact (binomial) for 0 of n and n of n.
        """
        hits = np.asarray(hits, bool)
        found = self.mean(cluster_ids, hits)
        if not len(hits) or hits.any() != hits.all():
            return found
        n = len(set(cluster_ids))
        return Estimate(
            found.value, *binomial_interval(n if hits.all() else 0, n), found.draws
        )

    def share_of_clusters(self, cluster_ids: Strings, hits: Numbers) -> Estimate:
        """Estimate the share of clusters that hit (one value each), with Wilson's
        interval; NaN without clusters.
        """
        hits = np.asarray(hits, bool)
        if not len(hits):
            return self.undefined()
        found = self.mean(cluster_ids, hits)
        return Estimate(
            found.value,
            *binomial_interval(int(hits.sum()), len(hits), "wilson"),
            found.draws,
        )

    def deviation(self, cluster_ids: Strings, values: Numbers) -> Estimate:
        """Estimate the standard deviation (n - 1) of per-prompt values.

        NaN below two values.
        """
        values = np.asarray(values, float)
        if len(values) < 2:
            return self.undefined()
        centred = values - values.mean()  # moments of centred values lose no digits
        return self.estimate(
            _deviation,
            *self._totals(cluster_ids, np.ones(len(values)), centred, centred**2),
        )

    def correlation(self, cluster_ids: Strings, x: Numbers, y: Numbers) -> Estimate:
        """Estimate Pearson's r of two per-prompt values.

        NaN below three values or without spread.
        """
        x, y = np.asarray(x, float), np.asarray(y, float)
        if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
            return self.undefined()
        a, b = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
        columns = (np.ones(len(x)), a, b, a * a, b * b, a * b)
        return self.estimate(_correlation, *self._totals(cluster_ids, *columns))

    def kappa(self, cluster_ids: Strings, first: Strings, second: Strings) -> Estimate:
        """Estimate Cohen's kappa of two labellings by any sortable labels, in [-1, 1].

        It is NaN without labels and, in a resample too, if both use one and the same
        label only.
        """
        first, second = np.asarray(first), np.asarray(second)
        uses = [
            side == label
            for label in np.union1d(first, second)
            for side in (first, second)
        ]
        cells = (np.ones(len(first)), first == second, *uses)
        return self.estimate(_kappa, *self._totals(cluster_ids, *cells))


Statistic: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Totals, shape (draws, width), to a value, shape (draws,), and its derivatives by the
totals.
"""


class Studentized(NamedTuple):
    """A statistic of totals over clusters and its studentized resamples, which its
    bootstrap-t interval is read from.

    Attributes
    ----------
    value, error : float
        The statistic, and its standard error from the influence of each cluster
        (linear, no cluster left out).
    draws : numpy.ndarray, shape (resamples,)
        The statistic in the resamples.
    centred : numpy.ndarray, shape (resamples,)
        Distances of the draws from the value, in their own standard errors; NaN if
        undefined or infinite.
    """

    value: float
    error: float
    draws: np.ndarray
    centred: np.ndarray

    def ends(self) -> tuple[float, float]:
        """Return the interval on the scale of the value.

        NaN if resampling shows no spread.
        """
        known = self.centred[~np.isnan(self.centred) & ~np.isposinf(self.centred)]
        if len(known) < 2 or not self.error:
            return np.nan, np.nan
        with np.errstate(invalid="ignore"):
            low, high = self.value - self.error * np.percentile(known, [97.5, 2.5])
        return float(low), float(high)


def studentize(
    clusters: ClusterBootstrap, columns: np.ndarray, statistic: Statistic
) -> Studentized:
    """Resample a smooth statistic of totals over clusters, and give each resample its
    own standard error.

    Percentile intervals of ratios are too narrow where few prompts count and lie in few
    clusters; these are not (Efron and Tibshirani, An Introduction to the Bootstrap,
    1993, section 12.5). `columns`, shape (n_clusters, width), holds what the totals are
    summed from.
    """
    clusters, columns = clusters.merge_equal(columns)
    own, counts = clusters.multiplicity, clusters.counts

    def with_error(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        totals = weights @ columns
        value, slopes = statistic(totals)
        spread = ((slopes @ columns.T) ** 2 * weights).sum(axis=1)
        spread -= (slopes * totals).sum(axis=1) ** 2 / own.sum()
        return value, np.sqrt(np.maximum(spread, 0.0))

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value, error = (float(found[0]) for found in with_error(own[None]))
        parts = [
            with_error(counts[i : i + _RESAMPLES_AT_ONCE])
            for i in range(0, len(counts), _RESAMPLES_AT_ONCE)
        ]
        draws, errors = (np.concatenate(one) for one in zip(*parts, strict=True))
        centred = (draws - value) / errors
    return Studentized(
        value, error, draws, np.where(np.isfinite(centred), centred, np.nan)
    )


def ratio_of_totals(
    clusters: ClusterBootstrap, *sides: tuple[np.ndarray, np.ndarray]
) -> Estimate:
    """Estimate a ratio of totals over clusters that differ in size, or the difference
    of two, by bootstrap-t.

    Parameters
    ----------
    *sides : (numpy.ndarray, numpy.ndarray), each of shape (n_clusters,)
        How much counts in each cluster, and how much of it hits. Two sides give the
        first ratio minus the second.

    Returns
    -------
    Estimate
        NaN if nothing counts; a single ratio of 0 or 1 has the exact interval on the
        clusters that have a value. A reliable interval needs about 30 prompts, and 10
        clusters that are decided both ways.
    """
    if not all(n.sum() for n, _ in sides):
        return clusters.undefined()
    signs = (1, -1)[: len(sides)]

    def statistic(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, hits = sums[:, ::2], sums[:, 1::2]
        slopes = np.stack([-hits / n**2, 1 / n], axis=-1) * np.array(signs)[:, None]
        return (hits / n) @ signs, slopes.reshape(len(sums), -1)

    found = studentize(
        clusters,
        np.column_stack([column for side in sides for column in side]),
        statistic,
    )
    (low, high), bounds = found.ends(), (-1.0 if len(sides) > 1 else 0.0, 1.0)
    if len(sides) == 1 and min(found.value, 1 - found.value) < _MIN_VARIANCE:
        there = int(np.count_nonzero(sides[0][0]))
        low, high = binomial_interval(there * round(found.value), there)
    return Estimate(
        found.value,
        float(np.clip(low, *bounds)),
        float(np.clip(high, *bounds)),
        found.draws,
    )


def exact_share(hits: int, n: int, name: str = "share") -> dict[str, float]:
    """Return `name`, `name`_low and _high, the share of n independent trials
    (Clopper-Pearson, 95 %); NaN if n is 0.
    """
    return to_columns(
        {
            name: (
                (hits / n, *binomial_interval(hits, n))
                if n
                else (np.nan, np.nan, np.nan)
            )
        }
    )


_DRAWN: WeakValueDictionary[tuple[Any, ...], np.ndarray] = WeakValueDictionary()


def _draw_counts(
    resamples: int, seed: int, multiplicity: tuple[float, ...]
) -> np.ndarray:
    """Draw resamples, or return those of other clusters that are the same, while these
    are in use.
    """
    key = (resamples, seed, multiplicity)
    drawn = _DRAWN.get(key)
    if drawn is None:
        weights = np.array(multiplicity)
        total = weights.sum()
        drawn = (
            np.random.default_rng(seed)
            .multinomial(int(total), weights / total, size=resamples)
            .astype(float)
        )
        drawn.flags.writeable = False
        _DRAWN[key] = drawn
    return drawn


# Scipy takes half a millisecond, and the same few are asked for again and again
@lru_cache
def binomial_interval(hits: int, n: int, method: str = "exact") -> tuple[float, float]:
    """Return the 95 % interval of a share of independent trials, exact
    (Clopper-Pearson) or by Wilson; n > 0.
    """
    from scipy.stats import binomtest  # a second to import

    low, high = binomtest(hits, n).proportion_ci(method=method)
    return float(low), float(high)


def adjust_holm(p: pd.Series) -> np.ndarray:
    """Adjust p-values by Holm; NaN stays NaN and counts as no test.

    Examples
    --------
    >>> adjust_holm(pd.Series([0.01, np.nan, 0.04, 0.03])).round(2)
    array([0.03,  nan, 0.06, 0.06])
    """
    adjusted, order = (
        np.full(len(p), np.nan),
        np.argsort(p.to_numpy(float))[: p.notna().sum()],
    )  # NaN sorts last
    # Not statsmodels', which collects all garbage of the process in each of hundreds of
    # calls.
    adjusted[order] = np.maximum.accumulate(
        p.to_numpy(float)[order] * np.arange(len(order), 0, -1)
    ).clip(max=1.0)
    return adjusted


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
    spreads = xx / n - (x / n) ** 2, yy / n - (y / n) ** 2
    known = (spreads[0] > _MIN_VARIANCE) & (spreads[1] > _MIN_VARIANCE)
    return np.where(
        known, (xy / n - x * y / n**2) / np.sqrt(spreads[0] * spreads[1]), np.nan
    )


def _kappa(n: np.ndarray, equal: np.ndarray, *uses: np.ndarray) -> np.ndarray:
    """Return Cohen's kappa from how often the first and the second labelling use each
    label, label after label.
    """
    chance = (
        sum(first * second for first, second in zip(uses[::2], uses[1::2], strict=True))
        / n**2
    )
    return (equal / n - chance) / (1 - chance)


def to_columns(estimates: Mapping[str, tuple[float, float, float]]) -> dict[str, float]:
    """Turn estimates, name to (value, low, high), into columns `name`, `name_low`,
    `name_high`.
    """
    return {
        f"{name}{end}": value
        for name, triple in estimates.items()
        for end, value in zip(("", "_low", "_high"), triple, strict=True)
    }
