"""Split the variance of decisions into meaning, wording and sampling (`docs/method.md`,
Disagreement). All ours.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from sklearn.linear_model import RidgeCV

from paraguard_utils.analysis import confusion, evaluation, wording
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, Estimate, to_columns
from paraguard_utils.core.words import split_words
from paraguard_utils.schemas import STRATEGIES, Corpus, Labels, Table

N_STYLE_FOLDS = 10

VARIANCE_PARTS = (
    "meaning",
    "style",
    "wording",
    "chance",
)  # wording is what style does not explain, dice is chance


def style_features(corpus: Corpus, perplexities: np.ndarray) -> pd.DataFrame:
    """Return the features of wording that carry no meaning, in corpus order, as are the
    perplexities of users' words.

    Columns: 0 and 1 for each strategy; length (ln words), perplexity (ln), risk,
    lower_case (start), question (mark at the end), sentences (their number).
    """
    text = corpus["text"]
    features = {
        name: (corpus["strategy"] == name).to_numpy(float) for name in STRATEGIES
    }
    features["length"] = np.log([max(len(split_words(one)), 1) for one in text])
    features["perplexity"] = np.log(perplexities)
    features["risk"] = corpus["risk"].to_numpy(float)
    features["lower_case"] = text.str[:1].str.islower().to_numpy(float)
    features["question"] = text.str.rstrip().str.endswith("?").to_numpy(float)
    features["sentences"] = text.str.count(r"[.!?](?:\s|$)").to_numpy(float)
    return pd.DataFrame(features, index=corpus.index)


def style_residuals(
    cluster_ids: np.ndarray, values: np.ndarray, features: pd.DataFrame
) -> np.ndarray:
    """Predict deviations from the own cluster's mean by the features' deviations,
    clusters left out in turn.

    Return the deviations and what is left of them, shape (n, 2).
    """
    frame = (
        features.assign(value=values)
        .groupby(cluster_ids)
        .transform(lambda column: column - column.mean())
    )
    y, x = frame["value"].to_numpy(), frame.drop(columns="value").to_numpy()
    spread = x.std(axis=0)
    x = x[:, spread > 0] / spread[spread > 0]
    names = np.unique(cluster_ids)
    fold = dict(
        zip(
            np.random.default_rng(SEED).permutation(names),
            np.arange(len(names)) % N_STYLE_FOLDS,
            strict=True,
        )
    )
    folds = np.array([fold[name] for name in cluster_ids])
    left, penalties = y.copy(), [10.0**power for power in range(-2, 5)]
    for number in range(N_STYLE_FOLDS):
        out = folds == number
        if x.shape[1] and out.any() and not out.all():
            left[out] -= (
                RidgeCV(penalties, fit_intercept=False)
                .fit(x[~out], y[~out])
                .predict(x[out])
            )
    return np.column_stack([y, left])


def split_variance(
    system: str,
    corpus: Corpus,
    labels: Labels,
    features: pd.DataFrame,
    clusters: ClusterBootstrap,
) -> dict[str, object]:
    """Split the variance of a system's greedy decisions into meaning, style and other
    wording.

    Corpus, labels and features (from `style_features`) have the same order. Columns:
    system, decoding ("greedy"), n (scored prompts), few
    (`disagreement.too_few_for_disagreement`); with intervals meaning, style, wording
    and dice (0), shares that sum to 1; r2, the out-of-fold share of the wording that
    style explains: style is 0 below 0.
    """
    decided = evaluation.count_label_decisions(corpus, labels)
    scored = evaluation.is_paired(corpus, labels)
    ids = corpus["cluster_id"].to_numpy()[scored]
    y, left = style_residuals(
        ids, (labels["label"] == "reject").to_numpy(float)[scored], features[scored]
    ).T
    ratio = disagreement.estimate_disagreement(clusters, decided)
    squares = (clusters.sums(ids, column**2) for column in (y, left))
    explained = clusters.estimate(lambda whole, rest: 1 - rest / whole, *squares)
    # NaN if no cluster is decided both ways: then there is nothing to explain.
    share = np.maximum(np.nan_to_num(explained.draws), 0.0)
    own = max(float(np.nan_to_num(explained[0])), 0.0)
    found = {
        "meaning": Estimate(1 - ratio[0], 1 - ratio[2], 1 - ratio[1], 1 - ratio.draws),
        "style": Estimate.percentile(own * ratio[0], share * ratio.draws),
        "wording": Estimate.percentile((1 - own) * ratio[0], (1 - share) * ratio.draws),
        "chance": (0.0, np.nan, np.nan),
        "r2": explained,
    }
    too_few = disagreement.too_few_for_disagreement(decided)
    return {
        "system": system,
        "decoding": "greedy",
        "n": len(ids),
        "too_few": too_few,
        **to_columns(found),
    }


# How rows of answers drawn at temperature 1.0 are marked; those at 0.7 are "drawn"
HOT = "drawn at 1.0"


def split_sampled_variance(
    system: str,
    corpus: Corpus,
    samples: pd.DataFrame,
    features: pd.DataFrame,
    decoding: str = "drawn",
) -> dict[str, object]:
    """Split the variance of decisions on sampled answers, which n counts, into a row
    like that of `split_variance`.
    """
    counts = evaluation.count_draws(samples)
    own = corpus.assign(
        m=corpus["prompt_id"].map(counts["size"]),
        r=corpus["prompt_id"].map(counts["sum"]),
    )
    own = own[own["m"] >= 2]
    own = own[own.groupby("cluster_id")["m"].transform("size") >= 2]
    ids, m, r = (
        own["cluster_id"].to_numpy(),
        own["m"].to_numpy(float),
        own["r"].to_numpy(float),
    )
    y, left = style_residuals(ids, r / m, features.loc[own.index]).T
    clusters, opposite = ClusterBootstrap(ids), 2 * r * (m - r)
    answers, refused, own_pairs, own_opposite = (
        clusters.sums(ids, column) for column in (m, r, m * m, opposite)
    )
    n = clusters.sums(ids, np.ones(len(ids)))
    different = 2 * refused * (answers - refused)
    within = n * (different - own_opposite) / (answers**2 - own_pairs)
    columns = (opposite / (m * (m - 1)), y**2, left**2, 1 / m)
    same, whole, rest, inverse = (clusters.sums(ids, column) for column in columns)
    sums = (
        n,
        same,
        within,
        answers,
        refused,
        different,
        answers**2,
        whole,
        rest,
        inverse,
    )
    found = {}
    for name in (*VARIANCE_PARTS, "r2"):
        found[name] = clusters.estimate(
            lambda *totals, of=name: _drawn_shares(*totals)[of], *sums
        )
    too_few = bool(min(r.sum(), m.sum() - r.sum()) < disagreement.MIN_DECISIONS_EACH)
    return {
        "system": system,
        "decoding": decoding,
        "n": int(m.sum()),
        "too_few": too_few,
        **to_columns(found),
    }


def _drawn_shares(*sums: np.ndarray) -> dict[str, np.ndarray]:
    """Return all parts and r2 from the sums of `split_sampled_variance`."""
    n, same, within, answers, refused, different, squares, whole, left, inverse = sums
    between = (2 * refused * (answers - refused) - different) / (answers**2 - squares)
    same, within, explained = same / n, within / n, 1 - left / whole
    # Means of m draws vary by wording and by the sampling variance over m.
    by_style = np.maximum(explained, 0.0) * (within - same + same * inverse / n)
    found = {"meaning": 1 - within / between, "style": by_style / between}
    return found | {
        "wording": (within - same - by_style) / between,
        "chance": same / between,
        "r2": explained,
    }


def tabulate_variance(
    corpus: Corpus,
    labels: Mapping[str, Labels],
    samples: Mapping[str, Mapping[str, pd.DataFrame]],
    features: Mapping[str, pd.DataFrame],
    clusters: ClusterBootstrap,
) -> Table:
    """Split the variance of every system's greedy decisions, then of those drawn:
    `samples` by decoding and system.
    """
    greedy = [
        split_variance(name, corpus, own, features[name], clusters)
        for name, own in labels.items()
    ]
    drawn = [
        (name, one, decoding)
        for decoding, found in samples.items()
        for name, one in found.items()
    ]
    again = [
        split_sampled_variance(name, corpus, one, features[name], decoding)
        for name, one, decoding in drawn
    ]
    return pd.DataFrame(greedy + again)


def compare_with_majority(
    system: str, labels: Labels, samples: pd.DataFrame, corpus: Corpus
) -> dict[str, object]:
    """Compare the decisions on greedy answers (`labels`) with the majority of those on
    sampled answers.

    Columns: system; n, the prompts with a greedy decision and a majority of two draws
    or more; with intervals other, the share in which the two differ, and unanimous, the
    share of prompts whose draws are all decided alike.
    """
    decided = evaluation.count_draws(samples)
    share = decided.loc[decided["size"] >= 2, "mean"]
    both = (
        labels.set_index("prompt_id")[["label"]]
        .reindex(share.index)
        .assign(share=share)
    )
    both = both[evaluation.is_scored(both)]
    ids = corpus.set_index("prompt_id")["cluster_id"].loc[both.index].to_numpy()
    clusters, clear = ClusterBootstrap(ids), (both["share"] != 0.5).to_numpy()
    differs = ((both["share"] > 0.5) != (both["label"] == "reject")).to_numpy()
    unanimous = clusters.share(ids, both["share"].isin([0.0, 1.0]).to_numpy())
    found = {
        "other": clusters.share(ids[clear], differs[clear]),
        "unanimous": unanimous,
    }
    return {"system": system, "n": int(clear.sum()), **to_columns(found)}


INSTRUCTION_PARTS = (
    "meaning",
    "request",
    "idea",
    "wording",
    "idea_request",
    "wording_request",
)
"""Parts of the variance over requests and instructions; the last two are interactions,
the last with frozen chance.
"""


def split_instruction_variance(
    model: str, corpus: Corpus, labels: Mapping[str, Labels], clusters: ClusterBootstrap
) -> dict[str, object]:
    """Split the variance of a model's decisions under several wordings of several
    instructions.

    `labels`, in corpus order, are by instruction: what stands before a hyphen is its
    idea (safety, safety-2, strict). Prompts without a decision under one of them are
    left out. The wordings are taken as given: intervals are over meanings only.
    Columns: system (the model); n (prompts); few, as in `split_variance`, for one
    instruction or more; with intervals `INSTRUCTION_PARTS`, shares that sum to 1, and
    interaction_minus_wording and idea_minus_wording. A part of a resample, and of
    little data, may lie below 0: it is made of products of different prompts'
    decisions.
    """
    scored = np.all([evaluation.is_scored(own) for own in labels.values()], axis=0)
    ids = corpus["cluster_id"].to_numpy()[scored]
    y = np.column_stack(
        [(own["label"] == "reject").to_numpy(float)[scored] for own in labels.values()]
    )
    ideas, same = (
        [name.partition("-")[0] for name in labels],
        np.eye(len(labels), dtype=bool),
    )
    alike = np.equal.outer(ideas, ideas)
    sums = np.column_stack([clusters.sums(ids, column) for column in y.T])
    n = clusters.sums(ids, np.ones(len(ids)))
    columns = [n, n**2, *sums.T]
    for pairs in (
        same,
        alike & ~same,
        ~alike,
    ):  # one instruction, two of an idea, two ideas
        first, second = np.nonzero(pairs)
        own = clusters.sums(ids, (y[:, first] * y[:, second]).mean(axis=1))
        columns += [own, (sums[:, first] * sums[:, second]).mean(axis=1)]
    found = {
        name: clusters.estimate(
            lambda *totals, of=name: _instruction_shares(alike, *totals)[of], *columns
        )
        for name in INSTRUCTION_PARTS
    }
    found["interaction_minus_wording"] = found["wording_request"] - found["wording"]
    found["idea_minus_wording"] = found["idea"] - found["wording"]
    too_few = any(
        disagreement.too_few_for_disagreement(disagreement.count_decisions(column, ids))
        for column in y.T
    )
    return {"system": model, "n": len(ids), "too_few": too_few, **to_columns(found)}


def tabulate_instructions(
    corpus: Corpus,
    asked: Mapping[str, Mapping[str, Labels]],
    clusters: ClusterBootstrap,
) -> dict[str, Table]:
    """Return two tables by name, of labels by model and wording of an instruction, in
    corpus order.

    instructions: `split_instruction_variance` of each model. instruction_wordings: a
    row MODEL--WORDING each, with the columns of `confusion.rate_row`, and DR of
    near-copies and free rewordings as in `wording.wording_tables`.
    """
    parts = [
        split_instruction_variance(model, corpus, own, clusters)
        for model, own in asked.items()
    ]
    every = {
        f"{model}--{name}": labels
        for model, own in asked.items()
        for name, labels in own.items()
    }
    rates = pd.DataFrame(
        [
            confusion.rate_row(name, corpus, labels, clusters)
            for name, labels in every.items()
        ]
    )
    shared = wording.wording_tables(corpus, every, clusters)[0].filter(
        regex="^(system|few|dr_near|dr_free|difference)"
    )
    return {
        "instructions": pd.DataFrame(parts),
        "instruction_wordings": rates.merge(shared, on="system"),
    }


def _instruction_shares(
    alike: np.ndarray, *totals: np.ndarray
) -> dict[str, np.ndarray]:
    """Return all parts from the totals of `split_instruction_variance`."""
    k, same = len(alike), np.eye(len(alike), dtype=bool)
    (n, squares), refused, products = (
        totals[:2],
        np.stack(totals[2 : 2 + k]),
        np.stack(totals[2 + k :]),
    )
    means = []
    for (prompt, cluster), pairs in zip(
        products.reshape(3, 2, -1), (same, alike & ~same, ~alike), strict=True
    ):
        first, second = np.nonzero(pairs)
        apart = ((refused[first] * refused[second]).mean(axis=0) - cluster) / (
            n**2 - squares
        )
        means.append((prompt / n, (cluster - prompt) / (squares - n), apart))
    (own, _, apart), (own_idea, _, apart_idea), (across, across_meaning, nothing) = (
        means
    )
    parts = {"meaning": across_meaning - nothing, "request": across - across_meaning}
    parts |= {"idea": apart_idea - nothing, "wording": apart - apart_idea}
    parts |= {
        "idea_request": own_idea - across - parts["idea"],
        "wording_request": own - own_idea - parts["wording"],
    }
    return {name: part / (own - nothing) for name, part in parts.items()}
