"""Compare confusion scores with chance (`docs/method.md`, Chance)."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils.analysis import confusion, evaluation, signals
from paraguard_utils.analysis.evaluation import ArrayStatistic, Evaluation
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate, to_columns
from paraguard_utils.core.signals import PPL_INTERPRETATIONS, ScoreWeights
from paraguard_utils.core.vectors import find_nearest
from paraguard_utils.schemas import Corpus, Labels, Pairs, Table
from paraguard_utils.settings import Settings

PAIR_BINS = {
    "similarity": 20,
    "length": 3,
}  # bins for matching, each of as many rejected-accepted pairs (ours)
N_CONTRAST_BINS = 10
CANDIDATE_DEPTH, MAX_CANDIDATE_DEPTH = (
    16,
    400,
)  # nearest prompts of a permutation: if all are accepted, and at most

CURVE_TAUS = np.linspace(0, 1, 21).round(2)
N_LABEL_PERMUTATIONS = 999


def add_matching_columns(
    corpus: Corpus, frame: Pairs, lengths: np.ndarray, perplexities: np.ndarray
) -> pd.DataFrame:
    """Add the columns on which pairs are matched to a pairs frame.

    They are cluster_id (of the centre), length and contrast: |ln ratio| of the two
    prompts' lengths (in tokens) and perplexities, which are given in corpus order.
    """
    known = pd.DataFrame(
        {
            "cluster_id": corpus["cluster_id"],
            "length": np.log(lengths),
            "ppl": np.log(perplexities),
        }
    )
    known.index = corpus["prompt_id"]
    a, b = (
        known.loc[frame[end]].reset_index(drop=True)
        for end in ("centre_id", "neighbour_id")
    )
    gaps = (a[["length", "ppl"]] - b[["length", "ppl"]]).abs().to_numpy()
    return frame.assign(
        cluster_id=a["cluster_id"].to_numpy(), length=gaps[:, 0], contrast=gaps[:, 1]
    )


def number_strata(
    frame: pd.DataFrame, bins: Mapping[str, int] = PAIR_BINS
) -> np.ndarray:
    """Give pairs the numbers of their strata, the combinations of same_cluster and
    binned columns; shape (pairs,).

    Bins end at the inner quantiles of the rejected-accepted pairs (column
    centre_label), interpolated; a value on an end lies in the bin above. The ends are
    the same in every resample.
    """
    rejected = (frame["centre_label"] == "reject").to_numpy()
    if not rejected.any():
        return np.zeros(len(frame), int)
    binned = [
        _binned(frame[name].to_numpy(), frame[name].to_numpy()[rejected], bins[name])[0]
        for name in bins
    ]
    return pd.factorize(
        pd.MultiIndex.from_arrays([frame["same_cluster"].to_numpy(), *binned])
    )[0]


def _binned(
    values: np.ndarray, reference: np.ndarray, bins: int
) -> tuple[np.ndarray, int]:
    """Return each value's bin, of equal counts of the reference values, and the number
    of bins.
    """
    # Rounded, so that a value that an end should equal does not fall beside it.
    ends = np.unique(
        np.quantile(reference.round(12), np.linspace(0, 1, bins + 1)[1:-1]).round(12)
    )
    return np.searchsorted(ends, values.round(12), side="right"), len(ends) + 1


def matched_excess(
    clusters: ClusterBootstrap,
    frame: pd.DataFrame,
    stratum: np.ndarray,
    values: np.ndarray,
) -> tuple[Estimate, Estimate, float]:
    """Subtract the mean value of accepted-accepted pairs from that of rejected-accepted
    pairs of the same strata.

    Return floor, excess, and the share of rejected pairs in a stratum that has accepted
    ones; NaN without any.
    """
    shape = (
        2,
        len(clusters.codes),
        stratum.max(initial=0) + 1,
    )  # rejected and accepted centres, clusters, strata
    side, code = (
        (frame["centre_label"] != "reject").to_numpy(int),
        clusters.codes.loc[frame["cluster_id"]].to_numpy(),
    )
    cell, columns = (
        np.ravel_multi_index((side, code, stratum), shape),
        (
            np.ones(len(frame)),
            values,
        ),
    )
    n, totals = (
        np.bincount(cell, weights=one, minlength=int(np.prod(shape))).reshape(shape)
        for one in columns
    )
    matched = (
        (n[0].sum(0) * (n[1].sum(0) > 0)).sum() / n[0].sum() if n[0].any() else np.nan
    )

    def floor_and_excess(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n_r, s_r, n_a, s_a = (
            counts @ part for part in (n[0], totals[0], n[1], totals[1])
        )
        both = (n_r > 0) & (n_a > 0)
        weight = np.where(both, n_r, 0)
        floor = (weight * np.where(both, s_a / n_a, 0)).sum(-1) / weight.sum(-1)
        return floor, np.where(both, s_r, 0).sum(-1) / weight.sum(-1) - floor

    floor = evaluation.estimate_from_counts(
        clusters, lambda counts: floor_and_excess(counts)[0]
    )
    excess = evaluation.estimate_from_counts(
        clusters, lambda counts: floor_and_excess(counts)[1]
    )
    return floor, excess, float(matched)


def excess_at_equal_contrast(
    clusters: ClusterBootstrap,
    frame: pd.DataFrame,
    values: np.ndarray,
    contrast: np.ndarray,
) -> Estimate:
    """Estimate the primary excess among pairs of equal perplexity contrast, by weighted
    regression in clusters (ours).

    The coefficient of "rejected" alone would be `confusion.estimate_excess`. The
    `N_CONTRAST_BINS` are the same in every resample. The estimate is NaN if the
    contrast alone tells which pairs are rejected.
    """
    rejected = (frame["centre_label"] == "reject").to_numpy()
    code = clusters.codes.loc[frame["cluster_id"]].to_numpy()
    n = len(clusters.codes)
    keep = (
        (np.bincount(code[rejected], minlength=n) > 0)
        & (np.bincount(code[~rejected], minlength=n) > 0)
    )[code]
    if not keep.any():
        return clusters.undefined()
    rejected, code, values, contrast = (
        np.asarray(column)[keep] for column in (rejected, code, values, contrast)
    )
    group = 2 * code + rejected
    weight = 1.0 / np.bincount(group, minlength=2 * n)[group]
    place, bins = _binned(contrast, contrast[rejected], N_CONTRAST_BINS)
    columns = [
        rejected,
        1 - np.exp(-contrast),
        *(place == i for i in range(1, bins)),
        values,
    ]
    table = np.column_stack(columns).astype(float)
    # Subtract the weighted means of each cluster, whose weights sum to 2.
    means = np.stack(
        [np.bincount(code, weight * column, minlength=n) / 2 for column in table.T],
        axis=1,
    )
    table = table - means[code]
    width = table.shape[1]
    products = (weight[:, None, None] * table[:, :, None] * table[:, None, :]).reshape(
        len(table), -1
    )
    sums = np.stack(
        [np.bincount(code, column, minlength=n) for column in products.T], axis=1
    )

    def coefficient(counts: np.ndarray) -> np.ndarray:
        total = (counts @ sums).reshape(-1, width, width)
        # What the other columns explain of "rejected" and of the values is taken out of
        # both.
        others = total[:, 1:-1, 1:-1]
        explained = (
            total[:, [0, -1], 1:-1]
            @ np.linalg.pinv(others, hermitian=True)
            @ total[:, 1:-1, [0]]
        )
        own, joint = (
            total[:, 0, 0] - explained[:, 0, 0],
            total[:, -1, 0] - explained[:, 1, 0],
        )
        return np.where(own > 1e-9 * total[:, 0, 0], joint / own, np.nan)

    return evaluation.estimate_from_counts(clusters, coefficient)


def estimate_against_floors(
    clusters: ClusterBootstrap,
    near: pd.DataFrame,
    own: pd.DataFrame,
    weights: ScoreWeights,
    interpretation: str,
) -> tuple[dict[str, Estimate], float]:
    """Compare one system's confusion with matched floors, signal by signal, with and
    without ProbShift.

    Pairs come from `add_matching_columns`: `near` with the k nearest accepted prompts,
    `own` those of one cluster. Names: floor_matched and excess_matched (secondary);
    excess_drift, excess_prob_shift, excess_ppl: the primary excess of each signal
    alone; excess_equal_contrast and excess_equal_contrast_no_prob_shift. The second
    result is the share of rejected pairs that have a matched floor.
    """
    scores = signals.score_pairs(near, weights, interpretation)
    floor, excess, matched = matched_excess(
        clusters, near, number_strata(near), scores.to_numpy()
    )
    found = {"floor_matched": floor, "excess_matched": excess}
    for name, column in (
        ("drift", "drift"),
        ("prob_shift", "prob_shift"),
        ("ppl", PPL_INTERPRETATIONS[interpretation]),
    ):
        found[f"excess_{name}"] = confusion.estimate_excess(clusters, own, own[column])
    for name, used in (("", weights), ("_no_prob_shift", weights.without_prob_shift())):
        found[f"excess_equal_contrast{name}"] = clusters.undefined()
        if used:
            values = signals.score_pairs(own, used, interpretation)
            found[f"excess_equal_contrast{name}"] = excess_at_equal_contrast(
                clusters, own, values, own["contrast"]
            )
    return found, matched


class PermutationCandidates(NamedTuple):
    """The nearest scored prompts of every scored prompt, of any label: a permutation
    takes neighbours from them.

    `near`, of shape (n, depth), holds row numbers among the scored prompts, nearest
    first; -1 stands for none, and for one that no permutation can use. `pairs` holds
    the row numbers in the corpus of all prompts and their candidates.
    """

    cluster: np.ndarray
    rejected: np.ndarray
    near: np.ndarray
    pairs: tuple

    def permuted(
        self,
        scores: np.ndarray,
        statistic: ArrayStatistic,
        k: int,
        seed: int,
        draws: int = N_LABEL_PERMUTATIONS,
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Shuffle the labels inside clusters and retrieve neighbours again.

        The scores of `pairs` have the shape (pairs, m), one column per reading. The
        statistic takes CI(r) of the rejections that have a neighbour, shape
        (rejections, m). Return the statistic of the labels as they are, NaN if no
        rejection has a neighbour; that of each permutation, shape (draws, ...); and the
        share of rejections with fewer than k accepted candidates, over all
        permutations, NaN without rejections.
        """
        rng = np.random.default_rng(seed)
        known = self.near >= 0
        table = np.zeros((*known.shape, scores.shape[1]))
        table[known] = scores
        nothing = np.full_like(
            statistic(np.zeros((1, scores.shape[1]))), np.nan, dtype=float
        )

        def measure(rejected: np.ndarray) -> tuple[np.ndarray, int]:
            rows = np.flatnonzero(rejected)
            near = known[rows] & ~rejected[self.near[rows]]
            near &= np.cumsum(near, axis=1) <= k
            count = near.sum(1)
            some = count > 0
            ci = (near[some, None].astype(float) @ table[rows[some]])[:, 0] / count[
                some, None
            ]
            return statistic(ci) if some.any() else nothing, int((count < k).sum())

        found, order = [], np.argsort(self.cluster, kind="stable")
        for _ in range(draws):
            mixed = order[np.argsort(self.cluster[order] + rng.random(len(order)))]
            shuffled = np.empty_like(self.rejected)
            shuffled[order] = self.rejected[mixed]
            found.append(measure(shuffled))
        null, short = zip(*found, strict=True)
        share = (
            sum(short) / (draws * self.rejected.sum())
            if self.rejected.any()
            else np.nan
        )
        return measure(self.rejected)[0], np.array(null), share


def find_candidates(
    vectors: np.ndarray, corpus: Corpus, labels: Labels, k: int
) -> PermutationCandidates:
    """Find the nearest scored prompts of every scored prompt, by sentence vectors in
    corpus order, as are the labels.

    `k` neighbours are wanted. If all prompts are accepted each has `CANDIDATE_DEPTH`;
    the fewer are, the more.
    """
    label = labels["label"].to_numpy()
    scored = np.flatnonzero(evaluation.is_scored(labels))
    accepted = int((label == "accept").sum())
    deep = int(np.ceil(CANDIDATE_DEPTH * len(scored) / accepted)) if accepted else 0
    depth = min(deep, len(scored), MAX_CANDIDATE_DEPTH)
    found = find_nearest(vectors, corpus["prompt_id"].to_numpy(), scored, scored, depth)
    place = np.full(len(label), -1)
    place[scored] = np.arange(len(scored))
    near = np.full((len(scored), found["rank"].max() if len(found) else 0), -1)
    a, b = found["centre"].to_numpy(int), found["neighbour"].to_numpy(int)
    near[place[a], found["rank"].to_numpy(int) - 1] = place[b]
    cluster, rejected = (
        pd.factorize(corpus["cluster_id"])[0][scored],
        label[scored] == "reject",
    )
    near[_unused(near, cluster, rejected, k)] = -1
    a, column = np.nonzero(near >= 0)
    return PermutationCandidates(
        cluster, rejected, near, (scored[a], scored[near[a, column]])
    )


def _unused(
    near: np.ndarray, cluster: np.ndarray, rejected: np.ndarray, k: int
) -> np.ndarray:
    """Mark the candidates that no permutation can use, since each cluster keeps its
    number of rejections.
    """
    share = (np.bincount(cluster, rejected) / np.maximum(np.bincount(cluster), 1))[
        cluster
    ]
    always, never = (near >= 0) & (share[near] == 0), (near >= 0) & (share[near] == 1)
    beyond = (
        np.cumsum(always, axis=1) - always >= k
    )  # k nearer ones are accepted in every permutation
    return never | beyond | (share == 0)[:, None]


def permutation_p_value(value: float, null: np.ndarray) -> float:
    """Return the share of permutations that are defined and at least as large: (1 + b)
    / (1 + B), in (0, 1].
    """
    null = null[np.isfinite(null)]
    return (
        float((1 + np.count_nonzero(null >= value - 1e-12)) / (1 + len(null)))
        if np.isfinite(value)
        else np.nan
    )


def compare_with_chance(
    system: str,
    corpus: Corpus,
    one: Evaluation,
    vectors: np.ndarray,
    settings: Settings,
    clusters: ClusterBootstrap,
) -> tuple[Table, Table, dict[str, Estimate]]:
    """Compare a system's confusion with matched floors, single signals and permutations
    (`docs/method.md`, Chance).

    The first result has a row per reading: system, reading; matched and the estimates
    of `estimate_against_floors`; ci_null, the mean CI over permutations of labels
    inside clusters; p of CI against them; short, the share of permuted rejections with
    too few neighbours. The second has a row per reading and tau: system, reading, tau,
    cr; null, the permutations' mean; null_low and null_high, which hold 95 % of them.
    The third holds the estimates in the interpretation `relative`.
    """
    wording = signals.trace_lengths(one.traces), signals.trace_perplexity(one.traces)
    frame = add_matching_columns(corpus, one.pairs, *wording)
    near, own = (
        frame[signals.is_ranked(frame, settings.k)],
        frame[frame["same_cluster"]],
    )
    weights, nearby = (
        settings.weights(),
        find_candidates(vectors, corpus, one.labels, settings.k),
    )
    compared = signals.compute_signals(one.traces, one.tokens, *nearby.pairs)
    scores = np.column_stack(
        [
            signals.score_pairs(compared, weights, interpretation)
            for interpretation in PPL_INTERPRETATIONS
        ]
    )

    def mean_and_curve(ci: np.ndarray) -> np.ndarray:
        return np.vstack([ci.mean(0), (ci[:, None] >= CURVE_TAUS[:, None]).mean(0)])

    value, null, short = nearby.permuted(
        scores, mean_and_curve, settings.k, settings.seed
    )
    rows, curves, found = [], [], {}
    for column, interpretation in enumerate(PPL_INTERPRETATIONS):
        found[interpretation], matched = estimate_against_floors(
            clusters, near, own, weights, interpretation
        )
        ci, many = value[0, column], null[:, 0, column]
        row = {
            "system": system,
            "interpretation": interpretation,
            "matched": matched,
            **to_columns(found[interpretation]),
        }
        rows.append(
            row
            | {
                "ci_null": many.mean(),
                "p": permutation_p_value(ci, many),
                "short": short,
            }
        )
        low, high = np.quantile(null[:, 1:, column], [0.025, 0.975], axis=0)
        shares = {
            "cr": value[1:, column],
            "null": null[:, 1:, column].mean(0),
            "null_low": low,
            "null_high": high,
        }
        curves.append(
            pd.DataFrame(
                {
                    "system": system,
                    "interpretation": interpretation,
                    "tau": CURVE_TAUS,
                    **shares,
                }
            )
        )
    return pd.DataFrame(rows), pd.concat(curves, ignore_index=True), found["relative"]
