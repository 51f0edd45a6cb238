"""What a confusion score is worth against chance: matched floors and permutations (`docs/method.md`, Chance).

Accepted prompts differ from their accepted neighbours too, and rejections sit further from theirs. So a rejection's
score is compared with accepted-accepted pairs that are as similar, as often of one cluster and as different in length
(the *matched floor*), and with what the same clusters give when their labels are dealt out anew (the *permutation*).
Estimates weigh both sides anew in every resample of clusters, so the floor's own uncertainty is in the interval.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from paraguard_utils.analysis import confusion, signals
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, to_columns
from paraguard_utils.core.signals import READINGS, ScoreWeights
from paraguard_utils.core.vectors import nearest
from paraguard_utils.models import encoder
from paraguard_utils.models.prompting import model_of
from paraguard_utils.schemas import Corpus, Labels, Pairs, Table, Traces
from paraguard_utils.settings import Settings
from paraguard_utils.stores import Store

PAIR_BINS = {"similarity": 20, "length": 3}
"""Bins in which pairs are matched, of equal counts of rejected-accepted pairs (ours). `same_cluster` is matched as it
is."""

CONTRAST_BINS = 10

DEEPEST = 400
"""The most a permutation looks at, however few prompts are accepted."""

DEPTH = 16
"""Nearest prompts of any label among which a permutation looks for accepted ones, where everything is accepted."""

CURVE = np.linspace(0, 1, 21).round(2)
"""Values of tau at which CR is drawn."""

PERMUTATIONS = 999


def details(corpus: Corpus, frame: Pairs, lengths: np.ndarray, perplexities: np.ndarray) -> pd.DataFrame:
    """Add to a pairs frame what pairs are matched on.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, cluster_id.
    frame : DataFrame
        A pairs file.
    lengths : numpy.ndarray of int, shape (n,)
        Tokens of each prompt's own words, in corpus order.
    perplexities : numpy.ndarray, shape (n,)
        In corpus order.

    Returns
    -------
    DataFrame
        With cluster_id (of the centre), length (|ln ratio| of the two lengths) and contrast (|ln ratio| of the two
        perplexities), both >= 0.
    """
    known = pd.DataFrame({"cluster_id": corpus["cluster_id"], "length": np.log(lengths), "ppl": np.log(perplexities)})
    known.index = corpus["prompt_id"]
    a, b = known.loc[frame["centre_id"]], known.loc[frame["neighbour_id"]]
    return frame.assign(
        cluster_id=a["cluster_id"].to_numpy(),
        length=np.abs(a["length"].to_numpy() - b["length"].to_numpy()),
        contrast=np.abs(a["ppl"].to_numpy() - b["ppl"].to_numpy()),
    )


def strata(
    frame: pd.DataFrame, names: Sequence[str] = ("same_cluster", *PAIR_BINS), bins: Mapping[str, int] = PAIR_BINS
) -> np.ndarray:
    """Give each pair the number of its stratum: a combination of values, numbers binned.

    Bins end at the inner quantiles of the rejected-accepted pairs, interpolated; a value on an end lies in the bin
    above. The ends stay the same in every resample.

    Parameters
    ----------
    frame : DataFrame
        Ranked pairs with a column centre_label.
    names : sequence of str
        Columns to match on.
    bins : dict of str to int
        Bins of the columns that are numbers; the others are taken as they are.

    Returns
    -------
    numpy.ndarray of int, shape (pairs,)
    """
    rejected = (frame["centre_label"] == "reject").to_numpy()
    if not rejected.any():
        return np.zeros(len(frame), int)
    codes = []
    for name in names:
        values = frame[name].to_numpy()
        if name in bins:
            values, _ = _binned(values, values[rejected], bins[name])
        codes.append(pd.factorize(values, sort=True)[0])
    return pd.factorize(pd.MultiIndex.from_arrays(codes))[0]


def _binned(values: np.ndarray, reference: np.ndarray, bins: int) -> tuple[np.ndarray, int]:
    """Return each value's bin, of equal counts of the reference values, and the number of bins."""
    # Rounded, so that a value that an end should equal does not fall beside it.
    ends = np.unique(np.quantile(reference.round(12), np.linspace(0, 1, bins + 1)[1:-1]).round(12))
    return np.searchsorted(ends, values.round(12), side="right"), len(ends) + 1


def standardised(
    clusters: ClusterBootstrap, frame: pd.DataFrame, stratum: np.ndarray, values: np.ndarray
) -> tuple[Estimate, Estimate, float]:
    """Mean value of rejected-accepted pairs minus that of accepted-accepted pairs of the same strata.

    The floor is the accepted pairs' mean, each stratum weighted by its number of rejected pairs. A stratum without
    accepted pairs has no floor and is left out on both sides.

    Parameters
    ----------
    clusters : ClusterBootstrap
    frame : DataFrame
        Columns cluster_id, centre_label.
    stratum : numpy.ndarray of int
    values : numpy.ndarray of float

    Returns
    -------
    floor, excess : Estimate
    matched : float
        Share of rejected pairs in a stratum that has accepted ones, in [0, 1]; NaN without rejected pairs.
    """
    rejected = (frame["centre_label"] == "reject").to_numpy()
    code = clusters.codes.loc[frame["cluster_id"]].to_numpy()
    size = (len(clusters.codes), stratum.max() + 1 if len(stratum) else 0)

    def table(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return np.bincount(
            code[rows] * size[1] + stratum[rows], weights=weights[rows], minlength=size[0] * size[1]
        ).reshape(size)

    ones = np.ones(len(frame))
    sums = [table(rows, weights) for rows in (rejected, ~rejected) for weights in (ones, values)]
    matched = (sums[0].sum(0) * (sums[2].sum(0) > 0)).sum() / rejected.sum() if rejected.any() else np.nan

    def totals(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n_r, s_r, n_a, s_a = (counts @ part for part in sums)
        both = (n_r > 0) & (n_a > 0)
        weight = np.where(both, n_r, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            floor = (weight * np.where(both, s_a / n_a, 0)).sum(-1) / weight.sum(-1)
            mean = np.where(both, s_r, 0).sum(-1) / weight.sum(-1)
        return floor, mean - floor

    value = totals(np.ones((1, size[0])))
    draws = totals(clusters.counts)
    floor, excess = (Estimate.percentile(one[0], many) for one, many in zip(value, draws, strict=True))
    return floor, excess, float(matched)


def excess_at_equal_contrast(
    clusters: ClusterBootstrap, frame: pd.DataFrame, values: np.ndarray, contrast: np.ndarray
) -> Estimate:
    """Primary excess among pairs of equal perplexity contrast, by a weighted regression inside clusters (ours).

    In every cluster with at least one rejected and two accepted prompts, rejected-accepted pairs together weigh as much
    as accepted-accepted pairs, and all such clusters weigh the same; the coefficient of "rejected" alone is then the
    mean of the clusters' differences of means (`confusion.excess_estimate`). A constant for each of `CONTRAST_BINS`
    (equal counts of these rejected-accepted pairs, the same in every resample) and 1 - exp(-contrast) stand beside it:
    what is left is the excess among pairs of equal contrast. NaN where the contrast alone tells which pairs are
    rejected.

    Parameters
    ----------
    clusters : ClusterBootstrap
    frame : DataFrame
        Pairs of one cluster: columns cluster_id, centre_label.
    values : numpy.ndarray of float, shape (pairs,)
    contrast : numpy.ndarray of float, shape (pairs,)
        |ln ratio| of the two perplexities.

    Returns
    -------
    Estimate
    """
    rejected = (frame["centre_label"] == "reject").to_numpy()
    code = clusters.codes.loc[frame["cluster_id"]].to_numpy()
    n = len(clusters.codes)
    both = (np.bincount(code[rejected], minlength=n) > 0) & (np.bincount(code[~rejected], minlength=n) > 0)
    keep = both[code]
    if not keep.any():
        return clusters.undefined()
    rejected, code, values = rejected[keep], code[keep], np.asarray(values, float)[keep]
    group = 2 * code + rejected
    weight = 1.0 / np.bincount(group, minlength=2 * n)[group]
    contrast = np.asarray(contrast, float)[keep]
    place, bins = _binned(contrast, contrast[rejected], CONTRAST_BINS)
    columns = [rejected.astype(float), 1 - np.exp(-contrast), *(place == i for i in range(1, bins))]
    table = np.column_stack([*columns, values]).astype(float)
    # Weighted means of each cluster, whose weights sum to 2, are taken out of everything.
    means = np.stack([np.bincount(code, weight * column, minlength=n) / 2 for column in table.T], axis=1)
    table = table - means[code]
    width = table.shape[1]
    products = (weight[:, None, None] * table[:, :, None] * table[:, None, :]).reshape(len(table), -1)
    sums = np.stack([np.bincount(code, column, minlength=n) for column in products.T], axis=1)

    def coefficient(counts: np.ndarray) -> np.ndarray:
        total = (counts @ sums).reshape(-1, width, width)
        # "Rejected" and the values, less what the other columns explain of them.
        others = total[:, 1:-1, 1:-1]
        explained = total[:, [0, -1], 1:-1] @ np.linalg.pinv(others, hermitian=True) @ total[:, 1:-1, [0]]
        own, joint = total[:, 0, 0] - explained[:, 0, 0], total[:, -1, 0] - explained[:, 1, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(own > 1e-9 * total[:, 0, 0], joint / own, np.nan)

    return Estimate.percentile(coefficient(np.ones((1, n)))[0], coefficient(clusters.counts))


def estimates(
    clusters: ClusterBootstrap, near: pd.DataFrame, own: pd.DataFrame, weights: ScoreWeights, reading: str
) -> tuple[dict[str, Estimate], float]:
    """Compare one target's confusion with matched floors, signal by signal, with and without ProbShift.

    Parameters
    ----------
    clusters : ClusterBootstrap
    near, own : DataFrame
        Pairs from `details`: those with the k nearest accepted prompts, and those of one cluster.
    weights : ScoreWeights
    reading : str

    Returns
    -------
    found : dict of str to Estimate
        floor_matched and excess_matched (secondary); cr_floor, the share of rejections above the matched floor's 95th
        percentile, and floor95, that percentile; excess_drift, excess_prob_shift, excess_ppl: the primary excess of
        each signal alone; excess_equal_contrast: the primary excess among pairs of equal perplexity contrast, and the
        same without ProbShift.
    matched : float
        Share of rejected pairs that have a matched floor, in [0, 1].
    """
    scores = signals.score(near, weights, reading)
    floor, excess, matched = standardised(clusters, near, strata(near), scores.to_numpy())
    table = centres(near, scores)
    cr_floor, floor95 = above_floor(clusters, table, strata(table, CENTRE_COLUMNS, CENTRE_BINS))
    found = {"floor_matched": floor, "excess_matched": excess, "cr_floor": cr_floor, "floor95": floor95}
    is_rejected = own["centre_label"] == "reject"
    for name, column in (("drift", "drift"), ("prob_shift", "prob_shift"), ("ppl", READINGS[reading])):
        found[f"excess_{name}"] = confusion.excess_estimate(clusters, own["cluster_id"], is_rejected, own[column])
    rest = weights.without_prob_shift()
    for name, used in (("", weights), ("_no_prob_shift", rest)):
        found[f"excess_equal_contrast{name}"] = (
            excess_at_equal_contrast(clusters, own, signals.score(own, used, reading), own["contrast"])
            if used
            else clusters.undefined()
        )
    return found, matched


def above_floor(
    clusters: ClusterBootstrap, centres: pd.DataFrame, stratum: np.ndarray, quantile: float = 0.95
) -> tuple[Estimate, Estimate]:
    """CR@floor: share of rejections whose CI lies above a quantile of the matched floor's.

    The floor is the accepted centres' CI, each stratum weighted to its number of rejections; the quantile, the smallest
    CI at which that share of the weight is reached, is taken anew in every resample. Rejections of strata without
    accepted centres add nothing to the floor, and are compared with it.

    Parameters
    ----------
    clusters : ClusterBootstrap
    centres : DataFrame
        Columns cluster_id, centre_label, ci; one row per scored prompt.
    stratum : numpy.ndarray of int
    quantile : float

    Returns
    -------
    share : Estimate
    threshold : Estimate
        The quantile itself, in the unit of CI.
    """
    ci = centres["ci"].to_numpy()
    rejected = (centres["centre_label"] == "reject").to_numpy()
    code = clusters.codes.loc[centres["cluster_id"]].to_numpy()
    order = np.flatnonzero(~rejected)
    order = order[np.argsort(ci[order], kind="stable")]
    width = stratum.max() + 1 if len(stratum) else 0
    if not rejected.any() or not len(order):
        return clusters.undefined(), clusters.undefined()
    n = len(clusters.codes)
    here, there = (
        np.bincount(code[rows] * width + stratum[rows], minlength=n * width).reshape(n, width)
        for rows in (rejected, ~rejected)
    )

    def share(counts: np.ndarray) -> np.ndarray:
        parts = []
        for part in np.array_split(counts, max(1, len(counts) * len(ci) // 10_000_000)):
            times, wanted, found_there = part[:, code], part @ here, part @ there
            ratio = np.divide(wanted, found_there, out=np.zeros_like(wanted), where=found_there > 0)
            weight = np.cumsum(times[:, order] * ratio[:, stratum[order]], axis=1)
            total = weight[:, -1:]
            first = (weight < quantile * total).sum(axis=1)
            threshold = np.where(total[:, 0] > 0, ci[order[np.minimum(first, len(order) - 1)]], np.nan)
            above = (times[:, rejected] * (ci[rejected] > threshold[:, None])).sum(1)
            with np.errstate(divide="ignore", invalid="ignore"):
                parts.append(np.column_stack([above / times[:, rejected].sum(1), threshold]))
        found = np.concatenate(parts)
        found[np.isnan(found[:, 1]), 0] = np.nan
        return found.T

    value, draws = share(np.ones((1, len(clusters.codes)))), share(clusters.counts)
    found, threshold = (Estimate.percentile(one[0], many) for one, many in zip(value, draws, strict=True))
    return found, threshold


CENTRE_COLUMNS = ("mates", "similarity", "length")
"""What the floor's centres are matched on: how many neighbours are of the own cluster, and their mean similarity and
difference in length."""

CENTRE_BINS = {"similarity": 5, "length": 2}


def centres(near: pd.DataFrame, scores: pd.Series) -> pd.DataFrame:
    """Average ranked pairs into one row per centre, for `above_floor`.

    Parameters
    ----------
    near : DataFrame
        Ranked pairs, from `details`.
    scores : Series

    Returns
    -------
    DataFrame
        cluster_id, centre_label, ci, mates, similarity, length.
    """
    by = near.assign(ci=scores).groupby("centre_id", sort=False)
    frame = by.agg(
        cluster_id=("cluster_id", "first"),
        centre_label=("centre_label", "first"),
        ci=("ci", "mean"),
        mates=("same_cluster", "sum"),
        similarity=("similarity", "mean"),
        length=("length", "mean"),
    )
    return frame.reset_index(drop=True)


@dataclass(frozen=True)
class Candidates:
    """Every scored prompt's nearest scored prompts, of any label: what a permutation retrieves neighbours from.

    Attributes
    ----------
    cluster : numpy.ndarray of int, shape (n,)
    rejected : numpy.ndarray of bool, shape (n,)
    near : numpy.ndarray of int, shape (n, depth)
        Row numbers among the scored prompts, nearest first; -1 for none, and for what no permutation can use.
    pairs : tuple of numpy.ndarray of int
        Row numbers in the corpus of every prompt and candidate, where there is one.
    """

    cluster: np.ndarray
    rejected: np.ndarray
    near: np.ndarray
    pairs: tuple

    def permuted(
        self,
        scores: np.ndarray,
        statistic: Callable[[np.ndarray], np.ndarray],
        k: int,
        seed: int,
        draws: int = PERMUTATIONS,
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Deal labels out anew inside clusters; `scores` are those of `pairs`, shape (pairs, m). See `permuted`."""
        table = np.zeros((*self.near.shape, scores.shape[1]))
        table[self.near >= 0] = scores
        return permuted(self.cluster, self.rejected, self.near, table, statistic, k, draws, seed)


def candidates(vectors: np.ndarray, corpus: Corpus, labels: Labels, k: int, depth: int = DEPTH) -> Candidates:
    """Find every scored prompt's nearest scored prompts.

    Parameters
    ----------
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors in corpus order.
    corpus, labels : DataFrame
        Rows in the same order.
    k : int
        Neighbours a rejection should have.
    depth : int
        Candidates looked at where everything is accepted; the fewer are, the deeper the search.

    Returns
    -------
    Candidates
    """
    label = labels["label"].to_numpy()
    scored = np.flatnonzero(np.isin(label, ["accept", "reject"]))
    accepted = int((label == "accept").sum())
    depth = min(int(np.ceil(depth * len(scored) / accepted)), len(scored), DEEPEST) if accepted else 0
    found = nearest(vectors, corpus["prompt_id"].to_numpy(), scored, scored, depth)
    place = np.full(len(label), -1)
    place[scored] = np.arange(len(scored))
    near = np.full((len(scored), found["rank"].max() if len(found) else 0), -1)
    a, b = found["centre"].to_numpy(int), found["neighbour"].to_numpy(int)
    near[place[a], found["rank"].to_numpy(int) - 1] = place[b]
    cluster, rejected = pd.factorize(corpus["cluster_id"])[0][scored], label[scored] == "reject"
    near[_unused(near, cluster, rejected, k)] = -1
    a, column = np.nonzero(near >= 0)
    return Candidates(cluster, rejected, near, (scored[a], scored[near[a, column]]))


def _unused(near: np.ndarray, cluster: np.ndarray, rejected: np.ndarray, k: int) -> np.ndarray:
    """Where no permutation looks: it leaves every cluster its number of rejections."""
    share = (np.bincount(cluster, rejected) / np.maximum(np.bincount(cluster), 1))[cluster]
    always, never = (near >= 0) & (share[near] == 0), (near >= 0) & (share[near] == 1)
    beyond = np.cumsum(always, axis=1) - always >= k  # k nearer ones are accepted whatever is dealt
    return never | beyond | (share == 0)[:, None]


def permuted(
    cluster: np.ndarray,
    label: np.ndarray,
    candidates: np.ndarray,
    scores: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    k: int,
    draws: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Deal the labels out anew inside clusters and retrieve neighbours again.

    Parameters
    ----------
    cluster : numpy.ndarray of int, shape (n,)
    label : numpy.ndarray of bool, shape (n,)
        Whether a prompt is rejected.
    candidates : numpy.ndarray of int, shape (n, depth)
        Each prompt's nearest prompts of any label, nearest first; -1 for none.
    scores : numpy.ndarray, shape (n, depth, m)
        Of each prompt with each candidate, m of them (a reading each).
    statistic : callable
        From CI(r) of the rejections that have a neighbour, shape (rejections, m), to an array.
    k : int
    draws : int
    seed : int

    Returns
    -------
    value : numpy.ndarray
        The statistic of the labels as they are; NaN without rejections that have a neighbour.
    null : numpy.ndarray, shape (draws, ...)
        The statistic of each permutation.
    short : float
        Share of rejections with fewer than k accepted candidates, over all permutations; NaN without rejections.
    """
    rng = np.random.default_rng(seed)
    known = candidates >= 0
    nothing = np.full_like(statistic(np.zeros((1, scores.shape[2]))), np.nan, dtype=float)

    def measured(rejected: np.ndarray) -> tuple[np.ndarray, int]:
        rows = np.flatnonzero(rejected)
        near = known[rows] & ~rejected[candidates[rows]]
        near &= np.cumsum(near, axis=1) <= k
        count = near.sum(1)
        some = count > 0
        ci = np.einsum("rdm,rd->rm", scores[rows[some]], near[some]) / count[some, None]
        return statistic(ci) if some.any() else nothing, int((count < k).sum())

    value, _ = measured(label)
    null, short = [], 0
    order = np.argsort(cluster, kind="stable")
    for _ in range(draws):
        mixed = order[np.argsort(cluster[order] + rng.random(len(cluster)))]
        dealt = np.empty_like(label)
        dealt[order] = label[mixed]
        found, few = measured(dealt)
        null.append(found)
        short += few
    return value, np.array(null), short / (draws * label.sum()) if label.any() else np.nan


def p_value(value: float, null: np.ndarray) -> float:
    """Return the share of permutations at least as large as the value: (1 + b) / (1 + B), in (0, 1].

    Parameters
    ----------
    value : float
    null : numpy.ndarray, shape (B,)
        NaN draws, in which no rejection had a neighbour, are left out.
    """
    null = null[np.isfinite(null)]
    return float((1 + np.count_nonzero(null >= value - 1e-12)) / (1 + len(null))) if np.isfinite(value) else np.nan


def against_chance(
    store: Store,
    corpus_name: str,
    corpus: Corpus,
    target: str,
    labels: Labels,
    traces: Traces,
    pairs: Pairs,
    settings: Settings,
    clusters: ClusterBootstrap,
    drifts: signals.Drifts | None = None,
) -> tuple[Table, Table, dict[str, Estimate]]:
    """Compare confusion with chance: matched floors, single signals, permutations (`docs/method.md`, Chance).

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus, labels, traces : DataFrame
        Rows in the same order.
    target : str
    pairs : DataFrame
        The target's pairs.
    settings : settings.Settings
    clusters : ClusterBootstrap
    drifts : signals.Drifts or None
        The target's, where they are at hand.

    Returns
    -------
    rows : DataFrame, one per reading
        target, reading; matched and the estimates of `chance.estimates`; ci_null, the mean CI over permutations of
        labels inside clusters, p of CI against them, and short, the share of permuted rejections with too few
        neighbours.
    curve : DataFrame, one row per reading and tau
        target, reading, tau, cr, and the permutations' mean with the range that 95 % of them lie in: null, null_low,
        null_high.
    found : dict of str to Estimate
        The estimates in the reading `relative`.
    """
    lengths = (traces["user_end"] - traces["user_start"]).to_numpy()
    frame = details(corpus, pairs, lengths, signals.perplexity(traces))
    near = frame[signals.ranked(frame, settings.k)]
    own = frame[frame["same_cluster"]]
    weights = settings.weights()
    dealt = candidates(encoder.vectors(store, corpus_name, corpus["text"], earlier=True), corpus, labels, settings.k)
    tokens = drifts if drifts is not None else store.read("tokens", model_of(target))
    compared = signals.compare(traces, tokens, *dealt.pairs)
    scores = np.column_stack([signals.score(compared, weights, reading) for reading in READINGS])
    value, null, short = dealt.permuted(scores, _mean_and_curve, settings.k, settings.seed)
    rows, curves = [], []
    usual: dict[str, Estimate] = {}
    for column, reading in enumerate(READINGS):
        found, matched = estimates(clusters, near, own, weights, reading)
        usual = usual or found
        ci, many = value[0, column], null[:, 0, column]
        row = {"target": target, "reading": reading, "matched": matched, **to_columns(found)}
        row |= {"ci_null": many.mean(), "p": p_value(ci, many), "short": short}
        rows.append(row)
        low, high = np.quantile(null[:, 1:, column], [0.025, 0.975], axis=0)
        shares = {"cr": value[1:, column], "null": null[:, 1:, column].mean(0), "null_low": low, "null_high": high}
        curves.append(pd.DataFrame({"target": target, "reading": reading, "tau": CURVE, **shares}))
    return pd.DataFrame(rows), pd.concat(curves, ignore_index=True), usual


def _mean_and_curve(ci: np.ndarray) -> np.ndarray:
    """Dataset CI, then CR at every tau of the curve, a column per reading."""
    return np.vstack([ci.mean(0), (ci[:, None] >= CURVE[:, None]).mean(0)])
