"""Which measure follows how much meaning decides, and nothing else? Worlds of known
truth on the real prompts.

`python benchmarks/known_truth.py [WORLDS]` writes `benchmarks/known_truth.csv`.
Prompts, vectors, perplexities and Drift are the recorded ones of SmolLM2 under the
safety system prompt; the decisions are drawn. A prompt is rejected where a + u + e > 0: u is
normal and shared by a cluster, e has variance 1 inside clusters, the share of u in the
variance is the latent correlation (how much meaning decides), and a gives the refusal
rate. The wording e is

- dice: normal, drawn for every prompt;
- perplexity, or length: how far the prompt's logarithm lies above its cluster's mean,
  standardized. A coherent rule.

A measure of how consistently a system refuses should follow the correlation (one way,
whatever the rate), and neither the rate nor the kind of wording. ProbShift is left out
(its weight goes to the others), since the answers' first tokens are not drawn; so is
POSIX.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes share two cores

import itertools
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
from scipy.stats import norm

from paraguard_lab.analysis import predictions, validity
from paraguard_lab.analysis.excess import without_prob_shift
from paraguard_utils import paths, stores
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap
from paraguard_utils.core.signals import PAPER_WEIGHTS, Scoring
from paraguard_utils.models import encoder, prompting, trace_store

CORPUS, SYSTEM = "paraguard_mini", "smollm2-135m-instruct-q4_1--safety"
CORRELATIONS, RATES = (0.0, 0.2, 0.4, 0.6, 0.8), (0.05, 0.2, 0.5)


@cache
def prompts():
    """Return what every world shares: corpus, vectors, traces, Drifts and the two
    coherent wordings.
    """
    files = stores.Store(stores.RECORDED)
    corpus = files.read("corpus", CORPUS)
    traces = trace_store.read_traces(stores.CorpusFiles(files, CORPUS), SYSTEM, corpus)
    vectors = encoder.stored_vectors(
        stores.CorpusFiles(files, CORPUS), corpus["text"], earlier=True
    )
    drifts = DriftCache(files.read("tokens", prompting.model_of_system(SYSTEM)))
    logs = {
        "perplexity": signals.trace_perplexity(traces),
        "length": traces["user_end"] - traces["user_start"],
    }
    wordings = {}
    for name, values in logs.items():
        log = pd.Series(np.log(np.asarray(values, float)))
        own = log - log.groupby(corpus["cluster_id"]).transform("mean")
        wordings[name] = (own / own.std(ddof=0)).to_numpy()
    return corpus, vectors, traces, drifts, wordings


def worlds(cell):
    """Draw the worlds of one cell; return a row for each measure."""
    wording, rate, correlation, number = cell
    corpus, vectors, traces, drifts, wordings = prompts()
    cluster = pd.factorize(corpus["cluster_id"])[0]
    spread = np.sqrt(correlation / (1 - correlation))
    rng = np.random.default_rng(
        [
            ["chance", *wordings].index(wording),
            round(100 * rate),
            round(10 * correlation),
        ]
    )
    once = ClusterBootstrap(
        corpus["cluster_id"], 2
    )  # the spread over worlds is the uncertainty
    found = []
    for _ in range(number):
        own = rng.normal(size=len(corpus)) if wording == "chance" else wordings[wording]
        latent = spread * rng.normal(size=cluster.max() + 1)[cluster] + own
        rejected = latent > norm.isf(rate) * np.sqrt(1 + spread**2)
        labels = pd.DataFrame(
            {
                "prompt_id": corpus["prompt_id"],
                "label": np.where(rejected, "reject", "accept"),
            }
        )
        scoring = Scoring(without_prob_shift(PAPER_WEIGHTS))
        system = System(SYSTEM, corpus, labels, once, scoring, traces=traces)
        system = replace(system, drifts=drifts)
        system = replace(system, pairs=signals.compute_pairs(system, vectors))
        system = replace(system, scores=confusion.score_prompts(system))
        values = validity.estimate_measures(system)
        found.append([values[name][0] for name in predictions.MEASURE_TITLES])
    low, high = np.nanpercentile(found, [2.5, 97.5], axis=0)
    about = {
        "wording": wording,
        "frr": rate,
        "correlation": correlation,
        "worlds": number,
    }
    ends = zip(
        predictions.MEASURE_TITLES, np.nanmean(found, axis=0), low, high, strict=True
    )
    return [
        {**about, "measure": name, "mean": mean, "low": a, "high": b}
        for name, mean, a, b in ends
    ]


def main():
    """Measure all worlds on two processes and write the table."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    cells = [
        ("chance", rate, correlation, number)
        for rate, correlation in itertools.product(RATES, CORRELATIONS)
    ]
    coherent = itertools.product(
        ("perplexity", "length"), (predictions.USUAL_REFUSAL_RATE,), CORRELATIONS
    )
    cells += [(*cell, number) for cell in coherent]
    with ProcessPoolExecutor(2) as pool:
        table = pd.DataFrame([row for rows in pool.map(worlds, cells) for row in rows])
    stores.write_file(
        paths.BENCHMARKS_FOLDER / "known_truth.csv",
        table,
        "tables",
        {"worlds": number, "system": SYSTEM},
    )
    print(table.round(3).to_string())


if __name__ == "__main__":
    main()
