"""Ask how valid the measures are (`docs/method.md`, Disagreement; What CI adds)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special

from paraguard_utils import text
from paraguard_utils.analysis import confusion, evaluation, signals
from paraguard_utils.analysis.confusion import CI_COLUMNS
from paraguard_utils.analysis.evaluation import Evaluation
from paraguard_utils.core import disagreement
from paraguard_utils.core.confusion import N_NEIGHBOURS
from paraguard_utils.core.estimates import (
    MIN_REFUSALS,
    ClusterBootstrap,
    Estimate,
    Strings,
    to_columns,
)
from paraguard_utils.core.signals import (
    PAPER_WEIGHTS,
    PPL_INTERPRETATIONS,
    ScoreWeights,
)
from paraguard_utils.core.vectors import paired_cosine_similarity
from paraguard_utils.core.wording import list_cluster_pairs
from paraguard_utils.core.words import jaccard
from paraguard_utils.schemas import Corpus, Labels, Pairs, Scores, Table, Traces

MATCHING_BINS = 5  # bins of ln PPL and of length, by quantiles of all scored prompts
NEAR_SIMILARITY, NEAR_OVERLAP = (
    0.95,
    0.8,
)  # near-identical from this cosine or content-word overlap on (ours)
MIN_RANKED_SYSTEMS, MIN_SYSTEMS_WITH_INTERVAL = (
    8,
    5,
)  # for a rank correlation over systems; for one with its interval


def pair_held_out(corpus: Corpus, labels: Labels) -> pd.DataFrame:
    """Pair every rejection with each other scored prompt of its cluster, which is held
    out.

    Columns: prompt_id (the rejection), held_out, cluster_id, accepted (is the held-out
    prompt?), isolation (share of the rest of the cluster that is accepted); only
    clusters with at least three scored prompts.
    """
    held = corpus[["prompt_id", "cluster_id"]].assign(
        accepted=(labels["label"] == "accept").to_numpy()
    )
    held = held[evaluation.is_scored(labels)].rename(columns={"prompt_id": "held_out"})
    own = held.groupby("cluster_id")["accepted"].agg(n="size", others="sum")
    rejected = held.loc[~held["accepted"], ["held_out", "cluster_id"]].rename(
        columns={"held_out": "prompt_id"}
    )
    both = rejected.merge(held, on="cluster_id").join(
        own[own["n"] >= 3], on="cluster_id", how="inner"
    )
    both = both[both["prompt_id"] != both["held_out"]].reset_index(drop=True)
    isolation = (both["others"] - both["accepted"]) / (both["n"] - 2)
    return both[["prompt_id", "held_out", "cluster_id", "accepted"]].assign(
        isolation=isolation
    )


def ci_without_held_out(
    held: pd.DataFrame, pairs: Pairs, interpretation: str, k: int = N_NEIGHBOURS
) -> np.ndarray:
    """Compute CI(r) over the k nearest accepted prompts (`pairs` has k + 1) but the one
    held out; NaN if none.
    """
    near = pairs[(pairs["centre_label"] == "reject") & signals.is_ranked(pairs, k + 1)]
    near = near.assign(score=signals.score_pairs(near, interpretation=interpretation))[
        ["centre_id", "neighbour_id", "rank", "score"]
    ]
    rows = held.reset_index().merge(near, left_on="prompt_id", right_on="centre_id")
    rows = rows[rows["neighbour_id"] != rows["held_out"]].sort_values(["index", "rank"])
    return (
        rows.groupby("index")
        .head(k)
        .groupby("index")["score"]
        .mean()
        .reindex(held.index)
        .to_numpy(float)
    )


def estimate_auc(
    clusters: ClusterBootstrap,
    cluster_ids: Strings,
    outcome: np.ndarray,
    scores: np.ndarray,
    strata: np.ndarray | None,
) -> Estimate:
    """Estimate the area under the ROC curve of scores for a bool outcome, ties counted
    half, resampling clusters.

    A score of NaN is left out; with `strata`, only scores of one stratum are compared.
    NaN if the outcome never varies.
    """
    known = np.isfinite(scores)
    codes = clusters.codes.loc[np.asarray(cluster_ids)[known]].to_numpy()
    outcome, scores = np.asarray(outcome, bool)[known], scores[known]
    stratum = np.zeros(len(scores)) if strata is None else np.asarray(strata)[known]
    parts = [np.flatnonzero(stratum == one) for one in np.unique(stratum)]
    parts = [part for part in parts if outcome[part].any() and not outcome[part].all()]
    if not parts:
        return clusters.undefined()

    def area(counts: np.ndarray) -> np.ndarray:
        won, pairs = np.sum(
            [_won(counts, codes[part], outcome[part], scores[part]) for part in parts],
            axis=0,
        )
        return won / pairs

    return evaluation.estimate_from_counts(clusters, area, max(1, len(codes) // 200))


def _won(
    counts: np.ndarray, codes: np.ndarray, outcome: np.ndarray, scores: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count the pairs of two outcomes in which the hit scores higher, ties half, and
    all pairs, by row of counts.
    """
    values, place = np.unique(scores, return_inverse=True)
    cells = [np.zeros((len(counts), len(values))) for _ in range(2)]
    for cell, chosen in zip(cells, (outcome, ~outcome), strict=True):
        order = np.flatnonzero(chosen)[np.argsort(place[chosen], kind="stable")]
        starts, first = np.unique(place[order], return_index=True)
        cell[:, starts] = np.add.reduceat(counts[:, codes[order]], first, axis=1)
    hits, misses = cells
    below = misses.cumsum(axis=1) - misses / 2
    return (hits * below).sum(axis=1), hits.sum(axis=1) * misses.sum(axis=1)


def matched_disagreement_ratio(
    corpus: Corpus,
    labels: Labels,
    lengths: np.ndarray,
    perplexities: np.ndarray,
    clusters: ClusterBootstrap,
) -> Estimate:
    """Estimate DR with pairs of two clusters matched to pairs of one cluster on ln PPL
    and length.

    Pairs of two clusters count as often as pairs of one lie in the same two of
    `MATCHING_BINS` squared cells.
    """
    scored = evaluation.is_paired(corpus, labels)
    if not scored.any():
        return clusters.undefined()
    cell = np.zeros(int(scored.sum()), int)
    for values in (np.log(perplexities), np.log(lengths.astype(float))):
        edges = np.quantile(values[scored], np.linspace(0, 1, MATCHING_BINS + 1)[1:-1])
        cell = cell * MATCHING_BINS + np.searchsorted(
            edges, values[scored], side="right"
        )
    cluster = clusters.codes.loc[corpus["cluster_id"].to_numpy()[scored]].to_numpy()
    rejected = (labels["label"] == "reject").to_numpy(float)[scored]
    shape = (len(clusters.codes), MATCHING_BINS * MATCHING_BINS)
    place = np.ravel_multi_index((cluster, cell), shape)
    n, r = (
        np.bincount(place, weights=one, minlength=np.prod(shape)).reshape(shape)
        for one in (None, rejected)
    )
    a = n - r
    # As in DR every prompt weighs the same, whatever its cluster's size.
    each = 1 / np.maximum(n.sum(1, keepdims=True) - 1, 1)
    pairs = [(n, n), (r, a), (n * each, n), (r * each, a)]
    products = [
        np.einsum("ci,cj->cij", one, other).reshape(len(n), -1) for one, other in pairs
    ]

    def ratio(counts: np.ndarray) -> np.ndarray:
        square = (len(counts), shape[1], shape[1])
        own, own_opposite, weight, differ = (
            (counts @ product).reshape(square) for product in products
        )
        # Ordered pairs of two cells: of all prompts, and inside clusters (a prompt with
        # itself never differs).
        other = np.einsum("bi,bj->bij", counts @ n, counts @ n) - own
        opposite = np.einsum("bi,bj->bij", counts @ r, counts @ a) - own_opposite
        weight[:, range(shape[1]), range(shape[1])] -= counts @ (n * each)
        share = (opposite + opposite.swapaxes(1, 2)) / other
        known = (weight > 0) & (other > 0)
        within = (differ + differ.swapaxes(1, 2)).sum(axis=(1, 2), where=known)
        return within / (share * weight).sum(axis=(1, 2), where=known)

    return evaluation.estimate_from_counts(clusters, ratio, parts=10)


def near_identical_ratio(
    corpus: Corpus, labels: Labels, vectors: np.ndarray, clusters: ClusterBootstrap
) -> Estimate:
    """Estimate how often prompts of one cluster with a cosine of `NEAR_SIMILARITY` are
    decided differently, as DR.

    The rate among unrelated prompts is fixed. It is undefined below `MIN_REFUSALS` such
    pairs.
    """
    decided = evaluation.count_label_decisions(corpus, labels)
    between = disagreement.disagreement_parts(decided["n"], decided["rejected"])[1]
    scored, (first, second) = (
        evaluation.is_scored(labels),
        list_cluster_pairs(corpus["cluster_id"]),
    )
    near = (
        scored[first]
        & scored[second]
        & (paired_cosine_similarity(vectors, first, second) >= NEAR_SIMILARITY)
    )
    if near.sum() < MIN_REFUSALS or not between > 0:
        return clusters.undefined()
    label = labels["label"].to_numpy()
    found = clusters.share(
        corpus["cluster_id"].to_numpy()[first[near]],
        (label[first] != label[second])[near],
    )
    return Estimate(
        found.value / between,
        found.low / between,
        found.high / between,
        found.draws / between,
    )


def estimate_measures(
    corpus: Corpus,
    labels: Labels,
    pairs: Pairs,
    scores: Scores,
    clusters: ClusterBootstrap,
    weights: ScoreWeights,
) -> dict[str, Estimate]:
    """Estimate what `confusion.estimate_rates`, `estimate_scores` and
    `sensitivity_indices` do.
    """
    return {
        **confusion.estimate_rates(corpus, labels, clusters),
        **confusion.estimate_scores(corpus, pairs, scores, clusters, weights=weights),
        **sensitivity_indices(corpus, labels, clusters),
    }


def compare_wording_halves(
    system: str, corpus: Corpus, one: Evaluation, clusters: ClusterBootstrap
) -> Table:
    """Compare every measure between clusters that are worded at greater length, or less
    fluently, and the others.

    Columns: system; wording: length (tokens of the prompts' own words) or perplexity
    (its logarithm), of which a cluster's mean lies above the median or not; measure, a
    key of `estimate_measures`; difference, upper half minus lower, with its interval;
    few: a half holds fewer than 30 rejections or acceptances.
    """
    lengths = signals.trace_lengths(one.traces).astype(float)
    words = {
        "length": lengths,
        "perplexity": np.log(signals.trace_perplexity(one.traces)),
    }
    of_pairs = one.pairs["centre_id"].map(corpus.set_index("prompt_id")["cluster_id"])
    cluster_of = (corpus["cluster_id"], of_pairs, one.scores["cluster_id"])
    rows = []
    for wording, values in words.items():
        means = pd.Series(values).groupby(corpus["cluster_id"].to_numpy()).mean()
        upper = means.index[means > means.median()]
        halves, counts = [], []
        for inside in (True, False):
            own, near, scored = (
                one.isin(upper).to_numpy() == inside for one in cluster_of
            )
            given = (corpus[own], one.labels[own], one.pairs[near], one.scores[scored])
            halves.append(estimate_measures(*given, clusters, PAPER_WEIGHTS))
            counts += [
                (one.labels["label"][own] == label).sum()
                for label in ("accept", "reject")
            ]
        for measure, higher in halves[0].items():
            row = {
                "system": system,
                "wording": wording,
                "measure": measure,
                "too_few": min(counts) < MIN_REFUSALS,
            }
            rows.append(row | to_columns({"difference": higher - halves[1][measure]}))
    return pd.DataFrame(rows)


def sensitivity_indices(
    corpus: Corpus, labels: Labels, clusters: ClusterBootstrap
) -> dict[str, Estimate]:
    """Estimate other people's indices of prompt sensitivity that decisions give.

    `agreement`: mean share of a cluster's prompts that are decided as its majority is,
    after the Safety Stability Index (arXiv 2512.12066), which is over samples of one
    prompt. `pss`: D_within, after the PromptSensiScore (arXiv 2410.12405), which
    compares a benchmark's scores of two prompts.
    """
    decided = evaluation.count_label_decisions(corpus, labels)
    n, rejected = decided["n"], decided["rejected"]
    share, differ = rejected / n, 2 * rejected * (n - rejected) / (n * (n - 1))
    agreement = clusters.mean(decided["cluster_id"], np.maximum(share, 1 - share))
    return {
        "agreement": agreement,
        "pss": clusters.mean(np.repeat(decided["cluster_id"], n), np.repeat(differ, n)),
    }


def validity_row(
    system: str,
    corpus: Corpus,
    one: Evaluation,
    vectors: np.ndarray,
    clusters: ClusterBootstrap,
) -> dict[str, object]:
    """Estimate how well isolation and CI serve as a veto, and other people's indices
    beside them.

    Keys: system, pairs (of `pair_held_out`); with intervals auc_isolation, auc_ci and
    auc_ci_clipped, dr_matched and dr_near_identical, matched_change and near_change
    (these minus DR), agreement and pss.
    """
    held = pair_held_out(corpus, one.labels)
    pairs = signals.compute_pairs(
        corpus, vectors, one.traces, one.labels, one.tokens, N_NEIGHBOURS + 1
    )
    scores = {"isolation": held["isolation"].to_numpy(float)}
    scores |= {
        ci: ci_without_held_out(held, pairs, interpretation)
        for interpretation, ci in CI_COLUMNS.items()
    }
    ids, accepted = held["cluster_id"].to_numpy(), held["accepted"].to_numpy()
    found = {
        f"auc_{name}": estimate_auc(clusters, ids, accepted, values, None)
        for name, values in scores.items()
    }
    wording = signals.trace_lengths(one.traces), signals.trace_perplexity(one.traces)
    found["dr_matched"] = matched_disagreement_ratio(
        corpus, one.labels, *wording, clusters
    )
    found["dr_near_identical"] = near_identical_ratio(
        corpus, one.labels, vectors, clusters
    )
    dr = disagreement.estimate_disagreement(
        clusters, evaluation.count_label_decisions(corpus, one.labels)
    )
    found |= {
        "matched_change": found["dr_matched"] - dr,
        "near_change": found["dr_near_identical"] - dr,
    }
    found |= sensitivity_indices(corpus, one.labels, clusters)
    return {"system": system, "pairs": len(held), **to_columns(found)}


def latent_correlation_by_moments(rate: ArrayLike, dr: ArrayLike) -> np.ndarray:
    """Compute the latent correlation, in [0, 1], at which a system with this refusal
    rate has this DR.

    0 where DR is at least 1, NaN where DR is. `disagreement.latent_correlation` fits
    the same model by maximum likelihood, which is too slow for every resample.
    """
    rate, dr = np.asarray(rate, float), np.asarray(dr, float)
    # Two prompts of a cluster are decided differently with probability 4 T(probit, a):
    # Owen's T.
    threshold, wanted = special.ndtri(rate), dr * rate * (1 - rate) / 2
    low, high = np.zeros_like(wanted), np.ones_like(wanted)
    for _ in range(50):
        middle = (low + high) / 2
        below = special.owens_t(threshold, middle) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    squared = ((low + high) / 2) ** 2
    return np.where(np.isfinite(wanted), (1 - squared) / (1 + squared), np.nan)


def correlate_dr_with_frr(
    corpus: Corpus,
    labels: Mapping[str, Labels],
    systems: Mapping[str, Sequence[str]],
    clusters: ClusterBootstrap,
) -> Table:
    """Correlate DR, and the latent correlation behind it, with the refusal rate over
    systems.

    `labels` holds each system's, in corpus order; `systems` names groups of systems.
    Columns: systems; refusals ("any", or "enough": of systems whose DR can be judged);
    measure (dr, or icc_latent: `latent_correlation_by_moments`); n, the systems with a
    DR; rho, Spearman's with FRR, with its interval. NaN below
    `MIN_TARGETS_WITH_INTERVAL` systems.
    """
    found, enough = {}, set()
    for name, own in labels.items():
        rates = confusion.estimate_rates(corpus, own, clusters)
        found[name] = {
            measure: np.append(rates[measure].value, rates[measure].draws)
            for measure in ("frr", "dr")
        }
        found[name]["icc_latent"] = latent_correlation_by_moments(
            found[name]["frr"], found[name]["dr"]
        )
        if not disagreement.too_few_for_disagreement(
            evaluation.count_label_decisions(corpus, own)
        ):
            enough.add(name)
    rows = []
    for called, names in systems.items():
        known = [name for name in names if np.isfinite(found[name]["dr"][0])]
        for refusals, chosen in (
            ("any", known),
            ("enough", [name for name in known if name in enough]),
        ):
            for measure in ("dr", "icc_latent"):
                sides = (
                    [found[name][one] for name in chosen] for one in ("frr", measure)
                )
                rho = (
                    rank_correlation(*sides)
                    if len(chosen) >= MIN_SYSTEMS_WITH_INTERVAL
                    else clusters.undefined()
                )
                row = {
                    "systems": called,
                    "refusals": refusals,
                    "measure": measure,
                    "n": len(chosen),
                }
                rows.append(row | to_columns({"rho": rho}))
    return pd.DataFrame(rows)


def rank_correlation(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> Estimate:
    """Estimate Spearman's rho over systems of two measures, each an array of value and
    draws; NaN if all are equal.
    """
    from scipy.stats import rankdata  # a second to import

    a, b = (rankdata(np.array(one), axis=0) - (len(one) + 1) / 2 for one in (x, y))
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = (a * b).sum(axis=0) / np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
    return Estimate.percentile(rho[0], rho[1:])


def content_word_overlaps(
    corpus: Corpus, first: Sequence[str], second: Sequence[str]
) -> np.ndarray:
    """Compute the Jaccard overlap of the content words of prompts, by pairs of ids.

    NaN where neither has any.
    """
    words = dict(
        zip(corpus["prompt_id"], corpus["text"].map(text.content_words), strict=True)
    )
    sides = ((words[a], words[b]) for a, b in zip(first, second, strict=True))
    return np.array([jaccard(a, b) if a or b else np.nan for a, b in sides])


def pair_within_clusters(corpus: Corpus, vectors: np.ndarray) -> pd.DataFrame:
    """Enumerate the pairs of prompts of a cluster: cluster_id, first_id, second_id,
    similarity (cosine), jaccard.
    """
    first, second = list_cluster_pairs(corpus["cluster_id"])
    cluster, ids = corpus["cluster_id"].to_numpy(), corpus["prompt_id"].to_numpy()
    pairs = pd.DataFrame(
        {"cluster_id": cluster[first], "first_id": ids[first], "second_id": ids[second]}
    )
    overlap = content_word_overlaps(corpus, pairs["first_id"], pairs["second_id"])
    return pairs.assign(
        similarity=paired_cosine_similarity(vectors, first, second), jaccard=overlap
    )


def is_near_identical(frame: pd.DataFrame) -> pd.Series:
    """Mark near-identical pairs: cosine >= `NEAR_SIMILARITY` or content-word overlap
    (jaccard) >= `NEAR_OVERLAP`.

    Neither sees a negation ("not" is no content word), so read the pairs.
    """
    return (frame["similarity"] >= NEAR_SIMILARITY) | (frame["jaccard"] >= NEAR_OVERLAP)


def near_identical_flips(
    own: pd.DataFrame, labels: Mapping[str, Labels], clusters: ClusterBootstrap
) -> Table:
    """Estimate how often near-identical prompts are decided differently, beside all
    pairs of one cluster.

    A row per system: system; n_near, near-identical pairs with two scored prompts,
    n_near_clusters and n_near_flipped; flip_near, the share decided differently, with
    its interval; n_pairs and flip_pairs, the same over all pairs of one cluster; few:
    fewer than 30 near-identical pairs.
    """
    rows = []
    for system, frame in labels.items():
        label = frame.set_index("prompt_id")["label"].where(
            lambda values: values.isin(["accept", "reject"])
        )
        first, second = own["first_id"].map(label), own["second_id"].map(label)
        pairs = own.assign(flipped=first != second)[first.notna() & second.notna()]
        near = pairs[is_near_identical(pairs)]
        shares = [
            clusters.share(some["cluster_id"], some["flipped"])
            for some in (near, pairs)
        ]
        row = {
            "system": system,
            "n_near": len(near),
            "n_near_clusters": near["cluster_id"].nunique(),
        }
        row |= {
            "n_near_flipped": int(near["flipped"].sum()),
            "n_pairs": len(pairs),
            "too_few": len(near) < MIN_REFUSALS,
        }
        rows.append(row | to_columns({"flip_near": shares[0], "flip_pairs": shares[1]}))
    return pd.DataFrame(rows)


def lowest_scored_pairs(
    corpus: Corpus, pairs: Mapping[str, Pairs], weights: ScoreWeights = PAPER_WEIGHTS
) -> Table:
    """List near-identical prompts of which one is rejected and one accepted, among the
    pairs that scores rest on.

    Columns: system, rejected_id, rejected_prompt, accepted_id, accepted_prompt,
    same_cluster, similarity, jaccard, score and score_clipped in [0, 1], share_below
    and share_below_clipped (share of the system's rejected-accepted pairs that score
    lower); lowest score first within a system. Prompts are made safe for a spreadsheet.
    """
    words = corpus.set_index("prompt_id")["text"]
    frames = []
    for system, frame in pairs.items():
        frame = frame[frame["centre_label"] == "reject"].assign(system=system)
        frame["jaccard"] = content_word_overlaps(
            corpus, frame["centre_id"], frame["neighbour_id"]
        )
        for interpretation, ci in CI_COLUMNS.items():
            score = signals.score_pairs(frame, weights, interpretation)
            below = (score.rank(method="min") - 1) / len(frame)
            frame[ci.replace("ci", "score")], frame[ci.replace("ci", "share_below")] = (
                score,
                below,
            )
        frames.append(
            frame[is_near_identical(frame)].sort_values(
                ["score", "centre_id", "neighbour_id"]
            )
        )
    rows = pd.concat(frames, ignore_index=True)
    made = {"system": rows["system"]}
    for side, ids in (
        ("rejected", rows["centre_id"]),
        ("accepted", rows["neighbour_id"]),
    ):
        made |= {
            f"{side}_id": ids,
            f"{side}_prompt": text.escape_formulas(ids.map(words)),
        }
    numbers = [
        "similarity",
        "jaccard",
        "score",
        "score_clipped",
        "share_below",
        "share_below_clipped",
    ]
    return pd.DataFrame(made).join(rows[["same_cluster", *numbers]])


COVARIATE_TITLES = {  # what is known of a rejection without token signals
    "similarity": "similarity to neighbours",
    "jaccard": "word overlap with neighbours",
    "risk": "surface risk",
    "length": "prompt length",
    "cluster_frr": "refusals in its cluster",
    "flip_entropy": "flip entropy of its cluster",
}

SIGNAL_TITLES = {
    "drift": "Drift",
    "prob_shift": "ProbShift",
    "ppl": "PPL contrast",
}  # CI is their means, weighted
# The lower edge of the paper's break condition on the correlation with similarity
CORRELATION_LIMIT = 0.7


def ci_covariates(
    corpus: Corpus,
    traces: Traces,
    labels: Labels,
    pairs: Pairs,
    scores: Scores,
    k: int = N_NEIGHBOURS,
) -> pd.DataFrame:
    """Put beside CI of each scored rejection what it may repeat.

    Columns: prompt_id, cluster_id, ci and ci_clipped in [0, 1]; similarity (mean cosine
    to its neighbours), jaccard (mean content-word overlap with them), risk, length
    (tokens of its own words), cluster_frr (share of the *other* scored prompts of its
    cluster that are refused, NaN without any: counting itself would give small clusters
    a high rate), flip_entropy (of its cluster, in bits); drift, prob_shift,
    ppl_relative, ppl_clipped, means over its k nearest neighbours.
    """
    near = pairs[(pairs["centre_label"] == "reject") & signals.is_ranked(pairs, k)]
    near = near.assign(
        jaccard=content_word_overlaps(corpus, near["centre_id"], near["neighbour_id"])
    )
    means = near.groupby("centre_id")[
        ["jaccard", "drift", "prob_shift", *PPL_INTERPRETATIONS.values()]
    ].mean()
    own = corpus.set_index("prompt_id")[["risk"]].assign(
        length=signals.trace_lengths(traces)
    )
    decided = confusion.describe_flips(corpus, labels).set_index("cluster_id")
    about = pd.DataFrame(
        {"cluster_frr": (decided["rejected"] - 1) / (decided["n"] - 1)}
    )
    about["flip_entropy"] = decided["entropy"]
    rows = confusion.select_rejections(scores).rename(
        columns={"mean_similarity": "similarity"}
    )
    rows = rows[["prompt_id", "cluster_id", *CI_COLUMNS.values(), "similarity"]]
    rows = (
        rows.join(means, on="prompt_id")
        .join(own, on="prompt_id")
        .join(about, on="cluster_id")
    )
    return rows.reset_index(drop=True)


def correlate_ci(
    frames: Mapping[str, pd.DataFrame], clusters: ClusterBootstrap
) -> Table:
    """Correlate CI(r) with each covariate and each signal over each system's rejections
    (`ci_covariates`).

    Columns: system, reading, covariate, n (rejections in which it is defined), few (n <
    30), Pearson's r and Spearman's rho with intervals; that of rho resamples the ranks
    of the full sample (ours). The row `similarity` is Fig. 3's.
    """
    rows = []
    for system, frame in frames.items():
        for interpretation, ci in CI_COLUMNS.items():
            for name in (*COVARIATE_TITLES, *SIGNAL_TITLES):
                column = PPL_INTERPRETATIONS[interpretation] if name == "ppl" else name
                known = frame[frame[column].notna()]
                sides = (known, known[[column, ci]].rank())
                r, rho = (
                    clusters.correlation(known["cluster_id"], some[column], some[ci])
                    for some in sides
                )
                row = {
                    "system": system,
                    "interpretation": interpretation,
                    "covariate": name,
                    "n": len(known),
                }
                rows.append(
                    row
                    | {
                        "too_few": len(known) < MIN_REFUSALS,
                        **to_columns({"r": r, "rho": rho}),
                    }
                )
    # Processors differ in the last digits, and a figure shows it: nine decimals are the
    # same on all of them.
    return pd.DataFrame(rows).round(9)
