"""A model's own refusal as a guard: how likely its answer's first token opens one.

It is read from recorded traces of the model without a system prompt, so that no model
is queried (`docs/method.md`, Guards). p(refuse) is also what remedies decide by.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from paraguard_lab.guards.entries import GuardEntry, parse_guard_entry
from paraguard_utils import registry, stores, unsafe
from paraguard_utils.core.estimates import SEED
from paraguard_utils.errors import DataError, Missing, SettingsError
from paraguard_utils.guards.contract import Guard, GuardOptions
from paraguard_utils.models import trace_store
from paraguard_utils.schemas import Labels, Traces
from paraguard_utils.stores import CorpusFiles

FOLDS = 5  # of the clusters that teach


class RefusalEntry(GuardEntry):
    """A chat model, and the share of harmless prompts that its refusal may reject."""

    model: str
    instruction: str = "none"
    axis: str = "harm"
    rejects: float = Field(0.05, gt=0, lt=1)


class RefusalRates(NamedTuple):
    """By first token of an answer, the share of rejections.

    Shares are shrunk to `base`, the share among all answers.
    """

    shares: pd.Series
    base: float

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """Return the share of each token; the base rate if no answer began with it."""
        return self.shares.reindex(tokens).fillna(self.base).to_numpy()


def first_tokens(traces: Traces) -> np.ndarray:
    """Return the token that begins each greedy answer, shape (n_prompts,)."""
    return np.array([ids[0] for ids in traces["next_ids"]], int)


def fit_refusal_rates(traces: Traces, labels: Labels) -> RefusalRates:
    """Learn which first tokens begin rejections.

    Parameters
    ----------
    traces, labels : Traces, Labels
        Of the same prompts, in the same order. Prompts without a decision teach
        nothing.

    Returns
    -------
    RefusalRates
        By first token; the base rate is 0 without a decision.
    """
    label = labels["label"].to_numpy()
    is_decided = np.isin(label, ["accept", "reject"])
    rejected = pd.Series((label[is_decided] == "reject").astype(float))
    base = float(rejected.mean()) if len(rejected) else 0.0
    groups = rejected.groupby(first_tokens(traces)[is_decided])
    return RefusalRates((groups.sum() + base) / (groups.count() + 1), base)


def p_refuse(traces: Traces, known: RefusalRates) -> np.ndarray:
    """Return p(refuse) of each trace: how likely its first token opens a refusal.

    Unlisted tokens count with the base rate.

    Parameters
    ----------
    traces : Traces
        With next-token probabilities.
    known : RefusalRates
        What was learned of first tokens.

    Returns
    -------
    array, shape (n_prompts,)
        In [0, 1], nine digits.
    """
    if traces.empty:
        return np.zeros(0)
    lengths = traces["next_ids"].map(len).to_numpy()
    starts = np.concatenate([[0], lengths.cumsum()[:-1]])
    tokens = np.concatenate(traces["next_ids"].to_list())
    logprobs = np.concatenate(traces["next_logprobs"].to_list())
    p = np.exp(logprobs.astype(float))
    listed = np.add.reduceat(p, starts)
    refused = np.add.reduceat(p * known.of(tokens), starts)
    unlisted = np.maximum(0.0, 1 - listed)
    # Rounded, since processors differ in the 16th digit
    return np.clip(refused + unlisted * known.base, 0, 1).round(9)


def cross_fit(
    traces: Traces, labels: Labels, clusters: pd.Series, teaches: np.ndarray
) -> np.ndarray:
    """Return p(refuse) of each prompt, as the clusters of other folds taught it.

    Parameters
    ----------
    traces, labels : Traces, Labels
        Of n prompts, in the same order.
    clusters : Series of shape (n,)
        The cluster of each prompt; a twin has its benign cluster, so that it is scored
        in that one's fold.
    teaches : array of bool, shape (n,)
        Which prompts are used to learn, of at least `FOLDS` clusters.

    Returns
    -------
    array, shape (n,)
        A prompt whose cluster does not teach is scored by all that do.
    """
    names = np.unique(clusters[teaches])
    folds = np.random.default_rng(SEED).permutation(len(names)) % FOLDS
    # NaN, which is in no fold, for a cluster that does not teach
    fold = clusters.map(pd.Series(folds, names)).to_numpy()
    rates = fit_refusal_rates(traces[teaches], labels[teaches])
    scores = p_refuse(traces, rates)
    for number in range(FOLDS):
        in_fold = fold == number
        others = teaches & ~in_fold
        rates = fit_refusal_rates(traces[others], labels[others])
        scores[in_fold] = p_refuse(traces[in_fold], rates)
    return scores


def choose_by_share(scores: np.ndarray, rejected: float) -> float:
    """Return the lowest score that at most this share of the scores reach.

    1 if more than that are equal on top.
    """
    thresholds, counts = np.unique(scores, return_counts=True)
    reach = counts[::-1].cumsum()[::-1] / len(scores)
    return float(min(thresholds[reach <= rejected], default=1.0))


def make_refusal_guard(
    name: str, fields: Mapping[str, Any], options: GuardOptions
) -> Guard:
    """Make a guard of a model's own refusal, from its answers in `options.store`.

    The first of `options.corpora` teaches, each of its clusters those of other folds.
    The guard scores the prompts of all corpora to which the store has the answers.

    Raises
    ------
    Missing
        If the model's answers to the first corpus are not in the store.
    DataError
        If they cannot teach: too few clusters, or no probabilities of first tokens.
    SettingsError
        In place of both, if the user named the guard (`refusal:MODEL`); and if no
        corpora are given.
    """
    entry = parse_guard_entry(name, fields, RefusalEntry)
    is_published = name in registry.guard_entries("panel")
    if not is_published:
        name = re.sub(r"[^\w.-]+", "-", f"{entry.model}-refusal")
    if not options.store or not options.corpora:
        raise SettingsError(
            f"the guard {name} is read from a model's recorded answers, in"
            " 05_guard_comparison only"
        )
    try:
        prompts, traces, weights_id = _read_answers(name, entry, options)
    except DataError as error:
        if is_published:
            raise
        raise SettingsError(str(error)) from None
    teaches = prompts["label"].notna().to_numpy()
    scores = cross_fit(traces, prompts, prompts["cluster_id"], teaches)
    # As scores are kept, so that the threshold is one of them
    scores = np.array([float(f"{score:.5g}") for score in scores])
    by_text = dict(zip(prompts["text"], scores, strict=True))

    def score(texts: Sequence[str]) -> np.ndarray:
        if by_text.keys().isdisjoint(texts):
            raise Missing(
                f"{name}: it is read from recorded answers, and there are none to these"
                " prompts"
            )
        return np.array([by_text.get(text, np.nan) for text in texts])

    taught_by = stores.frame_hash(prompts.loc[teaches, ["prompt_id", "label"]])
    threshold = choose_by_share(scores[teaches], entry.rejects)
    return Guard(
        name=name,
        version=f"{weights_id[:12]}-{taught_by[:12]}",
        score=score,
        **{**entry.described, "threshold": threshold},
    )


def _read_answers(
    name: str, entry: RefusalEntry, options: GuardOptions
) -> tuple[pd.DataFrame, Traces, str]:
    """Read a model's answers without a system prompt, to the corpora that have some.

    Return the prompts, each twin in its benign cluster and with the labels of the first
    corpus, their traces, and what identifies the weights.
    """
    assert options.store is not None
    corpus_name, corpus = next(iter(options.corpora.items()))
    files = CorpusFiles(options.store, corpus_name)
    system = _find_system(name, entry, files)
    all_prompts = []
    all_traces = []
    for other_name, prompts in options.corpora.items():
        other_files = files.other(other_name)
        if len(prompts) and other_files.has("traces", system):
            all_prompts.append(prompts)
            all_traces.append(trace_store.read_traces(other_files, system, prompts))
    prompts = pd.concat(all_prompts, ignore_index=True)
    traces = pd.concat(all_traces, ignore_index=True)
    if not traces["next_ids"].map(len).all():
        raise DataError(
            f"{name}: its server returned no probabilities of first tokens; use one"
            " that does, or weights"
        )
    n_clusters = corpus["cluster_id"].nunique()
    if n_clusters < FOLDS:
        raise DataError(
            f"{name}: there are {n_clusters} clusters; at least {FOLDS} are needed to"
            " learn what a refusal is"
        )
    by_prompt = files.read("labels", system).set_index("prompt_id")["label"]
    prompts = prompts.assign(
        cluster_id=unsafe.benign_cluster_of(prompts["cluster_id"]),
        label=prompts["prompt_id"].map(by_prompt),
    )
    meta = stores.read_meta(files.path("traces", system))
    return prompts, traces, meta["weights_id"]


def _find_system(name: str, entry: RefusalEntry, files: CorpusFiles) -> str:
    """Return the system that is a guard's model without a system prompt.

    Raises Missing if a store lacks its answers.
    """
    for system in trace_store.find_systems(files, entry.model):
        if system.endswith("--none") and files.has("traces", system):
            return system
    store = files.store.name
    raise Missing(
        f"{name}: the {store} store lacks answers of {entry.model} without a system"
        f" prompt; run: paraguard run 02 --store {store} --model {entry.model}"
        " -p system_prompts='[none]'"
    )
