"""Which measure says something of refusing? Vetoes, rivals, matched pairs (`docs/method.md`, Disagreement).

Near-identical prompts: how often they are decided differently, and where the score ranks them.

Identical prompts score 0, so the score ranks the starkest contradictions lowest (`docs/method.md`, What CI adds).

What CI of a rejection restates: covariates, single signals, variance explained (`docs/method.md`, What CI adds).

CI is set beside what is known without token signals, and beside each signal alone.
"""

import itertools
from collections.abc import Mapping, Sequence
from math import isqrt

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special, stats

from paraguard_utils import text
from paraguard_utils.analysis import confusion, evaluation, signals
from paraguard_utils.analysis.confusion import CI
from paraguard_utils.analysis.signals import score
from paraguard_utils.core import disagreement
from paraguard_utils.core.confusion import K
from paraguard_utils.core.estimates import MIN_REFUSALS, ClusterBootstrap, Estimate, to_columns
from paraguard_utils.core.signals import PAPER_WEIGHTS, READINGS, ScoreWeights
from paraguard_utils.core.vectors import pair_cosine, unit
from paraguard_utils.core.words import jaccard
from paraguard_utils.schemas import Corpus, Labels, Pairs, Scores, Table, Tokens, Traces

BINS = 5
"""Bins of ln PPL and of length, by quantiles of all scored prompts."""

EDGES = (-1.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.01)
"""Ends of the bins of cosine in the variogram; from 0.95 on paraphrases are near-identical."""

NEAR = 0.95
"""Cosine from which paraphrases are near-identical."""

LEAST_TARGETS = 8
"""Fewer targets than this, and there is no rank correlation over them."""

LEAST_RANKED = 5
"""The same for a rank correlation that has an interval, which shows how little a handful of targets says."""


def veto_pairs(corpus: Corpus, labels: Labels) -> pd.DataFrame:
    """Pair every rejection with each other scored prompt of its cluster, which is held out.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.

    Returns
    -------
    DataFrame
        prompt_id (the rejection), held_out, cluster_id, accepted (is the held-out prompt?), isolation (share of the
        rest of the cluster that is accepted); clusters with at least three scored prompts.
    """
    frame = pd.DataFrame(
        {"prompt_id": corpus["prompt_id"], "cluster_id": corpus["cluster_id"], "label": labels["label"].to_numpy()}
    )
    frame = frame[frame["label"].isin(["accept", "reject"])]
    both = frame[frame["label"] == "reject"].merge(frame, on="cluster_id", suffixes=("", "_held"))
    both = both[both["prompt_id"] != both["prompt_id_held"]]
    accepted = (both["label_held"] == "accept").to_numpy()
    own = frame.groupby("cluster_id")["label"].agg(n="size", accepted=lambda label: (label == "accept").sum())
    n, others = own["n"].loc[both["cluster_id"]].to_numpy(), own["accepted"].loc[both["cluster_id"]].to_numpy()
    made = pd.DataFrame({"prompt_id": both["prompt_id"], "held_out": both["prompt_id_held"]})
    made = made.assign(cluster_id=both["cluster_id"], accepted=accepted)
    keep = n >= 3
    return made[keep].assign(isolation=((others - accepted) / np.maximum(n - 2, 1))[keep]).reset_index(drop=True)


def ci_without(
    held: pd.DataFrame, pairs: Pairs, reading: str = "relative", weights: ScoreWeights = PAPER_WEIGHTS, k: int = K
) -> np.ndarray:
    """Return CI(r) of each veto pair over the k nearest accepted prompts but the held-out one.

    Parameters
    ----------
    held : DataFrame
        From `veto_pairs`.
    pairs : DataFrame
        A pairs file with k + 1 ranks.
    reading : str
    weights : ScoreWeights
    k : int

    Returns
    -------
    numpy.ndarray, shape (len(held),)
        NaN without a neighbour.
    """
    near = pairs[(pairs["centre_label"] == "reject") & (pairs["rank"] <= k + 1).fillna(False)]
    near = near.assign(score=score(near, weights, reading))[["centre_id", "neighbour_id", "rank", "score"]]
    rows = held.reset_index().merge(near, left_on="prompt_id", right_on="centre_id")
    rows = rows[rows["neighbour_id"] != rows["held_out"]].sort_values(["index", "rank"])
    return rows.groupby("index").head(k).groupby("index")["score"].mean().reindex(held.index).to_numpy(float)


def auc(
    clusters: ClusterBootstrap,
    cluster_ids: Sequence[str],
    outcome: np.ndarray,
    scores: np.ndarray,
    strata: np.ndarray | None = None,
) -> Estimate:
    """Return the area under the ROC curve of scores for an outcome, ties half, with its interval over clusters.

    Parameters
    ----------
    clusters : ClusterBootstrap
    cluster_ids : sequence of str, length n
    outcome : numpy.ndarray of bool, shape (n,)
    scores : numpy.ndarray, shape (n,)
        NaN is left out.
    strata : numpy.ndarray, shape (n,), or None
        Only what is in the same stratum is compared.

    Returns
    -------
    Estimate
        In [0, 1]; NaN where the outcome is always the same.
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
        won, pairs = np.sum([_won(counts[:, codes[part]], outcome[part], scores[part]) for part in parts], axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return won / pairs

    value = float(area(np.ones((1, len(clusters.codes))))[0])
    draws = np.concatenate([area(part) for part in np.array_split(clusters.counts, max(1, len(codes) // 200))])
    return Estimate.percentile(value, draws)


def _won(weights: np.ndarray, outcome: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the pairs of two outcomes in which the hit scores higher, ties half, and all pairs, by row of weights."""
    values, place = np.unique(scores, return_inverse=True)
    cells = [np.zeros((len(weights), len(values))) for _ in range(2)]
    for cell, chosen in zip(cells, (outcome, ~outcome), strict=True):
        order = np.argsort(place[chosen], kind="stable")
        starts, first = np.unique(place[chosen][order], return_index=True)
        cell[:, starts] = np.add.reduceat(weights[:, chosen][:, order], first, axis=1)
    hits, misses = cells
    below = misses.cumsum(axis=1) - misses / 2
    return (hits * below).sum(axis=1), hits.sum(axis=1) * misses.sum(axis=1)


def matched_ratio(
    corpus: Corpus, labels: Labels, traces: Traces, perplexities: np.ndarray, clusters: ClusterBootstrap
) -> Estimate:
    """Return DR whose pairs of two clusters are matched with those of one on ln PPL and length.

    Parameters
    ----------
    corpus, labels, traces : DataFrame
        Rows in the same order.
    perplexities : numpy.ndarray, shape (n,)
    clusters : ClusterBootstrap

    Returns
    -------
    Estimate
        Each prompt falls into one of `BINS` by `BINS` cells; pairs of two clusters count as often as pairs of one fall
        into the same two cells, cells without pairs of two left out. NaN where DR is.
    """
    paired = corpus["cluster_id"].isin(evaluation.tally(corpus, labels)["cluster_id"]).to_numpy()
    scored = paired & labels["label"].isin(["accept", "reject"]).to_numpy()
    length = np.log((traces["user_end"] - traces["user_start"]).to_numpy(float))
    if not scored.any():
        return clusters.undefined()
    cell = np.zeros(int(scored.sum()), int)
    for values in (np.log(perplexities), length):
        edges = np.quantile(values[scored], np.linspace(0, 1, BINS + 1)[1:-1])
        cell = cell * BINS + np.searchsorted(edges, values[scored], side="right")
    cluster = clusters.codes.loc[corpus["cluster_id"].to_numpy()[scored]].to_numpy()
    rejected = (labels["label"] == "reject").to_numpy(float)[scored]
    shape = (len(clusters.codes), BINS * BINS)
    place = np.ravel_multi_index((cluster, cell), shape)
    n, r = (np.bincount(place, weights=one, minlength=np.prod(shape)).reshape(shape) for one in (None, rejected))
    a = n - r
    # As in DR every prompt weighs the same, whatever its cluster's size.
    each = 1 / np.maximum(n.sum(1, keepdims=True) - 1, 1)
    pairs = [(n, n), (r, a), (n * each, n), (r * each, a)]
    products = [np.einsum("ci,cj->cij", one, other).reshape(len(n), -1) for one, other in pairs]

    def ratio(counts: np.ndarray) -> np.ndarray:
        """Return the matched DR of every row of counts."""

        def outer(one: np.ndarray, other: np.ndarray) -> np.ndarray:
            return np.einsum("bi,bj->bij", counts @ one, counts @ other)

        square = (len(counts), BINS * BINS, BINS * BINS)
        own, own_opposite, weight, differ = ((counts @ product).reshape(square) for product in products)
        # Ordered pairs of two cells: of all prompts, and inside clusters (a prompt with itself never differs).
        other = outer(n, n) - own
        opposite = outer(r, a) - own_opposite
        weight[:, range(square[1]), range(square[1])] -= counts @ (n * each)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (opposite + opposite.swapaxes(1, 2)) / other
            known = (weight > 0) & (other > 0)
            within = (differ + differ.swapaxes(1, 2)).sum(axis=(1, 2), where=known)
            return within / (share * weight).sum(axis=(1, 2), where=known)

    draws = np.concatenate([ratio(part) for part in np.array_split(clusters.counts, 10)])
    value = float(ratio(np.ones((1, len(n))))[0])
    return Estimate.percentile(value, draws) if np.isfinite(value) else clusters.undefined()


def near_ratio(corpus: Corpus, labels: Labels, vectors: np.ndarray, clusters: ClusterBootstrap) -> Estimate:
    """Return how often near-identical prompts of one cluster are decided differently, against unrelated prompts.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors; near-identical is a cosine of `NEAR` or more.
    clusters : ClusterBootstrap

    Returns
    -------
    Estimate
        In the units of DR, the rate among unrelated prompts fixed. Undefined below `MIN_REFUSALS` such pairs.
    """
    alike = disagreement.cluster_profiles(evaluation.tally(corpus, labels))
    between = disagreement.ratio(alike["n"], alike["rejected"], alike["times"])[1]
    scored = np.flatnonzero(labels["label"].isin(["accept", "reject"]))
    rows = [scored[own] for own in corpus.iloc[scored].groupby("cluster_id").indices.values()]
    first, second = np.array([pair for own in rows for pair in itertools.combinations(own, 2)]).reshape(-1, 2).T
    near = pair_cosine(vectors, first, second) >= NEAR
    if near.sum() < MIN_REFUSALS or not between > 0:
        return clusters.undefined()
    label = labels["label"].to_numpy()
    found = clusters.share(corpus["cluster_id"].to_numpy()[first[near]], (label[first] != label[second])[near])
    value, low, high = (end / between for end in found)
    return Estimate(value, low, high, found.draws / between)


def by_similarity(
    corpus: Corpus, labels: Labels, vectors: np.ndarray, clusters: ClusterBootstrap, edges: Sequence[float] = EDGES
) -> pd.DataFrame:
    """Return how often prompts are decided differently by how similar they are: a variogram of decisions.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors.
    clusters : ClusterBootstrap
    edges : sequence of float
        Ends of the bins of cosine, ascending; a pair at an edge is in the bin above.

    Returns
    -------
    DataFrame
        scope ("one cluster", "two clusters"), low_edge, high_edge, pairs, ratio: the share of pairs decided
        differently over that of all pairs of two clusters, with its interval for pairs of one cluster (over clusters).
    """
    scored = labels["label"].isin(["accept", "reject"]).to_numpy()
    rejected = (labels["label"] == "reject").to_numpy()[scored]
    names = corpus["cluster_id"].to_numpy()[scored]
    units = unit(vectors[scored])
    first, second = np.triu_indices(len(names), 1)
    cosine = (units @ units.T)[first, second]
    same, differ = names[first] == names[second], rejected[first] != rejected[second]
    base = differ[~same].mean()
    place = np.digitize(cosine, edges) - 1
    rows = []
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        for scope, of in (("one cluster", same), ("two clusters", ~same)):
            chosen = of & (place == number)
            row: dict[str, object] = {"scope": scope, "low_edge": low, "high_edge": high, "pairs": int(chosen.sum())}
            share = clusters.share(names[first][chosen], differ[chosen]) if scope == "one cluster" else None
            found = share or (differ[chosen].mean() if chosen.any() else np.nan, np.nan, np.nan)
            row |= {f"ratio{end}": value / base for end, value in zip(("", "_low", "_high"), found, strict=True)}
            rows.append(row)
    return pd.DataFrame(rows)


def measures(
    corpus: Corpus,
    labels: Labels,
    pairs: Pairs,
    scores: Scores,
    clusters: ClusterBootstrap,
    weights: ScoreWeights = PAPER_WEIGHTS,
) -> dict[str, Estimate]:
    """Return every measure that decisions and pairs give, side by side, for worlds and tasks beyond the record.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.
    pairs, scores : DataFrame
    clusters : ClusterBootstrap
    weights : ScoreWeights

    Returns
    -------
    dict of str to Estimate
        What `confusion.rate_estimates`, `confusion.score_estimates` and `indices` give.
    """
    return {
        **confusion.rate_estimates(corpus, labels, clusters),
        **confusion.score_estimates(corpus, pairs, scores, clusters, weights=weights),
        **indices(corpus, labels, clusters),
    }


def by_wording(
    target: str,
    corpus: Corpus,
    labels: Labels,
    traces: Traces,
    pairs: Pairs,
    scores: Scores,
    clusters: ClusterBootstrap,
    weights: ScoreWeights = PAPER_WEIGHTS,
) -> Table:
    """Compare every measure between clusters that are worded at greater length, or less fluently, and the others.

    Parameters
    ----------
    target : str
    corpus, labels, traces : DataFrame
        Rows in the same order.
    pairs, scores : DataFrame
        The target's.
    clusters : ClusterBootstrap
    weights : ScoreWeights

    Returns
    -------
    DataFrame
        target; wording: length (tokens of the prompts' own words) or perplexity (its logarithm), of which a cluster's
        mean lies above the median or not (a tie belongs to the lower half); measure, a key of `measures`; difference,
        upper half minus lower, on the same resampled clusters, with its interval; few: a half holds fewer than 30
        rejections or acceptances.
    """
    words = {
        "length": (traces["user_end"] - traces["user_start"]).to_numpy(float),
        "perplexity": np.log(signals.perplexity(traces)),
    }
    ids, rows = corpus["cluster_id"].to_numpy(), []
    cluster_of = dict(zip(corpus["prompt_id"], ids, strict=True))
    for wording, values in words.items():
        means = pd.Series(values).groupby(ids).mean()
        upper = set(means.index[means > means.median()])
        halves, counts = [], []
        for inside in (True, False):
            own = np.array([(one in upper) is inside for one in ids])
            of_pairs = [(cluster_of[one] in upper) is inside for one in pairs["centre_id"]]
            of_scores = [(one in upper) is inside for one in scores["cluster_id"]]
            half = (corpus[own], labels[own], pairs[of_pairs], scores[of_scores])
            halves.append(measures(*half, clusters, weights))
            counts += [(labels["label"][own] == label).sum() for label in ("accept", "reject")]
        for measure, one in halves[0].items():
            other = halves[1][measure]
            row = {"target": target, "wording": wording, "measure": measure, "few": min(counts) < MIN_REFUSALS}
            rows.append(row | to_columns({"difference": one - other}))
    return pd.DataFrame(rows)


def indices(corpus: Corpus, labels: Labels, clusters: ClusterBootstrap) -> dict[str, Estimate]:
    """Return other people's indices of prompt sensitivity that decisions give.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.
    clusters : ClusterBootstrap

    Returns
    -------
    dict of str to Estimate
        agreement: mean share of a cluster's prompts that are decided as its majority is, after the Safety Stability
        Index (arXiv 2512.12066), which is over samples of one prompt; pss: mean absolute difference of the decisions
        of two prompts of a cluster, after the PromptSensiScore (arXiv 2410.12405), with the decision in the place of
        a benchmark's score: it is D_within.
    """
    decided = evaluation.tally(corpus, labels)
    n, rejected = decided["n"], decided["rejected"]
    share, differ = rejected / n, 2 * rejected * (n - rejected) / (n * (n - 1))
    return {
        "agreement": clusters.mean(decided["cluster_id"], np.maximum(share, 1 - share)),
        "pss": clusters.mean(np.repeat(decided["cluster_id"], n), np.repeat(differ, n)),
    }


def posix(corpus: Corpus, traces: Traces) -> float:
    """Return a target's prompt sensitivity as far as first tokens give it, after POSIX (arXiv 2410.02185).

    Parameters
    ----------
    corpus, traces : DataFrame
        Rows in the same order.

    Returns
    -------
    float
        Mean absolute difference, between two prompts of a cluster, of the log probability of the first token of the
        answer to one of them; POSIX is over whole answers. A token outside the kept ones counts as likely as the last
        of these.
    """
    tables = [
        dict(zip(ids.tolist(), logs.tolist(), strict=True))
        for ids, logs in zip(traces["next_ids"], traces["next_logprobs"], strict=True)
    ]
    floor = [min(table.values()) for table in tables]
    first = [int(ids[0]) for ids in traces["next_ids"]]
    means = []
    for rows in corpus.groupby("cluster_id").indices.values():
        gaps = [abs(tables[i].get(first[j], floor[i]) - tables[j][first[j]]) for i in rows for j in rows if i != j]
        if gaps:
            means.append(np.mean(gaps))
    return float(np.mean(means)) if means else np.nan


def row(
    target: str,
    corpus: Corpus,
    labels: Labels,
    traces: Traces,
    vectors: np.ndarray,
    tokens: Tokens | signals.Drifts,
    clusters: ClusterBootstrap,
) -> dict[str, object]:
    """Return how well isolation and CI serve as a veto, and other people's indices beside them.

    Parameters
    ----------
    target : str
    corpus, labels, traces : DataFrame
        Rows in the same order.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors.
    tokens : DataFrame or signals.Drifts
        The target's.
    clusters : ClusterBootstrap

    Returns
    -------
    dict
        target, pairs (`veto_pairs`); with intervals auc_isolation, auc_ci and auc_ci_clipped, dr_matched
        (`matched_ratio`) and dr_near (`near_ratio`), matched_change and near_change (these minus DR), agreement and pss
        (`indices`); posix.
    """
    held = veto_pairs(corpus, labels)
    pairs = signals.pairs(corpus, vectors, traces, labels, tokens, K + 1)
    measures = {"isolation": held["isolation"].to_numpy(float)}
    measures |= {"ci": ci_without(held, pairs), "ci_clipped": ci_without(held, pairs, "clipped")}
    ids, accepted = held["cluster_id"].to_numpy(), held["accepted"].to_numpy()
    areas = {f"auc_{name}": auc(clusters, ids, accepted, values) for name, values in measures.items()}
    ratios = {
        "matched": matched_ratio(corpus, labels, traces, signals.perplexity(traces), clusters),
        "near": near_ratio(corpus, labels, vectors, clusters),
    }
    dr = disagreement.estimate(clusters, evaluation.tally(corpus, labels))
    areas |= {f"dr_{name}": found for name, found in ratios.items()}
    areas |= {f"{name}_change": found - dr for name, found in ratios.items()}
    areas |= indices(corpus, labels, clusters)
    return {"target": target, "pairs": len(held), **to_columns(areas), "posix": posix(corpus, traces)}


def with_rate(table: Table, measures: Sequence[str]) -> Table:
    """Correlate measures with the refusal rate over targets: an index of *how* should not follow *how often*.

    Parameters
    ----------
    table : DataFrame
        A row per target; columns frr and the measures.
    measures : sequence of str

    Returns
    -------
    DataFrame
        measure, n (targets with both), rho: Spearman's, NaN below eight targets.
    """
    rows = []
    for measure in measures:
        known = table[["frr", measure]].dropna()
        rho = known["frr"].corr(known[measure], method="spearman") if len(known) >= LEAST_TARGETS else np.nan
        rows.append({"measure": measure, "n": len(known), "rho": rho})
    return pd.DataFrame(rows)


def latent_by_moments(rate: ArrayLike, dr: ArrayLike) -> np.ndarray:
    """Return the latent correlation at which a target with this refusal rate has this DR.

    Parameters
    ----------
    rate, dr : array-like of float, equal shapes

    Returns
    -------
    numpy.ndarray
        In [0, 1]; 0 where DR is at least 1; NaN where DR is.

    See Also
    --------
    disagreement.latent : The same model, by maximum likelihood; too slow for every resample.

    Examples
    --------
    >>> latent_by_moments([0.5, 0.5], [2 / 3, 1]).round(6).tolist()  # DR is 1 - 2 / pi * arcsin(correlation)
    [0.5, 0.0]
    """
    rate, dr = np.asarray(rate, float), np.asarray(dr, float)
    # Two prompts of a cluster are decided differently with probability 4 T(probit, a): Owen's T.
    threshold, wanted = special.ndtri(rate), dr * rate * (1 - rate) / 2
    low, high = np.zeros_like(wanted), np.ones_like(wanted)
    for _ in range(50):
        middle = (low + high) / 2
        below = special.owens_t(threshold, middle) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    squared = ((low + high) / 2) ** 2
    return np.where(np.isfinite(wanted), (1 - squared) / (1 + squared), np.nan)


def dr_and_frr(
    corpus: Corpus, labels: Mapping[str, Labels], systems: Mapping[str, Sequence[str]], clusters: ClusterBootstrap
) -> Table:
    """Correlate DR, and the latent correlation behind it, with the refusal rate over targets.

    Parameters
    ----------
    corpus : DataFrame
    labels : dict of str to DataFrame
        By target, rows in corpus order.
    systems : dict of str to sequence of str
        Targets, by what they are called together.
    clusters : ClusterBootstrap

    Returns
    -------
    DataFrame
        systems; refusals ("any", or "enough": without targets that have too few, `disagreement.few`); measure (dr, or
        icc_latent: `latent_by_moments`); n, the targets with a DR; rho, Spearman's with FRR, with its interval (all
        targets on the same resampled clusters). NaN below `LEAST_RANKED` targets.
    """
    found: dict[str, dict[str, np.ndarray]] = {"frr": {}, "dr": {}, "icc_latent": {}}
    enough = {}
    for name, own in labels.items():
        rates, decided = (
            confusion.rate_estimates(corpus, own, clusters),
            evaluation.tally(corpus, own),
        )
        for measure in ("frr", "dr"):
            found[measure][name] = np.append(rates[measure][0], rates[measure].draws)
        found["icc_latent"][name] = latent_by_moments(found["frr"][name], found["dr"][name])
        enough[name] = not disagreement.too_few(decided)
    rows = []
    for called, names in systems.items():
        known = [name for name in names if np.isfinite(found["dr"][name][0])]
        for refusals, chosen in (("any", known), ("enough", [name for name in known if enough[name]])):
            for measure in ("dr", "icc_latent"):
                rho = clusters.undefined()
                if len(chosen) >= LEAST_RANKED:
                    value, *draws = _spearman(*([found[one][name] for name in chosen] for one in ("frr", measure)))
                    rho = Estimate.percentile(value, np.array(draws))
                row = {"systems": called, "refusals": refusals, "measure": measure, "n": len(chosen)}
                rows.append(row | to_columns({"rho": rho}))
    return pd.DataFrame(rows)


def _spearman(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Return Spearman's rho down each column; NaN where a value is, and without spread."""
    a, b = (stats.rankdata(one, axis=0) - (len(one) + 1) / 2 for one in map(np.asarray, (x, y)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return (a * b).sum(axis=0) / np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))


NEAR_SIMILARITY, NEAR_OVERLAP = 0.95, 0.8
"""Two prompts are near-identical from this similarity or this content-word overlap on (ours)."""


def overlaps(corpus: Corpus, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Return the Jaccard overlap of the content words of prompts, pair by pair; NaN where neither has any.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, text.
    first, second : sequence of str, length m
        Prompt ids.

    Returns
    -------
    numpy.ndarray, shape (m,), in [0, 1]
    """
    words = dict(zip(corpus["prompt_id"], corpus["text"].map(text.content_words), strict=True))
    sides = ((words[a], words[b]) for a, b in zip(first, second, strict=True))
    return np.array([jaccard(a, b) if a or b else np.nan for a, b in sides])


def own_pairs(corpus: Corpus, vectors: np.ndarray) -> pd.DataFrame:
    """Enumerate all pairs of prompts of one cluster, whatever was decided.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, cluster_id, text.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors in corpus order.

    Returns
    -------
    DataFrame
        cluster_id, first_id, second_id, similarity (cosine), jaccard (of content words); each pair once.
    """
    rows = pd.DataFrame({"cluster_id": corpus["cluster_id"].to_numpy(), "centre": np.arange(len(corpus))})
    rows = rows.merge(rows.rename(columns={"centre": "neighbour"}), on="cluster_id")
    rows = rows[rows["centre"] < rows["neighbour"]].reset_index(drop=True)
    ids = corpus["prompt_id"].to_numpy()
    first, second = ids[rows["centre"]], ids[rows["neighbour"]]
    return pd.DataFrame(
        {
            "cluster_id": rows["cluster_id"],
            "first_id": first,
            "second_id": second,
            "similarity": pair_cosine(vectors, rows["centre"].to_numpy(), rows["neighbour"].to_numpy()),
            "jaccard": overlaps(corpus, first, second),
        }
    )


def is_near_identical(
    frame: pd.DataFrame, similarity: float = NEAR_SIMILARITY, overlap: float = NEAR_OVERLAP
) -> pd.Series:
    """Return which pairs are near-identical: cosine >= `similarity` or content-word overlap >= `overlap` (ours).

    Neither sees a negation: "not" is no content word, and a sentence encoder puts a sentence near its denial. The pairs
    are to be read.

    Parameters
    ----------
    frame : DataFrame
        Columns similarity, jaccard.
    similarity, overlap : float

    Returns
    -------
    Series of bool
    """
    return (frame["similarity"] >= similarity) | (frame["jaccard"] >= overlap)


def flip_shares(own: pd.DataFrame, labels: Mapping[str, Labels], clusters: ClusterBootstrap) -> Table:
    """Say how often near-identical prompts are decided differently, beside all pairs of one cluster.

    Parameters
    ----------
    own : DataFrame
        From `own_pairs`.
    labels : dict of str to DataFrame
        By target.
    clusters : ClusterBootstrap

    Returns
    -------
    DataFrame, one row per target
        target; n_near, near-identical pairs whose prompts are both accepted or rejected, n_near_clusters and
        n_near_flipped; flip_near, the share decided differently, with its interval over clusters; n_pairs and
        flip_pairs, the same over all pairs of one cluster; few: fewer than 30 near-identical pairs.
    """
    rows = []
    for target, frame in labels.items():
        label = frame.set_index("prompt_id")["label"].where(lambda values: values.isin(["accept", "reject"]))
        first, second = own["first_id"].map(label), own["second_id"].map(label)
        scored = first.notna() & second.notna()
        pairs = own.assign(flipped=first != second)[scored]
        near = pairs[is_near_identical(pairs)]
        found = {
            "flip_near": clusters.share(near["cluster_id"], near["flipped"]),
            "flip_pairs": clusters.share(pairs["cluster_id"], pairs["flipped"]),
        }
        row = {"target": target, "n_near": len(near), "n_near_clusters": near["cluster_id"].nunique()}
        row |= {"n_near_flipped": int(near["flipped"].sum()), "n_pairs": len(pairs), "few": len(near) < MIN_REFUSALS}
        rows.append(row | to_columns(found))
    return pd.DataFrame(rows)


def low_tail(corpus: Corpus, pairs: Mapping[str, Pairs], weights: ScoreWeights = PAPER_WEIGHTS) -> Table:
    """List near-identical prompts of which one is rejected and one accepted (`docs/method.md`, What CI adds).

    They are looked for among the pairs a target's scores rest on: of one cluster, or nearest neighbours from another.

    Parameters
    ----------
    corpus : DataFrame
        Columns prompt_id, text.
    pairs : dict of str to DataFrame
        By target.
    weights : ScoreWeights

    Returns
    -------
    DataFrame
        target, rejected_id, rejected_prompt, accepted_id, accepted_prompt, same_cluster, similarity, jaccard, score and
        score_clipped in [0, 1], share_below and share_below_clipped (share of the target's rejected-accepted pairs that
        score lower); lowest score first within a target. Prompts are made safe for a spreadsheet.
    """
    words = corpus.set_index("prompt_id")["text"]
    frames = []
    for target, frame in pairs.items():
        frame = frame[frame["centre_label"] == "reject"]
        frame = frame.assign(jaccard=overlaps(corpus, frame["centre_id"], frame["neighbour_id"]))
        for reading, ci in CI.items():
            name = ci.replace("ci", "score")
            frame[name] = signals.score(frame, weights, reading)
            below = frame[name].rank(method="min") - 1
            frame[name.replace("score", "share_below")] = below / len(frame)
        frames.append(
            frame[is_near_identical(frame)].sort_values(["score", "centre_id", "neighbour_id"]).assign(target=target)
        )
    rows = pd.concat(frames, ignore_index=True)
    rows = rows.rename(columns={"centre_id": "rejected_id", "neighbour_id": "accepted_id"})
    for side in ("rejected", "accepted"):
        rows[f"{side}_prompt"] = text.formula_safe(rows[f"{side}_id"].map(words))
    numbers = ["similarity", "jaccard", "score", "score_clipped", "share_below", "share_below_clipped"]
    sides = [f"{side}_{part}" for side in ("rejected", "accepted") for part in ("id", "prompt")]
    return rows[["target", *sides, "same_cluster", *numbers]]


COVARIATES = {
    "similarity": "similarity to neighbours",
    "jaccard": "word overlap with neighbours",
    "risk": "surface risk",
    "length": "prompt length",
    "cluster_frr": "refusals in its cluster",
    "flip_entropy": "flip entropy of its cluster",
}
"""What is known of a rejection without token signals."""

SIGNALS = {"drift": "Drift", "prob_shift": "ProbShift", "ppl": "PPL contrast"}
"""The three parts of the score: CI is the weighted sum of their means."""

LIMIT = 0.7
"""The lower edge of the paper's break condition on the correlation with similarity."""


def beside_ci(corpus: Corpus, traces: Traces, labels: Labels, pairs: Pairs, scores: Scores, k: int = K) -> pd.DataFrame:
    """Put beside CI of each rejection what it may restate.

    Parameters
    ----------
    corpus, traces, labels : DataFrame
        Rows in the same order.
    pairs, scores : DataFrame
        The target's.
    k : int
        Neighbours used: those with rank <= k.

    Returns
    -------
    DataFrame, one row per scored rejection
        prompt_id, cluster_id, ci and ci_clipped in [0, 1]; similarity (mean cosine to its neighbours), jaccard (mean
        content-word overlap with them), risk, length (tokens of its own words), cluster_frr (share of the *other*
        scored prompts of its cluster that are refused: every row is a refusal, and counting itself would give small
        clusters a high rate by construction; NaN where there is no other), flip_entropy (of its cluster, itself
        included, in bits); drift, prob_shift, ppl_relative, ppl_clipped, means over its neighbours.
    """
    near = pairs[(pairs["centre_label"] == "reject") & signals.ranked(pairs, k)]
    near = near.assign(jaccard=overlaps(corpus, near["centre_id"], near["neighbour_id"]))
    means = near.groupby("centre_id")[["jaccard", "drift", "prob_shift", *READINGS.values()]].mean()
    own = pd.DataFrame(
        {"risk": corpus["risk"].to_numpy(), "length": (traces["user_end"] - traces["user_start"]).to_numpy()}
    )
    own.index = corpus["prompt_id"]
    decided = confusion.flips(corpus, labels).set_index("cluster_id")
    others = decided["accepted"] + decided["rejected"] - 1
    about = pd.DataFrame({"cluster_frr": (decided["rejected"] - 1) / others, "flip_entropy": decided["entropy"]})
    rows = confusion.rejections(scores).rename(columns={"mean_similarity": "similarity"})
    rows = rows[["prompt_id", "cluster_id", *CI.values(), "similarity"]]
    rows = rows.join(means, on="prompt_id").join(own, on="prompt_id").join(about, on="cluster_id")
    return rows.reset_index(drop=True)


def correlations(frames: Mapping[str, pd.DataFrame], clusters: ClusterBootstrap) -> Table:
    """Correlate CI(r) with each covariate and each signal over a target's rejections.

    Parameters
    ----------
    frames : dict of str to DataFrame
        From `beside_ci`, by target.
    clusters : ClusterBootstrap

    Returns
    -------
    DataFrame
        target, reading, covariate, n (rejections in which it is defined), few (n < 30), Pearson's r and Spearman's rho,
        both with cluster-bootstrap intervals. rho is Pearson's r of the ranks, and its interval resamples the ranks of
        the full sample: they are not ranked anew in each resample (ours). The row `similarity` is Fig. 3's.
    """
    rows = []
    for target, frame in frames.items():
        for reading, ci in CI.items():
            for name in (*COVARIATES, *SIGNALS):
                column = READINGS[reading] if name == "ppl" else name
                known = frame[frame[column].notna()]
                both = known[[column, ci]]
                found = {
                    "r": clusters.correlation(known["cluster_id"], both[column], both[ci]),
                    "rho": clusters.correlation(known["cluster_id"], *(both.rank()[part] for part in both)),
                }
                row = {"target": target, "reading": reading, "covariate": name, "n": len(known)}
                rows.append(row | {"few": len(known) < MIN_REFUSALS, **to_columns(found)})
    # Processors differ in the last digits, and a figure shows it: nine decimals are the same on all of them.
    return pd.DataFrame(rows).round(9)


def explained(frames: Mapping[str, pd.DataFrame], clusters: ClusterBootstrap) -> Table:
    """Say how much of the variance of CI(r) all covariates explain together, the signals left out.

    Least squares with a constant. The intervals resample clusters and fit anew in each; a fit to a resample is closer
    than one to new prompts, so their upper ends are generous, also for the adjusted share, which counts prompts as
    independent.

    Parameters
    ----------
    frames : dict of str to DataFrame
        From `beside_ci`, by target.
    clusters : ClusterBootstrap

    Returns
    -------
    DataFrame
        target, reading, n (rejections in which every covariate is defined), few, r2 in [0, 1] and r2_adjusted, at most
        1; NaN with no more rejections than coefficients, or where CI has no spread.
    """
    rows = []
    for target, frame in frames.items():
        known = frame.dropna(subset=list(COVARIATES))
        for reading, ci in CI.items():
            values = known[[*COVARIATES, ci]].to_numpy(float)
            if len(values) <= len(COVARIATES) + 1 or np.ptp(values[:, -1]) == 0:
                found = dict.fromkeys(("r2", "r2_adjusted"), clusters.undefined())
            else:
                spread = values.std(axis=0)
                values = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1)
                products = (values[:, :, None] * values[:, None, :]).reshape(len(values), -1)
                moments = [
                    clusters.sums(known["cluster_id"], part) for part in (np.ones(len(values)), *values.T, *products.T)
                ]
                found = {"r2": clusters.estimate(_r2, *moments)}
                found["r2_adjusted"] = clusters.estimate(_r2_adjusted, *moments)
            row = {"target": target, "reading": reading, "n": len(known), "few": len(known) < MIN_REFUSALS}
            rows.append(row | to_columns(found))
    return pd.DataFrame(rows)


def _fit(n: np.ndarray, moments: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Share of variance explained and coefficients fitted, from sums of the columns and of their products."""
    width = isqrt(len(moments))  # width + width ** 2 sums; the last column is what is explained
    n = n[:, None, None]
    means = np.stack(moments[:width], axis=-1)[:, None] / n
    second = np.stack(moments[width:], axis=-1).reshape(-1, width, width) / n - means.swapaxes(1, 2) * means
    second = np.nan_to_num(second)  # a resample without rejections: 0 / 0 below
    # Covariates may be collinear in a resample: directions without spread are left out.
    spread, axes = np.linalg.eigh(second[:, :-1, :-1])
    used = spread > 1e-9
    along = np.einsum("rij,ri->rj", axes, second[:, :-1, -1])
    caught = np.where(used, along**2 / np.where(used, spread, 1), 0).sum(axis=1)
    return caught / second[:, -1, -1], used.sum(axis=1)


def _r2(n: np.ndarray, *moments: np.ndarray) -> np.ndarray:
    return _fit(n, moments)[0]


def _r2_adjusted(n: np.ndarray, *moments: np.ndarray) -> np.ndarray:
    share, coefficients = _fit(n, moments)
    free = n - 1 - coefficients
    return np.where(free > 0, 1 - (1 - share) * (n - 1) / free, np.nan)


def breaks(rows: pd.DataFrame, limit: float = LIMIT) -> tuple[pd.Series, pd.Series]:
    """Return where |r| is above the limit for sure, and where it only may be.

    Parameters
    ----------
    rows : DataFrame
        Columns r_low, r_high.
    limit : float

    Returns
    -------
    met, unclear : Series of bool
        The whole interval lies beyond the limit; or it holds the limit.
    """
    low, high = rows["r_low"], rows["r_high"]
    met = (low > limit) | (high < -limit)
    return met, ~met & ((low <= -limit) | (high >= limit))
