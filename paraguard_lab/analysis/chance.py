"""Compare confusion scores with chance (`docs/method.md`, Chance)."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_lab.analysis.excess import (
    cluster_excess,
    estimate_excess,
    without_prob_shift,
)
from paraguard_lab.analysis.tokens import trace_lengths
from paraguard_utils.analysis import signals
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, to_columns
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.core.vectors import find_nearest
from paraguard_utils.schemas import Table

PAIR_BINS = {"similarity": 20, "length": 3}
"""Bins in which pairs are matched, each of as many rejected-accepted pairs (ours)."""

N_CONTRAST_BINS = 10
CANDIDATE_DEPTH = 16  # nearest prompts of a permutation if all are accepted
MAX_CANDIDATE_DEPTH = 400

CURVE_TAUS = np.linspace(0, 1, 21).round(2)
N_LABEL_PERMUTATIONS = 999


# Matched pairs
# -------------


def mark_paired(system: System) -> np.ndarray:
    """Mark the scored prompts with another scored prompt in their cluster."""
    in_pair = system.prompts["cluster_id"].isin(system.decided["cluster_id"])
    return system.is_scored & in_pair.to_numpy()


def describe_wording(system: System) -> pd.DataFrame:
    """Describe the length and the perplexity of each prompt.

    Parameters
    ----------
    system : System
        With traces.

    Returns
    -------
    DataFrame
        By prompt_id: cluster_id; length, ln tokens of the user's own words; ppl, ln of
        their perplexity.
    """
    wording = pd.DataFrame(
        {
            "cluster_id": system.prompts["cluster_id"].to_numpy(),
            "length": np.log(trace_lengths(system.traces)),
            "ppl": np.log(signals.trace_perplexity(system.traces)),
        }
    )
    return wording.set_index(system.prompts["prompt_id"].to_numpy())


def add_matching_columns(pairs: pd.DataFrame, wording: pd.DataFrame) -> pd.DataFrame:
    """Add the columns on which pairs are matched.

    Parameters
    ----------
    pairs : DataFrame
        A pairs file.
    wording : DataFrame
        From `describe_wording`.

    Returns
    -------
    DataFrame
        The pairs with cluster_id (of the centre), length and contrast: the absolute
        differences of length and ppl.
    """
    centre = wording.loc[pairs["centre_id"]].reset_index(drop=True)
    neighbour = wording.loc[pairs["neighbour_id"]].reset_index(drop=True)
    return pairs.assign(
        cluster_id=centre["cluster_id"].to_numpy(),
        length=(centre["length"] - neighbour["length"]).abs().to_numpy(),
        contrast=(centre["ppl"] - neighbour["ppl"]).abs().to_numpy(),
    )


def number_strata(
    pairs: pd.DataFrame, bins: Mapping[str, int] = PAIR_BINS
) -> np.ndarray:
    """Return the strata of pairs: same_cluster combined with binned columns.

    Bins end at the inner quantiles of the rejected-accepted pairs (column
    centre_label), interpolated; a value on an end lies in the bin above. The ends are
    the same in every resample.

    Returns
    -------
    numpy.ndarray of int, shape (pairs,)
    """
    rejected = _is_rejected(pairs)
    if not rejected.any():
        return np.zeros(len(pairs), int)
    columns = [pairs["same_cluster"].to_numpy()]
    for name, n_bins in bins.items():
        values = pairs[name].to_numpy()
        columns.append(_number_bins(values, _find_ends(values[rejected], n_bins)))
    return pd.factorize(pd.MultiIndex.from_arrays(columns))[0]


def _is_rejected(pairs: pd.DataFrame) -> np.ndarray:
    """Mark the pairs that begin at a rejection."""
    return (pairs["centre_label"] == "reject").to_numpy()


def _find_ends(reference: np.ndarray, n_bins: int) -> np.ndarray:
    """Return the inner ends of bins that hold equal counts of reference values."""
    shares = np.linspace(0, 1, n_bins + 1)[1:-1]
    # Rounded, so that a value that an end should equal does not fall beside it.
    return np.unique(np.quantile(reference.round(12), shares).round(12))


def _number_bins(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return each value's bin."""
    return np.searchsorted(ends, values.round(12), side="right")


def matched_excess(
    clusters: ClusterBootstrap,
    pairs: pd.DataFrame,
    stratum: np.ndarray,
    values: np.ndarray,
) -> tuple[Estimate, Estimate, float]:
    """Compare rejected-accepted pairs with accepted-accepted pairs of the same strata.

    Parameters
    ----------
    clusters : ClusterBootstrap
    pairs : DataFrame
        cluster_id and centre_label of each pair.
    stratum : numpy.ndarray of int, shape (pairs,)
        From `number_strata`.
    values : numpy.ndarray of float, shape (pairs,)

    Returns
    -------
    floor : Estimate
        Mean value of accepted-accepted pairs, with strata weighted as they hold
        rejected-accepted pairs.
    excess : Estimate
        Mean value of rejected-accepted pairs minus the floor.
    matched : float
        Share of rejected-accepted pairs in a stratum that has accepted-accepted ones;
        NaN without any.
    """
    shape = (2, len(clusters.codes), stratum.max(initial=0) + 1)
    code = clusters.codes.loc[pairs["cluster_id"]].to_numpy()
    side = _is_rejected(pairs).astype(int)
    cell = np.ravel_multi_index((side, code, stratum), shape)
    n_cells = np.prod(shape)
    n = np.bincount(cell, minlength=n_cells).reshape(shape)
    totals = np.bincount(cell, values, n_cells).reshape(shape)

    def estimate_mean(kind: int) -> Estimate:
        """Estimate the mean of a kind of pairs, with the strata of the rejected."""

        def mean(counts: np.ndarray) -> np.ndarray:
            has_both = (counts @ n[1] > 0) & (counts @ n[0] > 0)
            weight = np.where(has_both, counts @ n[1], 0)
            means = np.where(has_both, (counts @ totals[kind]) / (counts @ n[kind]), 0)
            return (weight * means).sum(-1) / weight.sum(-1)

        return clusters.estimate_from_counts(mean)

    floor = estimate_mean(0)
    has_accepted = n[0].sum(axis=0)[stratum[side == 1]] > 0
    matched = float(pd.Series(has_accepted).mean())
    return floor, estimate_mean(1) - floor, matched


def excess_at_equal_contrast(
    clusters: ClusterBootstrap,
    pairs: pd.DataFrame,
    values: np.ndarray | pd.Series,
    contrast: np.ndarray | pd.Series,
) -> Estimate:
    """Estimate the primary excess among pairs of equal perplexity contrast (ours).

    Parameters
    ----------
    clusters : ClusterBootstrap
    pairs : DataFrame
        cluster_id and centre_label of each pair.
    values, contrast : numpy.ndarray or Series of float, shape (pairs,)

    Returns
    -------
    Estimate
        NaN if no cluster has both kinds of pairs, or if the contrast alone determines
        which pairs are rejected.

    Notes
    -----
    It is the coefficient of "rejected" in a weighted regression inside clusters on
    "rejected" and the contrast, as 1 - exp(-contrast) and in `N_CONTRAST_BINS` bins,
    which are the same in every resample. The coefficient of "rejected" alone would be
    `estimate_excess`.
    """
    kinds_of_cluster = pairs.groupby("cluster_id")["centre_label"].transform("nunique")
    kept = (kinds_of_cluster == 2).to_numpy()
    if not kept.any():
        return clusters.undefined()
    pairs = pairs[kept]
    contrast = np.asarray(contrast)[kept]
    rejected = _is_rejected(pairs)
    code = clusters.codes.loc[pairs["cluster_id"]].to_numpy()
    ends = _find_ends(contrast[rejected], N_CONTRAST_BINS)
    bins = _number_bins(contrast, ends)
    columns = [rejected, 1 - np.exp(-contrast)]
    columns += [bins == number for number in range(1, len(ends) + 1)]
    columns.append(np.asarray(values)[kept])
    table = np.column_stack(columns).astype(float)
    # Both kinds of pairs have a weight of 1 in every cluster.
    kinds = [code, rejected]
    centre = pd.DataFrame(table).groupby(kinds).mean().groupby(level=0).mean()
    table -= centre.loc[code].to_numpy()
    width = table.shape[1]
    products = (table[:, :, None] * table[:, None, :]).reshape(len(table), -1)
    sums = pd.DataFrame(products).groupby(kinds).mean().groupby(level=0).sum()
    sums = sums.reindex(clusters.codes, fill_value=0).to_numpy()

    def coefficient(counts: np.ndarray) -> np.ndarray:
        total = (counts @ sums).reshape(-1, width, width)
        # Take out of "rejected" and of the values what the contrast explains of both
        # (Frisch and Waugh, Econometrica 1, 1933).
        inverse = np.linalg.pinv(total[:, 1:-1, 1:-1], hermitian=True)
        explained = total[:, [0, -1], 1:-1] @ inverse @ total[:, 1:-1, [0]]
        variance = total[:, 0, 0] - explained[:, 0, 0]
        covariance = total[:, -1, 0] - explained[:, 1, 0]
        is_free = variance > 1e-9 * total[:, 0, 0]
        return np.where(is_free, covariance / variance, np.nan)

    return clusters.estimate_from_counts(coefficient)


def estimate_against_floors(
    system: System, pairs: pd.DataFrame, interpretation: str
) -> tuple[dict[str, Estimate], float]:
    """Compare a system's confusion with matched floors, and signal by signal.

    Parameters
    ----------
    system : System
    pairs : DataFrame
        Its pairs, from `add_matching_columns`.
    interpretation : str
        Of the PPL contrast.

    Returns
    -------
    estimates : dict of str to Estimate
        floor_matched and excess_matched (secondary), over the k nearest accepted
        prompts. Over accepted prompts of the same cluster: excess, the primary excess
        of the score; excess_drift, excess_prob_shift and excess_ppl, that of each
        signal alone; excess_equal_contrast and excess_equal_contrast_no_prob_shift.
    matched : float
        The share of rejected-accepted pairs that have a matched floor.
    """
    clusters = system.clusters
    weights = system.scoring.weights
    near = pairs[signals.is_ranked(pairs, system.scoring.k)]
    scores = signals.score_pairs(near, weights, interpretation).to_numpy()
    strata = number_strata(near)
    floor, excess, matched = matched_excess(clusters, near, strata, scores)
    estimates = {"floor_matched": floor, "excess_matched": excess}
    in_cluster = pairs[pairs["same_cluster"]]
    values = signals.score_pairs(in_cluster, weights, interpretation)
    estimates["excess"] = estimate_excess(clusters, in_cluster, values)
    columns = {
        "drift": "drift",
        "prob_shift": "prob_shift",
        "ppl": PPL_INTERPRETATIONS[interpretation],
    }
    for name, column in columns.items():
        values = in_cluster[column]
        excess = estimate_excess(clusters, in_cluster, values)
        estimates[f"excess_{name}"] = excess
    without = without_prob_shift(weights)
    for name, used in {"": weights, "_no_prob_shift": without}.items():
        excess = clusters.undefined()
        if used:
            values = signals.score_pairs(in_cluster, used, interpretation)
            contrast = in_cluster["contrast"]
            excess = excess_at_equal_contrast(clusters, in_cluster, values, contrast)
        estimates[f"excess_equal_contrast{name}"] = excess
    return estimates, matched


# Permutations
# ------------


class PermutationCandidates(NamedTuple):
    """The nearest scored prompts of every scored prompt, of any label.

    A permutation of labels takes neighbours from them.

    Attributes
    ----------
    cluster, rejected : numpy.ndarray, shape (n,)
        Of every scored prompt.
    near : numpy.ndarray of int, shape (n, depth)
        Row numbers among the scored prompts, nearest first; -1 stands for none, and for
        one that no permutation can use.
    pairs : tuple of numpy.ndarray
        Row numbers among all prompts: of each prompt and of its candidate.
    """

    cluster: np.ndarray
    rejected: np.ndarray
    near: np.ndarray
    pairs: tuple[np.ndarray, ...]

    def permuted(
        self,
        scores: np.ndarray,
        statistic: Callable[[np.ndarray], np.ndarray],
        k: int,
        seed: int,
        draws: int = N_LABEL_PERMUTATIONS,
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Shuffle the labels inside clusters and retrieve neighbours again.

        Parameters
        ----------
        scores : numpy.ndarray, shape (pairs, m)
            A column for each interpretation.
        statistic : callable
            Takes CI(r) of the rejections that have a neighbour, shape (rejections, m).
        k, seed, draws : int
            Neighbours; seed and number of permutations.

        Returns
        -------
        value : numpy.ndarray
            The statistic of the labels as they are; NaN if no rejection has a
            neighbour.
        null : numpy.ndarray, shape (draws, ...)
            The statistic of each permutation.
        short : float
            The share of rejections with fewer than k accepted candidates, over all
            permutations; NaN without rejections.
        """
        rng = np.random.default_rng(seed)
        known = self.near >= 0
        table = np.zeros((*known.shape, scores.shape[1]))
        table[known] = scores
        any_value = statistic(np.zeros((1, scores.shape[1])))
        undefined = np.full_like(any_value, np.nan, dtype=float)

        def measure(rejected: np.ndarray) -> tuple[np.ndarray, int]:
            """Return the statistic, and how many rejections are short of neighbours."""
            rows = np.flatnonzero(rejected)
            near = known[rows] & ~rejected[self.near[rows]]
            near &= np.cumsum(near, axis=1) <= k
            count = near.sum(axis=1)
            has_near = count > 0
            chosen = near[has_near, None].astype(float)
            totals = (chosen @ table[rows[has_near]])[:, 0]
            value = undefined
            if has_near.any():
                value = statistic(totals / count[has_near, None])
            return value, int((count < k).sum())

        null = []
        short = 0
        order = np.argsort(self.cluster, kind="stable")
        cluster = self.cluster[order]
        for _ in range(draws):
            mixed = order[np.argsort(cluster + rng.random(len(order)))]
            shuffled = np.empty_like(self.rejected)
            shuffled[order] = self.rejected[mixed]
            value, n_short = measure(shuffled)
            null.append(value)
            short += n_short
        n_rejected = draws * self.rejected.sum()
        share = short / n_rejected if n_rejected else np.nan
        return measure(self.rejected)[0], np.array(null), share


def find_candidates(system: System, vectors: np.ndarray) -> PermutationCandidates:
    """Find the nearest scored prompts of every scored prompt.

    If all prompts are accepted each has `CANDIDATE_DEPTH`; the fewer are, the more.

    Parameters
    ----------
    system : System
        Its scoring gives k.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors of its prompts.
    """
    label = system.labels["label"].to_numpy()
    scored = np.flatnonzero(system.is_scored)
    n = len(scored)
    accepted = np.count_nonzero(label == "accept")
    depth = int(np.ceil(CANDIDATE_DEPTH * n / accepted)) if accepted else 0
    depth = min(depth, n, MAX_CANDIDATE_DEPTH)
    ids = system.prompts["prompt_id"].to_numpy()
    nearest = find_nearest(vectors, ids, scored, scored, depth)
    ranks = nearest["rank"].to_numpy(int)
    place = np.full(len(label), -1)
    place[scored] = np.arange(n)
    near = np.full((n, ranks.max(initial=0)), -1)
    centre = place[nearest["centre"].to_numpy(int)]
    near[centre, ranks - 1] = place[nearest["neighbour"].to_numpy(int)]
    cluster = pd.factorize(system.prompts["cluster_id"])[0][scored]
    rejected = label[scored] == "reject"
    near[_is_unused(near, cluster, rejected, system.scoring.k)] = -1
    row, column = np.nonzero(near >= 0)
    pairs = (scored[row], scored[near[row, column]])
    return PermutationCandidates(cluster, rejected, near, pairs)


def _is_unused(
    near: np.ndarray, cluster: np.ndarray, rejected: np.ndarray, k: int
) -> np.ndarray:
    """Mark candidates that no permutation uses.

    Clusters keep their rejections.
    """
    n = np.maximum(np.bincount(cluster), 1)
    share = (np.bincount(cluster, rejected) / n)[cluster]
    always_accepted = (near >= 0) & (share[near] == 0)
    never_accepted = (near >= 0) & (share[near] == 1)
    # k nearer ones are accepted in every permutation.
    beyond = np.cumsum(always_accepted, axis=1) - always_accepted >= k
    return never_accepted | beyond | (share == 0)[:, None]


def permutation_p_value(value: float, null: np.ndarray) -> float:
    """Return the share of defined permutations that are at least as large.

    Parameters
    ----------
    value : float
    null : numpy.ndarray, shape (B,)
        The permutations' values, of which b are at least as large.

    Returns
    -------
    float
        (1 + b) / (1 + B), in (0, 1]; NaN if the value is.
    """
    if not np.isfinite(value):
        return np.nan
    null = null[np.isfinite(null)]
    return float((1 + np.count_nonzero(null >= value - 1e-12)) / (1 + len(null)))


def compare_with_chance(
    system: System, vectors: np.ndarray
) -> tuple[Table, Table, dict[str, Estimate]]:
    """Compare confusion with matched floors, single signals and permutations.

    The method defines both (`docs/method.md`, Chance).

    Parameters
    ----------
    system : System
        With traces, drifts and pairs. Permutations have the seed of its clusters.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors of its prompts.

    Returns
    -------
    rows : Table
        A row for each interpretation: system, interpretation; n_mixed, the clusters
        with an excess; matched and the estimates of `estimate_against_floors`;
        ci_null, the mean CI over permutations of labels inside clusters; p of CI
        against them; short, the share of permuted rejections with too few neighbours.
    curve : Table
        A row for each interpretation and tau: system, interpretation, tau, cr; null,
        the permutations' mean; null_low and null_high, which hold 95 % of them.
    estimates : dict of str to Estimate
        Those in the interpretation `relative`.
    """
    pairs = add_matching_columns(system.pairs, describe_wording(system))
    candidates = find_candidates(system, vectors)
    first, second = candidates.pairs
    compared = signals.compute_signals(system.traces, system.drifts, first, second)
    scores = [
        signals.score_pairs(compared, system.scoring.weights, interpretation)
        for interpretation in PPL_INTERPRETATIONS
    ]

    def mean_and_curve(ci: np.ndarray) -> np.ndarray:
        below = [
            np.searchsorted(column, CURVE_TAUS) for column in np.sort(ci, axis=0).T
        ]
        shares = (len(ci) - np.transpose(below)) / len(ci)
        return np.vstack([ci.mean(0), shares])

    seed = system.clusters.seed
    value, null, short = candidates.permuted(
        np.column_stack(scores), mean_and_curve, system.scoring.k, seed
    )
    in_cluster = pairs[pairs["same_cluster"]]
    n_mixed = len(cluster_excess(in_cluster, in_cluster["drift"]))
    rows = []
    curves = []
    by_interpretation = {}
    for column, interpretation in enumerate(PPL_INTERPRETATIONS):
        estimates, matched = estimate_against_floors(system, pairs, interpretation)
        by_interpretation[interpretation] = estimates
        about = {"system": system.name, "interpretation": interpretation}
        ci_null = null[:, 0, column]
        row = {
            **about,
            "n_mixed": n_mixed,
            "matched": matched,
            **to_columns(estimates),
            "ci_null": ci_null.mean(),
            "p": permutation_p_value(value[0, column], ci_null),
            "short": short,
        }
        rows.append(row)
        cr_null = null[:, 1:, column]
        low, high = np.quantile(cr_null, [0.025, 0.975], axis=0)
        curve = {
            **about,
            "tau": CURVE_TAUS,
            "cr": value[1:, column],
            "null": cr_null.mean(0),
            "null_low": low,
            "null_high": high,
        }
        curves.append(pd.DataFrame(curve))
    table = pd.DataFrame(rows)
    return table, pd.concat(curves, ignore_index=True), by_interpretation["relative"]
