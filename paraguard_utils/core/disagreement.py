"""Does meaning decide? How often paraphrases are decided differently (`docs/method.md`, Disagreement). All of it ours.

Nothing but decisions is used, so that any system can be measured: a model, a guard, a file of somebody's logs.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special

from paraguard_utils.core.estimates import (
    MIN_MIXED,
    RESAMPLES,
    SEED,
    ClusterBootstrap,
    Estimate,
    Statistic,
    studentized,
    to_columns,
)

MIN_DECISIONS = 100
"""Fewer rejections, or fewer acceptances, than this, and the interval of DR is too narrow."""

PERMUTATIONS = 999

NODES = 64
"""Nodes of the quadrature over a cluster's intercept."""

MOST = 100
"""Scored prompts of a cluster up to which the quadrature resolves its likelihood; beyond, nothing is estimated."""

LARGEST = 20.0
"""Largest standard deviation of the intercepts that is looked for: a correlation of 0.9975."""


def disagreement_ratio(
    refused: ArrayLike, cluster: ArrayLike, *, n_resamples: int = RESAMPLES, random_state: int = 0
) -> Estimate:
    """Estimate DR: how often paraphrases are decided differently, over how often unrelated prompts are.

    Parameters
    ----------
    refused : array-like of float or bool, shape (n,)
        1 refused, 0 answered, NaN set aside.
    cluster : array-like, shape (n,)
        Prompts of one cluster ask the same.
    n_resamples, random_state : int
        Of the clusters. Estimates over the same clusters, at most `estimates.MANY`, with the same two are paired:
        subtract one from the other.

    Returns
    -------
    Estimate
        At least 0: 0 where meaning decides, 1 where it does not. The interval is a bootstrap-t on the log scale; it
        covers what it says from about 100 refusals, 100 answers and 10 clusters decided both ways (`too_few`).

    See Also
    --------
    isolation : The share of each refusal's paraphrases that are answered.
    paraguard_utils.core.rephrasing.rephrasing_odds : How often asking again helps.

    Notes
    -----
    It is one minus the intra-class correlation of the decision, and near one minus Fleiss' kappa.

    Examples
    --------
    >>> round(disagreement_ratio([1, 0, 0, 0, 1, 1], ["a", "a", "b", "b", "c", "c"]).value, 3)
    0.5
    """
    decided = count_decisions(refused, cluster)
    return estimate(ClusterBootstrap(decided["cluster_id"], n_resamples, random_state), decided)


def count_decisions(refused: ArrayLike, cluster: ArrayLike) -> pd.DataFrame:
    """Count the decisions of each cluster.

    Parameters
    ----------
    refused : array-like of float or bool, shape (n,)
        1 refused, 0 answered, NaN set aside.
    cluster : array-like, shape (n,)
        Prompts of one cluster ask the same.

    Returns
    -------
    DataFrame, one row per cluster with at least two decisions
        cluster_id, n (decisions), rejected; clusters in ascending order.

    Examples
    --------
    >>> count_decisions([1, 0, 1, 1, 0], ["a", "a", "a", "b", "c"])
      cluster_id  n  rejected
    0          a  3         2
    """
    refused = np.asarray(refused, float)
    frame = pd.DataFrame({"cluster_id": np.asarray(cluster), "n": ~np.isnan(refused), "rejected": refused == 1})
    found = frame.groupby("cluster_id").sum().reset_index()
    return found[found["n"] >= 2].reset_index(drop=True)


def cluster_profiles(decided: pd.DataFrame) -> pd.DataFrame:
    """Count clusters that are alike: columns n, rejected and times; a million prompts have a few dozen profiles."""
    return decided.groupby(["n", "rejected"]).size().rename("times").reset_index()


def ratio(n: ArrayLike, rejected: ArrayLike, times: ArrayLike = 1.0) -> tuple[float, float, float]:
    """Return D_within, D_between and DR of clusters.

    Parameters
    ----------
    n, rejected : array-like of int, shape (clusters,)
        Scored prompts of a cluster, at least two, and rejected ones.
    times : array-like of float
        How often a cluster counts.

    Returns
    -------
    tuple of float
        The probabilities, in [0, 1], that two prompts of one cluster, and of two, are decided differently, and their
        ratio. NaN where all is decided alike or there are fewer than two clusters.
    """
    columns = _columns(n, rejected)
    a, total, _, refused, b, squares = np.broadcast_to(times, len(columns)).astype(float) @ columns
    pairs = total**2 - squares
    if not pairs:
        return np.nan, np.nan, np.nan
    within, between = a / total, (2 * refused * (total - refused) - b) / pairs
    return float(within), float(between), float(within / between) if between else np.nan


def ratios(n: ArrayLike, rejected: ArrayLike, times: np.ndarray) -> np.ndarray:
    """Return DR of the same clusters under several counts, and of several decisions.

    Parameters
    ----------
    n : array-like of int, shape (clusters,)
        At least two.
    rejected : array-like of int, shape (clusters,) or (draws, clusters)
    times : numpy.ndarray, shape (draws, clusters)

    Returns
    -------
    numpy.ndarray, shape (draws,)
    """
    columns = _columns(n, rejected)
    value, _ = _log_ratio(times @ columns if columns.ndim == 2 else np.einsum("dc,dck->dk", times, columns))
    return _unlogged(value)


def estimate(clusters: ClusterBootstrap, decided: pd.DataFrame) -> Estimate:
    """Estimate DR, bootstrap-t on the log scale over a corpus's resampled clusters.

    Parameters
    ----------
    clusters : ClusterBootstrap
        Shared by all targets, so that their draws are paired.
    decided : DataFrame
        From `count_decisions`.

    Returns
    -------
    Estimate
        NaN where DR is; without an interval where no cluster is decided both ways.
    """
    return bootstrap_t(clusters, _by_cluster(clusters, decided))


def _by_cluster(clusters: ClusterBootstrap, decided: pd.DataFrame) -> np.ndarray:
    """Return `_columns` in the order of the clusters, 0 for one without decisions."""
    columns = np.zeros((len(clusters.codes), 6))
    columns[clusters.codes.loc[decided["cluster_id"]]] = _columns(decided["n"], decided["rejected"])
    return columns


def difference(clusters: ClusterBootstrap, one: pd.DataFrame, other: pd.DataFrame) -> Estimate:
    """Estimate DR of some decisions minus that of others about the same clusters; bootstrap-t.

    Parameters
    ----------
    clusters : ClusterBootstrap
    one, other : DataFrame
        From `count_decisions`.
    """
    sides = [(_by_cluster(clusters, decided), _log_ratio) for decided in (one, other)]
    return difference_of_ratios(clusters, *sides)


def difference_of_ratios(
    clusters: ClusterBootstrap, one: tuple[np.ndarray, Statistic], other: tuple[np.ndarray, Statistic]
) -> Estimate:
    """Estimate a ratio of totals minus another, each given by its columns and its logarithm; bootstrap-t."""
    width = one[0].shape[1]

    def statistic(totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (a, up), (b, down) = one[1](totals[:, :width]), other[1](totals[:, width:])
        a, b = np.exp(a), np.exp(b)
        return a - b, np.hstack([a[:, None] * up, -b[:, None] * down])

    found = studentized(clusters, np.hstack([one[0], other[0]]), statistic)
    return Estimate(found.value, *found.ends(), found.draws)


def estimate_of_profiles(profiles: pd.DataFrame, resamples: int = RESAMPLES, seed: int = SEED) -> Estimate:
    """Estimate DR as `estimate` does, from `cluster_profiles`: as fast for a million clusters as for ten."""
    clusters = ClusterBootstrap(profiles.index, resamples, seed, profiles["times"])
    return estimate(clusters, profiles.assign(cluster_id=profiles.index))


def estimate_near(
    groups: np.ndarray,
    rejected: np.ndarray,
    near: np.ndarray,
    near_rejected: np.ndarray,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Estimate:
    """Estimate DR without clusters: the paraphrases of a prompt are its near neighbours.

    Parameters
    ----------
    groups : numpy.ndarray of int, shape (n,)
        Prompts that are resampled together.
    rejected : numpy.ndarray of bool, shape (n,)
    near, near_rejected : numpy.ndarray of int, shape (n,)
        Neighbours of each prompt, itself left out, and the rejected ones among them.
    resamples, seed : int

    Returns
    -------
    Estimate
        NaN where all is decided alike, where no prompt has a neighbour, and where all are neighbours of all.
    """
    other = np.where(rejected, near - near_rejected, near_rejected).astype(float)
    share = np.divide(other, near, out=np.zeros(len(other)), where=near > 0)
    values = np.stack([share, near > 0, np.ones(len(other)), rejected, other, near + 1.0], axis=-1)
    columns = np.stack([np.bincount(groups, weights=column) for column in values.astype(float).T], axis=-1)
    return bootstrap_t(ClusterBootstrap(np.arange(len(columns)), resamples, seed), columns)


def _columns(n: ArrayLike, rejected: ArrayLike) -> np.ndarray:
    """Return what DR is made of, summed over clusters: shape (clusters, 6)."""
    n, r = np.broadcast_arrays(np.asarray(n, float), np.asarray(rejected, float))
    opposite = 2 * r * (n - r)
    return np.stack([opposite / (n - 1), n, n, r, opposite, n * n], axis=-1)


def _log_ratio(totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ln DR and its derivatives by the six totals; totals have shape (..., 6).

    The totals: shares of paraphrases decided otherwise; prompts with a paraphrase; prompts; rejections; ordered pairs
    of paraphrases decided differently; ordered pairs of no two meanings, a prompt with itself among them.
    """
    a, paired, n, r, b, own = np.moveaxis(totals, -1, 0)
    different, pairs = 2 * r * (n - r) - b, n**2 - own
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log(a) - np.log(paired) - np.log(different) + np.log(pairs)
        slopes = [1 / a, -1 / paired, 2 * n / pairs - 2 * r / different, (4 * r - 2 * n) / different]
        slopes += [1 / different, -1 / pairs]
    return value, np.stack(slopes, axis=-1)


def _unlogged(value: np.ndarray) -> np.ndarray:
    """Return DR from ln DR: 0 where no cluster is decided both ways, NaN where it is undefined."""
    return np.where(np.isneginf(value), 0.0, np.exp(np.where(np.isfinite(value), value, np.nan)))


def bootstrap_t(clusters: ClusterBootstrap, columns: np.ndarray, log_ratio: Statistic = _log_ratio) -> Estimate:
    """Return a ratio of totals with its interval, bootstrap-t on the log scale.

    Parameters
    ----------
    clusters, columns
        As for `studentized`.
    log_ratio : callable
        The logarithm of the ratio.

    Returns
    -------
    Estimate
        0 without an interval where the logarithm is minus infinity, NaN where it is undefined.
    """
    found = studentized(clusters, columns, log_ratio)
    ratios = _unlogged(found.draws)
    if np.isneginf(found.value):
        return Estimate(0.0, np.nan, np.nan, ratios)
    if not np.isfinite(found.value):
        return Estimate(np.nan, np.nan, np.nan, np.full(len(found.draws), np.nan))
    # A resample without a cluster decided both ways lies infinitely far below.
    found.centred[np.isneginf(found.draws)] = -np.inf
    with np.errstate(over="ignore"):
        low, high = np.exp(found.ends())
    # A handful of clusters may bound nothing.
    return Estimate(np.exp(found.value), low, high if np.isfinite(high) else np.nan, ratios)


def isolation(refused: ArrayLike, cluster: ArrayLike) -> np.ndarray:
    """Return the share of each refusal's paraphrases that are answered.

    Parameters
    ----------
    refused, cluster : array-like, shape (n,)
        As for `count_decisions`.

    Returns
    -------
    numpy.ndarray of float, shape (n,)
        In [0, 1]; NaN for what is not refused and where the cluster has no other decision.

    See Also
    --------
    disagreement_ratio : The same for all decisions, against what unrelated prompts have.
    paraguard_utils.core.rephrasing.rephrasing_odds : The same over several tries.

    Examples
    --------
    >>> isolation([1, 0, 0, 1, 0], ["a", "a", "a", "a", "b"])
    array([0.66666667,        nan,        nan, 0.66666667,        nan])
    """
    refused = np.asarray(refused, float)
    by_cluster = pd.DataFrame({"n": ~np.isnan(refused), "answered": refused == 0}).groupby(np.asarray(cluster))
    there = by_cluster.transform("sum")
    with np.errstate(divide="ignore", invalid="ignore"):
        share = there["answered"].to_numpy() / (there["n"].to_numpy() - 1)
    return np.where((refused == 1) & (there["n"] > 1), share, np.nan)


def permuted(alike: pd.DataFrame, permutations: int = PERMUTATIONS, seed: int = SEED) -> tuple[float, float]:
    """Deal the rejections out anew over all scored prompts.

    Parameters
    ----------
    alike : DataFrame
        From `cluster_profiles`.
    permutations, seed : int

    Returns
    -------
    mean : float
        Mean DR of the permutations: 1 but for chance.
    p : float
        One-sided, in (0, 1]: (1 + permutations with a DR as low) / (1 + permutations). NaN where DR is undefined.
    """
    observed = ratio(alike["n"], alike["rejected"], alike["times"])[2]
    if not np.isfinite(observed):
        return np.nan, np.nan
    sizes = np.repeat(alike["n"].to_numpy(), alike["times"])
    rejected = int((alike["rejected"] * alike["times"]).sum())
    rng = np.random.default_rng(seed)
    drawn = np.empty(permutations)
    for number in range(permutations):
        dealt = rng.multivariate_hypergeometric(sizes, rejected, method="marginals")
        drawn[number] = ratio(sizes, dealt)[2]
    # Two ways to the same ratio differ in the last digits.
    return float(drawn.mean()), float((1 + np.count_nonzero(drawn <= observed + 1e-12)) / (1 + permutations))


def latent(alike: pd.DataFrame) -> tuple[float, float, float]:
    """Estimate the latent intra-cluster correlation of the decision: a probit model with normal intercepts.

    Parameters
    ----------
    alike : DataFrame
        From `cluster_profiles`.

    Returns
    -------
    value, low, high : float
        In [0, 1]; maximum likelihood and its 95 % profile interval. NaN where all is decided alike, and where a cluster
        has more than `MOST` scored prompts.
    """
    from scipy import optimize, stats  # a second to import

    n, r, times = (alike[name].to_numpy(float) for name in ("n", "rejected", "times"))
    total, refused = (n * times).sum(), (r * times).sum()
    if not 0 < refused < total or n.max() > MOST:
        return np.nan, np.nan, np.nan
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = np.log(weights / weights.sum())

    def loss(location: float, spread: float) -> float:
        """Return minus the log likelihood; `location` is the probit of the overall rate."""
        reach = location * np.sqrt(1 + spread**2) + spread * nodes
        each = r[:, None] * special.log_ndtr(reach) + (n - r)[:, None] * special.log_ndtr(-reach)
        return -float(times @ special.logsumexp(each + weights, axis=1))

    start = stats.norm.ppf(refused / total)

    def profile(correlation: float) -> float:
        spread = np.sqrt(correlation / (1 - correlation))
        found = optimize.minimize_scalar(loss, (start - 0.1, start + 0.1), args=(spread,), options={"xtol": 1e-6})
        return float(found.fun)

    end = LARGEST**2 / (1 + LARGEST**2)
    best = optimize.minimize_scalar(profile, bounds=(0.0, end), method="bounded", options={"xatol": 1e-5})
    value, least = (0.0, profile(0.0)) if profile(0.0) <= best.fun else (float(best.x), float(best.fun))
    limit = least + stats.chi2.ppf(0.95, 1) / 2

    def beyond(correlation: float) -> float:
        return profile(correlation) - limit

    low = 0.0 if beyond(0.0) <= 0 else float(optimize.brentq(beyond, 0.0, value, xtol=1e-5))
    high = 1.0 if beyond(end) <= 0 else float(optimize.brentq(beyond, value, end, xtol=1e-5))
    return value, low, high


def row(decided: pd.DataFrame) -> dict[str, Any]:
    """Return what Table 1 says of DR beside its estimate.

    Parameters
    ----------
    decided : DataFrame
        From `count_decisions`.

    Returns
    -------
    dict
        d_within, d_between, icc_latent with its interval, dr_permuted and p_dr (`permuted`), few_dr: fewer than
        `MIN_DECISIONS` rejections or acceptances.
    """
    alike = cluster_profiles(decided)
    within, between, _ = ratio(alike["n"], alike["rejected"], alike["times"])
    value, low, high = latent(alike)
    mean, p = permuted(alike)
    return {
        "d_within": within,
        "d_between": between,
        **to_columns({"icc_latent": (value, low, high)}),
        "dr_permuted": mean,
        "p_dr": p,
        "few_dr": too_few(decided),
    }


def too_few(decided: pd.DataFrame) -> bool:
    """Return whether there are too few rejections, acceptances or clusters decided both ways for an interval of DR."""
    refused, total = decided["rejected"].sum(), decided["n"].sum()
    mixed = ((decided["rejected"] > 0) & (decided["rejected"] < decided["n"])).sum()
    return bool(min(refused, total - refused) < MIN_DECISIONS or mixed < MIN_MIXED)
