"""Which measure says something of refusing? Vetoes, rivals, matched pairs (`docs/method.md`, Disagreement)."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from paraguard_utils import bootstrap
from paraguard_utils.bootstrap import Clusters, Estimate
from paraguard_utils.models.encoder import unit
from paraguard_utils.schemas import Corpus, Labels, Pairs, Table, Tokens, Traces
from paraguard_utils.scoring import disagreement, signals
from paraguard_utils.scoring.signals import K, score
from paraguard_utils.settings import PAPER_WEIGHTS, Weights

BINS = 5
"""Bins of ln PPL and of length, by quantiles of all scored prompts."""

EDGES = (-1.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.01)
"""Ends of the bins of cosine in the variogram; from 0.95 on paraphrases are near-identical."""

LEAST_TARGETS = 8
"""Fewer targets than this, and there is no rank correlation over them."""


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
    held: pd.DataFrame, pairs: Pairs, reading: str = "relative", weights: Weights = PAPER_WEIGHTS, k: int = K
) -> np.ndarray:
    """Return CI(r) of each veto pair over the k nearest accepted prompts but the held-out one.

    Parameters
    ----------
    held : DataFrame
        From `veto_pairs`.
    pairs : DataFrame
        A pairs file with k + 1 ranks.
    reading : str
    weights : settings.Weights
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


def auc(clusters: Clusters, cluster_ids: Sequence[str], outcome: np.ndarray, scores: np.ndarray) -> Estimate:
    """Return the area under the ROC curve of scores for an outcome, ties half, with its interval over clusters.

    Parameters
    ----------
    clusters : bootstrap.Clusters
    cluster_ids : sequence of str, length n
    outcome : numpy.ndarray of bool, shape (n,)
    scores : numpy.ndarray, shape (n,)
        NaN is left out.

    Returns
    -------
    Estimate
        In [0, 1]; NaN where the outcome is always the same.
    """
    known = np.isfinite(scores)
    codes = clusters.codes.loc[np.asarray(cluster_ids)[known]].to_numpy()
    outcome, scores = np.asarray(outcome, bool)[known], scores[known]
    if outcome.all() or not outcome.any():
        return clusters.undefined()
    values, place = np.unique(scores, return_inverse=True)

    def area(counts: np.ndarray) -> np.ndarray:
        weights = counts[:, codes]
        cells = [np.zeros((len(weights), len(values))) for _ in range(2)]
        for cell, chosen in zip(cells, (outcome, ~outcome), strict=True):
            order = np.argsort(place[chosen], kind="stable")
            starts, first = np.unique(place[chosen][order], return_index=True)
            cell[:, starts] = np.add.reduceat(weights[:, chosen][:, order], first, axis=1)
        hits, misses = cells
        below = misses.cumsum(axis=1) - misses / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            return (hits * below).sum(axis=1) / (hits.sum(axis=1) * misses.sum(axis=1))

    value = float(area(np.ones((1, len(clusters.codes))))[0])
    draws = np.concatenate([area(part) for part in np.array_split(clusters.counts, max(1, len(codes) // 200))])
    return Estimate.percentile(value, draws)


def matched_ratio(corpus: Corpus, labels: Labels, traces: Traces, perplexities: np.ndarray) -> float:
    """Return DR whose pairs of two clusters are matched with those of one on ln PPL and length.

    Parameters
    ----------
    corpus, labels, traces : DataFrame
        Rows in the same order.
    perplexities : numpy.ndarray, shape (n,)

    Returns
    -------
    float
        Each prompt falls into one of `BINS` by `BINS` cells; pairs of two clusters count as often as pairs of one fall
        into the same two cells, cells without pairs of two left out. NaN where DR is.
    """
    paired = corpus["cluster_id"].isin(disagreement.tally(corpus, labels)["cluster_id"]).to_numpy()
    scored = paired & labels["label"].isin(["accept", "reject"]).to_numpy()
    length = np.log((traces["user_end"] - traces["user_start"]).to_numpy(float))
    if not scored.any():
        return np.nan
    cell = np.zeros(int(scored.sum()), int)
    for values in (np.log(perplexities), length):
        edges = np.quantile(values[scored], np.linspace(0, 1, BINS + 1)[1:-1])
        cell = cell * BINS + np.searchsorted(edges, values[scored], side="right")
    cluster = pd.factorize(corpus["cluster_id"].to_numpy()[scored])[0]
    rejected = (labels["label"] == "reject").to_numpy(float)[scored]
    kinds = BINS * BINS
    shape = (cluster.max() + 1, kinds)
    place = np.ravel_multi_index((cluster, cell), shape)
    n, r = (np.bincount(place, weights=one, minlength=np.prod(shape)).reshape(shape) for one in (None, rejected))
    a = n - r
    # Ordered pairs of two cells: of all prompts, and inside clusters (a prompt with itself is none, and never differs).
    every, own = np.outer(n.sum(0), n.sum(0)), n.T @ n
    different = np.outer(r.sum(0), a.sum(0)) + np.outer(a.sum(0), r.sum(0))
    other = every - own
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(other > 0, (different - r.T @ a - a.T @ r) / other, np.nan)
    # As in DR every prompt weighs the same, whatever its cluster's size.
    each = 1 / (n.sum(1, keepdims=True) - 1)
    weight = (n * each).T @ n - np.diag((n * each).sum(0))
    own_different = (r * each).T @ a + (a * each).T @ r
    known = (weight > 0) & np.isfinite(share)
    if not known.any():
        return np.nan
    within = own_different[known].sum() / weight[known].sum()
    between = float((share * weight)[known].sum() / weight[known].sum())
    return float(within / between) if between else np.nan


def by_similarity(
    corpus: Corpus, labels: Labels, vectors: np.ndarray, clusters: Clusters, edges: Sequence[float] = EDGES
) -> pd.DataFrame:
    """Return how often prompts are decided differently by how similar they are: a variogram of decisions.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the same order.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors.
    clusters : bootstrap.Clusters
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


def rivals(corpus: Corpus, labels: Labels, traces: Traces) -> Mapping[str, float]:
    """Return other people's indices of prompt sensitivity, as far as decisions and first tokens give them.

    Parameters
    ----------
    corpus, labels, traces : DataFrame
        Rows in the same order.

    Returns
    -------
    dict
        agreement: mean share of a cluster's prompts that are decided as its majority is, after the Safety Stability
        Index (arXiv 2512.12066), which is over samples of one prompt; pss: mean absolute difference of the decisions
        of two prompts of a cluster, after the PromptSensiScore (arXiv 2410.12405), with the decision in the place of
        a benchmark's score: it is D_within; posix: mean absolute difference, between two prompts of a cluster, of the
        log probability of the first token of the answer to one of them, after POSIX (arXiv 2410.02185), which is over
        whole answers. A token outside the kept ones counts as likely as the last of these.
    """
    decided = disagreement.tally(corpus, labels)
    share = decided["rejected"] / decided["n"]
    alike = disagreement.kinds(decided)
    within = disagreement.ratio(alike["n"], alike["rejected"], alike["times"])[0]
    return {"agreement": float(np.maximum(share, 1 - share).mean()), "pss": within, "posix": _posix(corpus, traces)}


def _posix(corpus: Corpus, traces: Traces) -> float:
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
    clusters: Clusters,
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
    clusters : bootstrap.Clusters

    Returns
    -------
    dict
        target, pairs (`veto_pairs`); auc_isolation, auc_ci and auc_ci_clipped with intervals; dr_matched
        (`matched_ratio`); the indices of `rivals`.
    """
    held = veto_pairs(corpus, labels)
    pairs = signals.pairs(corpus, vectors, traces, labels, tokens, K + 1)
    measures = {"isolation": held["isolation"].to_numpy(float)}
    measures |= {"ci": ci_without(held, pairs), "ci_clipped": ci_without(held, pairs, "clipped")}
    ids, accepted = held["cluster_id"].to_numpy(), held["accepted"].to_numpy()
    areas = {f"auc_{name}": auc(clusters, ids, accepted, values) for name, values in measures.items()}
    return {
        "target": target,
        "pairs": len(held),
        **bootstrap.columns(areas),
        "dr_matched": matched_ratio(corpus, labels, traces, signals.perplexity(traces)),
        **rivals(corpus, labels, traces),
    }


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
