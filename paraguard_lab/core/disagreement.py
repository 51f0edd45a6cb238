"""The parts of DR, differences of DR, and clusters counted by their content (ours).

DR itself is in `paraguard_utils.core.disagreement` (`docs/method.md`, Disagreement),
that of chosen pairs in `paraguard_utils.core.wording`.
"""

from functools import partial
from typing import NamedTuple

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
    return _divide_sums(times @ sums)


def _divide_sums(totals: np.ndarray) -> tuple[float, float, float]:
    """Return D_within, D_between and DR from the totals of `cluster_sums`."""
    shares, _, total, refused, opposite_own, own_pairs = totals
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


def disagreement_range(outcomes: pd.DataFrame) -> tuple[float, float]:
    """Bound DR by what undecided prompts could have been.

    Parameters
    ----------
    outcomes : DataFrame
        n (decided prompts of a cluster), rejected, and undecided.

    Returns
    -------
    low, high : float
        No decision of the undecided prompts gives a DR outside of them. Both are DR if
        nothing is undecided, and NaN if it is undefined; high is infinite if all
        prompts might be decided alike.

    Notes
    -----
    D_within is largest if the undecided prompts of each cluster bring it as near to
    half refused as they can, and smallest if they bring it as far from there. D_between
    is bounded by itself, so that the bounds are not always attained.

    Examples
    --------
    >>> outcomes = pd.DataFrame({"n": [2, 2, 1], "rejected": [1, 0, 1]})
    >>> low, high = disagreement_range(outcomes.assign(undecided=[0, 0, 1]))
    >>> round(low, 3), round(high, 3)
    (0.5, 1.333)
    """
    n = (outcomes["n"] + outcomes["undecided"]).to_numpy(float)
    fewest = outcomes["rejected"].to_numpy(float)
    most = fewest + outcomes["undecided"].to_numpy(float)
    same = np.zeros(len(n))
    near = np.clip(n // 2, fewest, most)
    return _bound_ratio(_RefusalRange(n, fewest, most, near, same, same))


def wordings_range(
    low: np.ndarray, high: np.ndarray, cluster: np.ndarray
) -> tuple[float, float]:
    """Bound DR over wordings that were run several times (`sum_wordings`).

    Parameters
    ----------
    low, high : numpy.ndarray of float, shape (wordings,)
        The share of a wording's runs that are refused, if all undecided ones were
        answers, and refusals.
    cluster : numpy.ndarray of int, shape (wordings,)
        Numbers from 0.

    Returns
    -------
    low, high : float
        As `disagreement_range` returns them.

    Notes
    -----
    D_within is linear in each share, so that it is largest and smallest if every share
    is at one of its ends.

    Examples
    --------
    The third wording was run twice: one run was refused, and the other is undecided.

    >>> low, high = np.array([1.0, 0, 0.5, 0]), np.array([1.0, 0, 1, 0])
    >>> least, most = wordings_range(low, high, np.array([0, 0, 1, 1]))
    >>> round(least, 3), round(most, 3)
    (1.333, 2.286)
    """
    n = np.bincount(cluster).astype(float)
    fewest, most = np.bincount(cluster, low), np.bincount(cluster, high)
    ends = np.stack([low * (1 - low), high * (1 - high)])
    same_least = np.bincount(cluster, 2 * ends.min(axis=0))
    same_most = np.bincount(cluster, 2 * ends.max(axis=0))
    near = np.clip(n / 2, fewest, most)
    return _bound_ratio(_RefusalRange(n, fewest, most, near, same_least, same_most))


class _RefusalRange(NamedTuple):
    """What the undecided prompts of each cluster allow, each of shape (clusters,).

    `near` is the number of refusals, from `fewest` to `most`, that is nearest to half
    of the n prompts. `same_least` and `same_most` bound the pairs of runs of one
    wording that are decided differently.
    """

    n: np.ndarray
    fewest: np.ndarray
    most: np.ndarray
    near: np.ndarray
    same_least: np.ndarray
    same_most: np.ndarray


def _bound_ratio(clusters: _RefusalRange) -> tuple[float, float]:
    """Bound D_within and D_between, each by itself, and return bounds of DR."""
    several = clusters.n >= 2
    n, fewest, most, near, same_least, same_most = (
        values[several] for values in clusters
    )
    total = n.sum()
    pairs = total**2 - (n**2).sum()
    if not pairs:
        return np.nan, np.nan
    far = np.where(n / 2 - fewest >= most - n / 2, fewest, most)
    mixed_least = 2 * far * (n - far)
    mixed_most = 2 * near * (n - near)
    others_least = np.maximum(mixed_least - same_most, 0.0)
    within_low = (others_least / (n - 1)).sum() / total
    within_high = ((mixed_most - same_least) / (n - 1)).sum() / total

    all_near = np.clip(total / 2, fewest.sum(), most.sum())
    ends = np.array([fewest.sum(), most.sum()])
    all_far = ends[np.abs(ends - total / 2).argmax()]
    between_low = (2 * all_far * (total - all_far) - mixed_most.sum()) / pairs
    between_high = (2 * all_near * (total - all_near) - mixed_least.sum()) / pairs
    if between_high <= 0:
        return np.nan, np.nan
    high = within_high / between_low if between_low > 0 else np.inf
    return float(within_low / between_high), float(high)


def bound_disagreement_change(sums: np.ndarray, share: float) -> tuple[float, float]:
    """Bound by how much DR changes if a share of the clusters is decided otherwise.

    `sums` is from `cluster_sums`, or from `sum_wordings`; the clusters may be any.

    Returns
    -------
    low, high : float
        At most 0, and at least 0; NaN if DR is undefined or may become so.
    """
    within, between, ratio = _divide_sums(sums.sum(axis=0))
    if not np.isfinite(ratio):
        return np.nan, np.nan
    there = sums[sums[:, 2] > 0]
    n, rejected = there[:, 2], there[:, 3]
    half = n // 2
    # Of each cluster that changes, at most so much of all prompts, and of D_within
    weights = n / n.mean()
    mixed = (weights * 2 * half * (n - half) / (n * (n - 1))).max() * share
    rate = rejected.sum() / n.sum()
    moved = weights.max() * share
    rates = np.clip([rate - moved, rate, rate + moved], 0.0, 1.0)
    spreads = rates * (1 - rates)
    widest = 0.25 if rates[0] <= 0.5 <= rates[-1] else spreads.max()
    if not spreads.min():
        return np.nan, np.nan
    low = max(within - mixed, 0.0) / (between * widest / spreads[1])
    high = (within + mixed) / (between * spreads.min() / spreads[1])
    return float(low - ratio), float(high - ratio)


class WordingSums(NamedTuple):
    """What DR is summed from if texts are repeated, each of shape (clusters, 6).

    The columns are those of `cluster_sums`. `wordings` is about two different texts of
    a cluster, `repeats` about two answers to one text: chance.
    """

    wordings: np.ndarray
    repeats: np.ndarray


def sum_wordings(
    refused: np.ndarray, cluster: np.ndarray, wording: np.ndarray, n_clusters: int
) -> WordingSums:
    """Sum what DR over wordings, and over repeats of one wording, follows from.

    Every wording counts once, with the share of its repeats that are refused: a row
    that is written again changes nothing but chance.

    Parameters
    ----------
    refused : numpy.ndarray of float, shape (n,)
        1 refused, 0 answered, NaN set aside.
    cluster, wording : numpy.ndarray of int, shape (n,)
        Numbers from 0; no wording is in two clusters.
    n_clusters : int

    Examples
    --------
    One text is refused twice, and another one of the cluster answered: the two texts
    differ, and the repeats do not.

    >>> refused, wording = np.array([1.0, 1, 0]), np.array([0, 0, 1])
    >>> sums = sum_wordings(refused, np.zeros(3, int), wording, 1)
    >>> float(sums.wordings[0, 0]), float(sums.repeats[0, 0])
    (2.0, 0.0)
    """
    rows = pd.DataFrame({"wording": wording, "cluster": cluster, "refused": refused})
    texts = (
        rows.dropna()
        .groupby("wording")
        .agg(
            cluster=("cluster", "first"), n=("refused", "size"), hits=("refused", "sum")
        )
    )
    code = texts["cluster"].to_numpy()
    n = np.bincount(code, minlength=n_clusters).astype(float)
    share = (texts["hits"] / texts["n"]).to_numpy()
    refusals = np.bincount(code, share, n_clusters)
    answers = n - refusals
    others = n[code] - 1
    opposite = share * (answers[code] - (1 - share))
    opposite += (1 - share) * (refusals[code] - share)
    several = np.where(n >= 2, 1.0, 0.0)
    common = [n, refusals, 2 * refusals * answers, n * n]

    differ = np.divide(opposite, others, out=np.zeros(len(code)), where=others > 0)
    by_wording = [np.bincount(code, differ, n_clusters), n, *common]
    times = texts["n"].to_numpy(float)
    is_repeated = times >= 2
    unequal = 2 * share * (1 - share) * times
    differ = np.divide(unequal, times - 1, out=np.zeros(len(code)), where=is_repeated)
    by_repeat = [
        np.bincount(code, differ, n_clusters),
        np.bincount(code, is_repeated, n_clusters),
        *common,
    ]
    return WordingSums(
        np.stack(by_wording, axis=-1) * several[:, None],
        np.stack(by_repeat, axis=-1),
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
