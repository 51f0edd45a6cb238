"""A model's own refusal as a guard: how likely its answer's first token opens one
(`docs/method.md`, Guards).

It is read from recorded traces of the model without a system prompt, so that no model
is asked. p(refuse) is also what remedies decide by.
"""

import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_tools.guards.formats import parse_guard_entry
from paraguard_utils import registry, stores, unsafe
from paraguard_utils.core.estimates import SEED
from paraguard_utils.errors import DataError, Missing
from paraguard_utils.guards.contract import Guard
from paraguard_utils.models import trace_store
from paraguard_utils.schemas import Corpus, Labels, Traces
from paraguard_utils.settings import Settings

FOLDS = 5  # of the clusters that teach


class RefusalRates(NamedTuple):
    """The share of rejections among answers that begin with a token, shrunk to the
    share among all answers.
    """

    shares: pd.Series
    base: float

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """Return the share of each token; the base rate if no answer began with it."""
        return self.shares.reindex(tokens).fillna(self.base).to_numpy()


def first_tokens(traces: Traces) -> np.ndarray:
    """Return the token that begins each greedy answer."""
    return np.array([ids[0] for ids in traces["next_ids"]], int)


def fit_refusal_rates(traces: Traces, labels: Labels) -> RefusalRates:
    """Learn which first tokens begin rejections, from traces and labels of the same
    prompts in the same order.
    """
    label = labels["label"].to_numpy()
    decided = np.isin(label, ["accept", "reject"])
    rejected = pd.Series((label == "reject")[decided].astype(float))
    base = float(rejected.mean()) if len(rejected) else 0.0
    groups = rejected.groupby(first_tokens(traces)[decided])
    return RefusalRates((groups.sum() + base) / (groups.count() + 1), base)


def p_refuse(traces: Traces, known: RefusalRates) -> np.ndarray:
    """Return p(refuse) of each trace, in [0, 1].

    Unlisted tokens count with the base rate.
    """
    if traces.empty:
        return np.zeros(0)
    lengths = traces["next_ids"].map(len).to_numpy()
    tokens, p = (
        np.concatenate(traces[name].to_list()) for name in ("next_ids", "next_logprobs")
    )
    p = np.exp(p.astype(float))
    starts = np.concatenate([[0], lengths.cumsum()[:-1]])
    listed, refused = (
        np.add.reduceat(p, starts),
        np.add.reduceat(p * known.of(tokens), starts),
    )
    return np.clip(refused + np.maximum(0.0, 1 - listed) * known.base, 0, 1).round(
        9
    )  # processors differ in the 16th


def cross_fit(
    traces: Traces, labels: Labels, clusters: pd.Series, teaches: np.ndarray
) -> np.ndarray:
    """Return p(refuse) of each prompt, by what other clusters taught, which are dealt
    to `FOLDS` folds.

    All four are of the same n prompts in the same order; a twin has its benign cluster,
    so that it is scored in that one's fold. `teaches` says which are used to learn. At
    least `FOLDS` clusters must teach.
    """
    names = np.unique(clusters[teaches])
    dealt = pd.Series(
        np.random.default_rng(SEED).permutation(len(names)) % FOLDS, names
    )
    fold = clusters.map(
        dealt
    ).to_numpy()  # NaN, which is in no fold, where a cluster does not teach
    found = p_refuse(traces, fit_refusal_rates(traces[teaches], labels[teaches]))
    for number in range(FOLDS):
        own = fold == number
        found[own] = p_refuse(
            traces[own],
            fit_refusal_rates(traces[teaches & ~own], labels[teaches & ~own]),
        )
    return found


def choose_by_share(scores: np.ndarray, rejected: float) -> float:
    """Return the lowest score that at most this share of the scores reach.

    1 if more than that are equal on top.
    """
    cuts, counts = np.unique(scores, return_counts=True)
    reach = counts[::-1].cumsum()[::-1] / len(scores)
    return float(min(cuts[reach <= rejected], default=1.0))


def load_refusal_guards(
    store: stores.Store, settings: Settings, corpus: Corpus, twins: Corpus
) -> list[str | Guard]:
    """Return the guards that 05 asks: a model's own refusal ready to score both
    corpora, any other by its name.

    `settings` names the guards and the corpora, of which `twins` may be empty. A model
    whose answers are not in the store, or teach too little, is named on stderr and left
    out; if it is `settings.guard`, that is a DataError.
    """
    found: list[str | Guard] = []
    for name in settings.asked_guards("guard", "refusal"):
        try:
            known = registry.is_refusal(name)
            found.append(
                _load(store, name, {settings.corpus: corpus, settings.twins: twins})
                if known
                else name
            )
        except DataError as error:
            if name == settings.guard:
                raise
            print(f"left out: {error}", file=sys.stderr)
    return found


def _load(store: stores.Store, name: str, corpora: dict[str, Corpus]) -> Guard:
    """Return a model's own refusal as a guard.

    The first corpus teaches, each cluster those of other folds.
    """
    model = name.removeprefix(registry.REFUSAL_PREFIX)
    name = name if name == model else re.sub(r"[^\w.-]+", "-", f"{model}-refusal")
    known = registry.guard_entries("panel").get(name, {})
    entry = parse_guard_entry(
        name, {"kind": "refusal", "model": model, "axis": "harm", **known}
    )
    (of, corpus), (_, twins) = corpora.items()
    systems = trace_store.find_systems(store, of, entry.model)
    system = next((one for one in systems if one.endswith("--none")), "")
    if not all(
        store.has("traces", one, system) for one, texts in corpora.items() if len(texts)
    ):
        raise Missing(
            f"{name}: the {store.name} store lacks answers of {entry.model} without a"
            f" system prompt; run: paraguard run 02 --store {store.name} --model"
            f" {entry.model} -p system prompts='[none]'"
        )
    every = [
        trace_store.read_traces(store, one, texts, system)
        for one, texts in corpora.items()
        if len(texts)
    ]
    traces, prompts = (
        pd.concat(every, ignore_index=True),
        pd.concat([corpus, twins], ignore_index=True),
    )
    if not traces["next_ids"].map(len).all():
        raise DataError(
            f"{name}: its server told no probabilities of first tokens; use one that"
            " does, or weights"
        )
    own = store.read("labels", of, system).set_index("prompt_id")["label"]
    labels = pd.DataFrame(
        {"prompt_id": prompts["prompt_id"], "label": prompts["prompt_id"].map(own)}
    )
    teaches = np.arange(len(prompts)) < len(corpus)
    if (n := corpus["cluster_id"].nunique()) < FOLDS:
        raise DataError(
            f"{name}: there are {n} clusters; at least {FOLDS} are needed to learn what"
            " a refusal is"
        )
    scores = cross_fit(
        traces, labels, unsafe.benign_cluster_of(prompts["cluster_id"]), teaches
    )
    scores = np.array(
        [float(f"{score:.5g}") for score in scores]
    )  # as they are kept, so that the cut is one of them
    by_text = dict(zip(prompts["text"], scores, strict=True))

    def score(texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
        if not by_text.keys() & set(texts):
            raise Missing(
                f"{name}: it is read from recorded answers, and there are none to these"
                " prompts"
            )
        return np.array([by_text.get(text, np.nan) for text in texts])

    weights = stores.read_meta(store.path("traces", of, system))["weights_id"]
    version = f"{weights[:12]}-{stores.frame_hash(labels[teaches])[:12]}"
    about = entry.described | {
        "threshold": choose_by_share(scores[teaches], entry.rejects)
    }
    return Guard(name=name, version=version, score=score, **about)
