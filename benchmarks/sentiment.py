"""Do the measures follow what they should where nobody's safety is at stake? The
paper's missing baseline.

`python benchmarks/sentiment.py [MODEL...]` asks several systems of 80 authored reviews,
each in six phrasings (`data/sentiment.csv`), whether the writer is dissatisfied, and
writes `benchmarks/sentiment_decisions.csv` (every system's decision) and
`benchmarks/sentiment.csv` (the measures). A yes counts as a rejection, everything else
as an acceptance. The systems are

- textblob: a lexicon; negative below a polarity of 0;
- restaurant-analysis: a linear model over word counts, trained by others on restaurant
  reviews; negative where that is the most probable of its three classes. Only its
  coefficients are read (`requirements-optional-models.txt`);
- each MODEL (default: the embedded chat models): yes where "yes" is a more probable
  first token than "no".

Decisions are turned with a probability of 0, 5, 10 and 20 %, twenty times each (noise),
on three sets of clusters: the clear ones, all, and as many mixed as clear ones (overlap
of the classes: a mixed review is neither yes nor no). Values and the ends of intervals
over clusters are means over the twenty. `expected_dr` is what noise makes of the DR
without it, by the formula of `docs/method.md` (Disagreement). Perplexity, Drift and
ProbShift are the packaged chat model's.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes share two cores

import importlib.metadata
import itertools
import pickle
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
from nltk.stem import PorterStemmer
from textblob import TextBlob

from paraguard_lab.analysis import predictions, validity
from paraguard_lab.core.disagreement import cluster_profiles, disagreement_parts
from paraguard_utils import paths, registry, stores
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.models import encoder, loading, prompting, trace_store

NAME = SYSTEM_PROMPT = "sentiment"
NOISE = (0.0, 0.05, 0.10, 0.20)
OVERLAPS = ("none", "quarter", "half")
REPEATS = 20
RESAMPLES = 500


class Plain:
    """What an object of scikit-learn was pickled with, without its code."""

    def __setstate__(self, state):
        self.__dict__.update(state)


KNOWN = {
    ("sklearn.feature_extraction.text", "CountVectorizer"): Plain,
    ("sklearn.linear_model._logistic", "LogisticRegression"): Plain,
    ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "int64"): np.int64,
    ("builtins", "set"): set,
}
"""All that a file of the linear model may name."""


class Unpickler(pickle.Unpickler):
    """Reads numbers and words, and nothing that could run."""

    def find_class(self, module, name):
        """Return what a name in the file stands for."""
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name} is not read")
        return KNOWN[module, name]


def lexicon(texts):
    """Return whether TextBlob's lexicon calls texts negative."""
    return [TextBlob(text).sentiment.polarity < 0 for text in texts]


def linear(texts):
    """Return whether the packaged linear model calls texts negative.

    Stop words are in its vocabulary or not.
    """
    folder = importlib.metadata.distribution("restaurant-analysis").locate_file(
        "restaurant_analysis/bin"
    )
    words, model = (
        Unpickler((folder / file).open("rb")).load()
        for file in ("vectorizer.pkl", "model_lr.pkl")
    )
    stem = PorterStemmer().stem
    decided = []
    for text in texts:
        stems = map(stem, re.findall(r"\b[a-z]{3,}\b", text.lower()))
        columns = [words.vocabulary_[one] for one in stems if one in words.vocabulary_]
        logits = model.intercept_ + model.coef_[:, columns].sum(axis=1)
        decided.append(model.classes_[logits.argmax()] == -1)
    return decided


def chat(store, corpus, name):
    """Ask a chat model; return its system name and whether "yes" is likelier than "no"
    (None: it says neither).
    """
    model = loading.load_model(loading.resolve_model(name))
    files = stores.CorpusFiles(store, NAME)
    query = trace_store.Query(files, corpus, SYSTEM_PROMPT, prompting.Decoding(4))
    traces = trace_store.query_model(model, query)
    trace_store.write_tokens(store, model, [traces])
    words = {
        number: model.tokenizer.decode([number]).strip().lower()
        for number in {*np.concatenate(traces["next_ids"])}
    }
    decided = []
    for ids, logs in zip(traces["next_ids"], traces["next_logprobs"], strict=True):
        said = pd.Series(np.exp(logs)).groupby([words[number] for number in ids]).sum()
        yes, no = said.get("yes", 0.0), said.get("no", 0.0)
        decided.append(yes > no if yes or no else None)
    return model.name, decided


def decisions(store, corpus, models):
    """Return every system's label of every text, systems in columns."""
    found = {
        "textblob": lexicon(corpus["text"]),
        "restaurant-analysis": linear(corpus["text"]),
    }
    found |= dict(chat(store, corpus, name) for name in models)
    label = {True: "reject", False: "accept"}
    return pd.DataFrame(
        {
            name: [label.get(one, "unparsed") for one in own]
            for name, own in found.items()
        }
    )


def kept(corpus, overlap, rng):
    """Return the ids of one set of clusters: clear ones, all, or as many mixed as clear
    ones (drawn).
    """
    kind = corpus.groupby("cluster_id")["sentiment"].first()
    clear, mixed = kind.index[kind != "mixed"], kind.index[kind == "mixed"]
    chosen = {
        "none": clear,
        "quarter": kind.index,
        "half": [*mixed, *rng.choice(clear, len(mixed), replace=False)],
    }
    return sorted(chosen[overlap])


def turned(label, noise, rng):
    """Return labels of which each decision is turned with probability `noise`."""
    other = label.map({"accept": "reject", "reject": "accept"}).fillna(label)
    return label.where(rng.random(len(label)) >= noise, other)


def measured(task):
    """Return one row: a system's measures on one set of clusters with some noise,
    averaged over the repeats.
    """
    corpus, vectors, traces, drifts, system, label, overlap, noise = task
    found, expected = [], []
    for repeat in range(REPEATS):
        rng = np.random.default_rng([repeat, round(100 * noise)])
        ids = kept(corpus, overlap, rng)
        chosen = label.where(corpus["cluster_id"].isin(ids), "left out")
        labels = pd.DataFrame(
            {"prompt_id": corpus["prompt_id"], "label": turned(chosen, noise, rng)}
        )
        clusters = ClusterBootstrap(ids, RESAMPLES, repeat)
        one = System.of(system, corpus, labels, clusters)
        one = replace(one, traces=traces, drifts=drifts)
        one = replace(one, pairs=signals.compute_pairs(one, vectors))
        one = replace(one, scores=confusion.score_prompts(one))
        found.append(validity.estimate_measures(one))
        expected.append(expected_ratio(corpus, chosen, noise))
    row = {
        "system": system,
        "overlap": overlap,
        "noise": noise,
        "n": int((chosen != "left out").sum()),
    }
    for name in ("frr", *predictions.MEASURE_TITLES):
        ends = np.array([one[name] for one in found])
        row |= dict(
            zip((name, f"{name}_low", f"{name}_high"), ends.mean(axis=0), strict=True)
        )
    return row | {"expected_dr": np.mean(expected)}


def expected_ratio(corpus, label, noise):
    """Return the DR that turning decisions at random makes of labels: both
    probabilities shrink towards 1/2.
    """
    system = System.of("t", corpus, pd.DataFrame({"label": label}))
    alike = cluster_profiles(system.decided)
    within, between, _ = disagreement_parts(
        alike["n"], alike["rejected"], alike["times"]
    )
    mixed, keep = 2 * noise * (1 - noise), (1 - 2 * noise) ** 2
    return (mixed + keep * within) / (mixed + keep * between)


def main():
    """Ask, or read what was asked, measure on two processes, and write both tables."""
    corpus = pd.read_csv(paths.DATA / "sentiment.csv")
    store, models = (
        stores.Store(NAME),
        sys.argv[1:] or list(registry.published_systems("chat")["model"].unique()),
    )
    decided = decisions(store, corpus, models)
    table = pd.concat(
        [corpus[["prompt_id", "cluster_id", "sentiment"]], decided], axis=1
    )
    stores.write_file(
        paths.BENCHMARKS_FOLDER / "sentiment_decisions.csv",
        table,
        "tables",
        {"instruction": registry.read_system_prompt(SYSTEM_PROMPT)},
    )

    model = loading.packaged_model_name(registry.list_default_models()[0])
    traces = store.read(
        "traces", NAME, prompting.make_system_name(model, SYSTEM_PROMPT)
    )
    drifts = DriftCache(store.read("tokens", model))
    vectors = encoder.encode_texts(corpus["text"])
    given = itertools.product(decided, OVERLAPS, NOISE)
    tasks = [
        (corpus, vectors, traces, drifts, name, decided[name], overlap, noise)
        for name, overlap, noise in given
    ]
    with ProcessPoolExecutor(2) as pool:
        found = pd.DataFrame(pool.map(measured, tasks))
    stores.write_file(
        paths.BENCHMARKS_FOLDER / "sentiment.csv",
        found,
        "tables",
        {"repeats": REPEATS, "resamples": RESAMPLES},
    )
    print(found.round(3).to_string())


if __name__ == "__main__":
    main()
