"""Split the variance of decisions into meaning, wording and sampling.

All of it is ours (`docs/method.md`, Disagreement).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_lab.analysis.chance import mark_paired
from paraguard_lab.analysis.shared_wording import compare_wordings
from paraguard_lab.core.draws import count_draws, join_draws
from paraguard_lab.core.inference import estimate_parts
from paraguard_utils.analysis import confusion
from paraguard_utils.analysis.signals import trace_perplexity
from paraguard_utils.analysis.system import System
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, Estimate, to_columns
from paraguard_utils.core.words import split_words
from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.schemas import STRATEGIES, Table

N_STYLE_FOLDS = 10
STYLE_PENALTIES = [10.0**power for power in range(-2, 5)]

VARIANCE_PARTS = ("meaning", "style", "wording", "chance")
"""The parts of the variance; wording is what style does not explain."""

HOT = "drawn at 1.0"
"""The decoding of answers drawn at temperature 1.0; those at 0.7 are "drawn"."""


def style_features(system: System) -> pd.DataFrame:
    """Return the features of wording that carry no meaning.

    Parameters
    ----------
    system : System
        With traces, for the perplexity of the user's words.

    Returns
    -------
    DataFrame
        A row per prompt, in their order: 0 and 1 for each strategy; length (ln words),
        perplexity (ln), risk, lower_case (start), question (mark at the end), sentences
        (their number).
    """
    prompts = system.prompts
    text = prompts["text"]
    n_words = [max(len(split_words(words)), 1) for words in text]
    features = {name: prompts["strategy"] == name for name in STRATEGIES}
    features |= {
        "length": np.log(n_words),
        "perplexity": np.log(trace_perplexity(system.traces)),
        "risk": prompts["risk"],
        "lower_case": text.str[:1].str.islower(),
        "question": text.str.rstrip().str.endswith("?"),
        "sentences": text.str.count(r"[.!?](?:\s|$)"),
    }
    return pd.DataFrame(features, index=prompts.index).astype(float)


def style_residuals(
    cluster_ids: np.ndarray, values: np.ndarray, features: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Predict deviations from a cluster's mean by the deviations of its features.

    The prediction is a ridge regression that has not seen the cluster: clusters are
    left out in `N_STYLE_FOLDS` folds.

    Parameters
    ----------
    cluster_ids : numpy.ndarray, shape (n,)
    values : numpy.ndarray of float, shape (n,)
    features : DataFrame
        n rows.

    Returns
    -------
    deviations, residuals : numpy.ndarray, shape (n,)
        The deviations of `values`, and what the prediction leaves of them.
    """
    from sklearn.linear_model import RidgeCV  # a second to import

    frame = features.assign(value=values)
    frame = frame - frame.groupby(cluster_ids).transform("mean")
    y = frame.pop("value").to_numpy()
    x = frame.to_numpy()
    spread = x.std(axis=0)
    x = x[:, spread > 0] / spread[spread > 0]
    names = np.unique(cluster_ids)
    shuffled = np.random.default_rng(SEED).permutation(names)
    fold_of = pd.Series(np.arange(len(names)) % N_STYLE_FOLDS, shuffled)
    folds = fold_of[cluster_ids].to_numpy()
    residuals = y.copy()
    for fold in range(N_STYLE_FOLDS):
        out = folds == fold
        if x.shape[1] and out.any() and not out.all():
            ridge = RidgeCV(STYLE_PENALTIES, fit_intercept=False)
            residuals[out] -= ridge.fit(x[~out], y[~out]).predict(x[out])
    return y, residuals


def split_variance(system: System, features: pd.DataFrame) -> dict[str, object]:
    """Split the variance of greedy decisions into meaning, style and other wording.

    Parameters
    ----------
    system : System
    features : DataFrame
        From `style_features`.

    Returns
    -------
    dict
        system, decoding ("greedy"), n (scored prompts), too_few
        (`disagreement.too_few_for_disagreement`); with intervals meaning, style,
        wording and chance (0), shares that sum to 1; r2, the out-of-fold share of the
        wording that style explains: style is 0 if that is negative.
    """
    clusters = system.clusters
    paired = mark_paired(system)
    ids = system.prompts["cluster_id"].to_numpy()[paired]
    refused = system.refused[paired]
    deviations, residuals = style_residuals(ids, refused, features[paired])
    explained = clusters.estimate(
        lambda whole, rest: 1 - rest / whole,
        *clusters.sums(ids, deviations**2, residuals**2),
    )
    # NaN if no cluster is decided both ways: then there is nothing to explain.
    style = max(np.nan_to_num(explained.value), 0.0)
    style_draws = np.maximum(np.nan_to_num(explained.draws), 0.0)
    dr = system.dr()
    parts = {
        "meaning": Estimate(1 - dr.value, 1 - dr.high, 1 - dr.low, 1 - dr.draws),
        "style": Estimate.percentile(style * dr.value, style_draws * dr.draws),
        "wording": Estimate.percentile(
            (1 - style) * dr.value, (1 - style_draws) * dr.draws
        ),
        "chance": (0.0, np.nan, np.nan),
        "r2": explained,
    }
    return {
        "system": system.name,
        "decoding": "greedy",
        "n": len(ids),
        "too_few": disagreement.too_few_for_disagreement(system.decided),
        **to_columns(parts),
    }


class _DrawnSums(NamedTuple):
    """Sums over the prompts of a cluster, of m answers each."""

    n: np.ndarray  # prompts
    same: np.ndarray  # probability that two answers to a prompt differ
    within: np.ndarray  # that two answers to paraphrases differ
    answers: np.ndarray
    refused: np.ndarray  # answers
    different: np.ndarray  # ordered pairs of answers in the cluster
    squares: np.ndarray  # answers, squared
    whole: np.ndarray  # squared deviations of the prompts' means
    rest: np.ndarray  # the same of what style does not explain
    inverse: np.ndarray  # 1 / m


def split_sampled_variance(
    system: System,
    samples: pd.DataFrame,
    features: pd.DataFrame,
    decoding: str = "drawn",
) -> dict[str, object]:
    """Split the variance of decisions on sampled answers.

    Parameters
    ----------
    system : System
    samples : DataFrame
        prompt_id and label of each answer.
    features : DataFrame
        From `style_features`.
    decoding : str
        How the answers were drawn.

    Returns
    -------
    dict
        A row like that of `split_variance`; n counts answers.
    """
    prompts = join_draws(system.prompts, samples)
    siblings = prompts.groupby("cluster_id")["size"].transform("size")
    prompts = prompts[siblings >= 2]
    ids = prompts["cluster_id"].to_numpy()
    m = prompts["size"].to_numpy(float)
    r = prompts["sum"].to_numpy(float)
    deviations, residuals = style_residuals(ids, r / m, features.loc[prompts.index])
    clusters = ClusterBootstrap(ids)
    opposite = 2 * r * (m - r)
    by_prompt = {
        "n": np.ones(len(ids)),
        "same": opposite / (m * (m - 1)),
        "opposite": opposite,
        "answers": m,
        "refused": r,
        "own_pairs": m * m,
        "whole": deviations**2,
        "rest": residuals**2,
        "inverse": 1 / m,
    }
    by_cluster = clusters.sums(ids, *by_prompt.values())
    sums = dict(zip(by_prompt, by_cluster, strict=True))
    sums["squares"] = sums["answers"] ** 2
    sums["different"] = 2 * sums["refused"] * (sums["answers"] - sums["refused"])
    # Of these pairs, those of answers to one prompt say nothing about paraphrases.
    of_paraphrases = sums["different"] - sums.pop("opposite")
    pairs_of_paraphrases = sums["squares"] - sums.pop("own_pairs")
    sums["within"] = sums["n"] * of_paraphrases / pairs_of_paraphrases
    drawn = _DrawnSums(**sums)
    rarer = min(r.sum(), m.sum() - r.sum())
    names = (*VARIANCE_PARTS, "r2")
    return {
        "system": system.name,
        "decoding": decoding,
        "n": m.sum().astype(int),
        "too_few": rarer < disagreement.MIN_DECISIONS_EACH,
        **to_columns(estimate_parts(clusters, _drawn_shares, names, drawn)),
    }


def _drawn_shares(*totals: np.ndarray) -> dict[str, np.ndarray]:
    """Return all parts and r2 from totals of `_DrawnSums`."""
    sums = _DrawnSums(*totals)
    of_two_clusters = 2 * sums.refused * (sums.answers - sums.refused) - sums.different
    between = of_two_clusters / (sums.answers**2 - sums.squares)
    same = sums.same / sums.n
    within = sums.within / sums.n
    explained = 1 - sums.rest / sums.whole
    # Means of m answers vary by wording and by the sampling variance over m.
    of_means = within - same + same * sums.inverse / sums.n
    style = np.maximum(explained, 0.0) * of_means
    return {
        "meaning": 1 - within / between,
        "style": style / between,
        "wording": (within - same - style) / between,
        "chance": same / between,
        "r2": explained,
    }


def tabulate_variance(
    systems: Sequence[System], samples: Mapping[str, Mapping[str, pd.DataFrame]]
) -> Table:
    """Split the variance of every system's greedy decisions, then of those drawn.

    Parameters
    ----------
    systems : sequence of System
        With traces.
    samples : mapping of str to mapping of str to DataFrame
        Drawn answers by decoding and name of a system.

    Returns
    -------
    Table
        Rows of `split_variance`, then of `split_sampled_variance`.
    """
    features = {system.name: style_features(system) for system in systems}
    rows = [split_variance(system, features[system.name]) for system in systems]
    for decoding, drawn in samples.items():
        for system in systems:
            if system.name in drawn:
                style = features[system.name]
                answers = drawn[system.name]
                rows.append(split_sampled_variance(system, answers, style, decoding))
    return pd.DataFrame(rows)


def compare_with_majority(system: System, samples: pd.DataFrame) -> dict[str, object]:
    """Compare the greedy decisions with the majority of those on sampled answers.

    Parameters
    ----------
    system : System
    samples : DataFrame
        prompt_id and label of each answer.

    Returns
    -------
    dict
        system; n, the prompts with a greedy decision and a majority of two draws or
        more; with intervals other, the share in which the two differ, and unanimous,
        the share of prompts whose draws are all decided alike.
    """
    decided = count_draws(samples)
    share = decided.loc[decided["size"] >= 2, "mean"]
    label = system.labels.set_index("prompt_id")["label"].reindex(share.index)
    label = label[label.isin(["accept", "reject"])]
    share = share[label.index]
    cluster_of = system.prompts.set_index("prompt_id")["cluster_id"]
    ids = cluster_of[label.index]
    clusters = ClusterBootstrap(ids)
    clear = share != 0.5
    differs = (share > 0.5) != (label == "reject")
    shares = {
        "other": clusters.share(ids[clear], differs[clear]),
        "unanimous": clusters.share(ids, share.isin([0.0, 1.0])),
    }
    return {"system": system.name, "n": clear.sum(), **to_columns(shares)}


INSTRUCTION_PARTS = (
    "meaning",
    "request",
    "idea",
    "wording",
    "idea_request",
    "wording_request",
)
"""Parts of the variance over requests and instructions.

The last two are interactions; the last holds what greedy decoding leaves to chance.
"""


def split_instruction_variance(
    model: str, systems: Mapping[str, System]
) -> dict[str, object]:
    """Split the variance of a model's decisions under several instructions.

    Parameters
    ----------
    model : str
    systems : mapping of str to System
        The model under each wording of an instruction, on the same prompts. What stands
        before a hyphen in a wording's name is its idea (safety, safety-2, strict).

    Returns
    -------
    dict
        system (the model); n (prompts with a decision under all of them); too_few, as
        in `split_variance`, for one instruction or more; with intervals
        `INSTRUCTION_PARTS`, shares that sum to 1, and interaction_minus_wording and
        idea_minus_wording.

    Notes
    -----
    The wordings are taken as given: intervals are over requests only. A part is made of
    products of different prompts' decisions, so that of little data it may be negative.
    """
    any_system = next(iter(systems.values()))
    clusters = any_system.clusters
    refused = np.column_stack([system.refused for system in systems.values()])
    scored = ~np.isnan(refused).any(axis=1)
    refused = refused[scored]
    ids = any_system.prompts["cluster_id"].to_numpy()[scored]
    n, *by_system = clusters.sums(ids, np.ones(len(ids)), *refused.T)
    sums = np.column_stack(by_system)
    columns = [n, n**2, *sums.T]
    pairs = _pair_instructions(list(systems))
    for first, second in pairs:
        products = (refused[:, first] * refused[:, second]).mean(axis=1)
        columns += clusters.sums(ids, products)
        columns.append((sums[:, first] * sums[:, second]).mean(axis=1))

    def shares(*totals: np.ndarray) -> dict[str, np.ndarray]:
        return _instruction_shares(pairs, totals)

    parts = estimate_parts(clusters, shares, INSTRUCTION_PARTS, columns)
    parts["interaction_minus_wording"] = parts["wording_request"] - parts["wording"]
    parts["idea_minus_wording"] = parts["idea"] - parts["wording"]
    counts = [disagreement.count_decisions(column, ids) for column in refused.T]
    too_few = any(disagreement.too_few_for_disagreement(count) for count in counts)
    return {"system": model, "n": len(ids), "too_few": too_few, **to_columns(parts)}


def _pair_instructions(names: list[str]) -> list[tuple[np.ndarray, ...]]:
    """Return pairs of instructions: one with itself, two of an idea, two ideas."""
    ideas = np.array([name.partition("-")[0] for name in names])
    same = np.eye(len(names), dtype=bool)
    alike = ideas[:, None] == ideas
    return [np.nonzero(same), np.nonzero(alike & ~same), np.nonzero(~alike)]


def _instruction_shares(
    pairs: list[tuple[np.ndarray, ...]], totals: tuple[np.ndarray, ...]
) -> dict[str, np.ndarray]:
    """Return all parts from the totals of `split_instruction_variance`.

    Each is a difference of mean products of two decisions: on one prompt, on two of a
    cluster or on two unrelated ones, under each kind of `pairs` of instructions.
    """
    n = totals[0]
    squares = totals[1]
    refused = np.stack(totals[2:-6])
    on_one_prompt = []
    on_paraphrases = []
    on_unrelated = []
    for i, (first, second) in enumerate(pairs):
        prompt = totals[2 * i - 6]
        cluster = totals[2 * i - 5]
        everywhere = (refused[first] * refused[second]).mean(axis=0)
        on_one_prompt.append(prompt / n)
        on_paraphrases.append((cluster - prompt) / (squares - n))
        on_unrelated.append((everywhere - cluster) / (n**2 - squares))
    prompt_same, prompt_idea, prompt_other = on_one_prompt
    unrelated_same, unrelated_idea, unrelated_other = on_unrelated
    paraphrases_other = on_paraphrases[2]
    idea = unrelated_idea - unrelated_other
    worded = unrelated_same - unrelated_idea
    parts = {
        "meaning": paraphrases_other - unrelated_other,
        "request": prompt_other - paraphrases_other,
        "idea": idea,
        "wording": worded,
        "idea_request": prompt_idea - prompt_other - idea,
        "wording_request": prompt_same - prompt_idea - worded,
    }
    total = prompt_same - unrelated_other
    return {name: part / total for name, part in parts.items()}


def tabulate_instructions(systems: Sequence[System]) -> dict[str, Table]:
    """Tabulate models under several wordings of instructions.

    Parameters
    ----------
    systems : sequence of System
        On the same prompts, called MODEL--WORDING.

    Returns
    -------
    dict of str to Table
        instructions: `split_instruction_variance` of each model. instruction_wordings:
        a row for each system, with the columns of `confusion.rate_row`, and DR of
        near-copies and free rewordings as in `shared_wording.compare_wordings`.
    """
    by_model: dict[str, dict[str, System]] = {}
    for system in systems:
        wordings = by_model.setdefault(model_of_system(system.name), {})
        wordings[system.name.rpartition("--")[2]] = system
    parts = [split_instruction_variance(model, by_model[model]) for model in by_model]
    rates = [confusion.rate_row(system) for system in systems]
    shared = compare_wordings(systems)
    shared = shared.filter(regex="^(system|too_few|dr_near|dr_free|difference)")
    return {
        "instructions": pd.DataFrame(parts),
        "instruction_wordings": pd.DataFrame(rates).merge(shared, on="system"),
    }
