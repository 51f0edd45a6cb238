"""Seconds and memory to score 10,000, 20,000 and 40,000 prompts, and whether they grow
in step.

`.venv/bin/python benchmarks/scoring.py` takes a few minutes on two cores and writes
`benchmarks/scoring.csv`. The corpora are synthetic, of realistic sizes: clusters of
five, a fifth rejected, 8-40 tokens a prompt. Each is scored in a process of its own as
03 does it: pairs, per-prompt scores, Table 1's rows in both interpretations. The search for
neighbours, a part of `pairs`, is timed once more by itself: it is exact, so its time
grows with the square of the corpus. The comparison with chance (floors, permutations)
comes after, with its own seconds and peak memory. Other work on the machine makes
`seconds` longer and hardly changes `cpu_seconds`, the same summed over threads.
"""

import argparse
import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pandas as pd

from paraguard_lab.analysis import chance
from paraguard_utils import stores
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.analysis.system import System
from paraguard_utils.core.confusion import N_NEIGHBOURS
from paraguard_utils.core.estimates import N_RESAMPLES, ClusterBootstrap
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.core.vectors import find_nearest

NAME = "benchmark-scoring"
SYSTEM = "synthetic--none"
SIZES = (10_000, 20_000, 40_000)
CLUSTER, REJECTED = 5, 0.2
DIMENSIONS, NOISE = 384, 0.65  # mates' cosine is about 1 / (1 + 0.65 ** 2) = 0.7
VOCABULARY, WIDTH = 5000, 576
TOP, ANSWERS = (
    64,
    500,
)  # first tokens recorded for a prompt, of those that any answer begins with


def world(n, seed=1):
    """Return corpus, vectors, traces, labels and tokens of n synthetic prompts.

    Some clusters are refused more.
    """
    rng = np.random.default_rng(seed)
    cluster = np.arange(n) // CLUSTER
    names = [f"p{i:06d}" for i in range(n)]
    corpus = pd.DataFrame(
        {
            "prompt_id": names,
            "cluster_id": [f"c{i:06d}" for i in cluster],
            "text": names,
        }
    )
    centres, noise = (
        rng.normal(size=(size, DIMENSIONS)).astype(np.float32)
        for size in (n // CLUSTER, n)
    )
    tendency = rng.normal(size=n // CLUSTER)[cluster] + rng.normal(size=n)
    rejected = tendency.argsort().argsort() < REJECTED * n
    rows = []
    for name in names:
        length = rng.integers(8, 41)
        top = np.sort(rng.dirichlet(np.full(TOP + 1, 0.1)))[::-1]
        rows.append(
            {
                "prompt_id": name,
                "token_ids": rng.integers(0, VOCABULARY, length, np.int32),
                "token_nll": rng.gamma(2, 1.5, length).astype(np.float32),
                "user_start": 0,
                "user_end": length,
                "next_ids": rng.permutation(ANSWERS)[:TOP].astype(np.int32),
                "next_logprobs": np.log(top[:TOP] + 1e-12).astype(np.float32),
                "tail_mass": top[TOP],
            }
        )
    labels = pd.DataFrame(
        {"prompt_id": names, "label": np.where(rejected, "reject", "accept")}
    )
    tokens = pd.DataFrame(
        {"token_id": range(VOCABULARY), "text": [f"w{i}" for i in range(VOCABULARY)]}
    )
    tokens["embedding"] = list(rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float16))
    return (
        corpus,
        (centres[cluster] + NOISE * noise).astype(np.float16),
        pd.DataFrame(rows),
        labels,
        tokens,
    )


def peak():
    """Return the most memory that this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(n, resamples, with_chance):
    """Score n prompts and return the row of the table; run it in a fresh process."""
    row, seconds = (
        {
            "prompts": n,
            "rejected": round(REJECTED * n),
            "import_gb": peak(),
        },
        {},
    )
    corpus, vectors, traces, labels, tokens = world(n)
    row["inputs_gb"] = peak()

    def timed(name, work, *args):
        started = time.perf_counter()
        found = work(*args)
        seconds[name] = time.perf_counter() - started
        return found

    before = time.process_time()
    clusters = timed("resamples", ClusterBootstrap, corpus["cluster_id"], resamples)
    drifts = DriftCache(tokens)
    system = System(SYSTEM, corpus, labels, clusters, traces=traces, drifts=drifts)
    pairs = timed("pairs", signals.compute_pairs, system, vectors)
    system = replace(system, pairs=pairs)
    scores = timed("prompt_scores", confusion.score_prompts, system)
    system = replace(system, scores=scores)
    for interpretation in PPL_INTERPRETATIONS:
        timed(
            f"table_row_{interpretation}", confusion.system_row, system, interpretation
        )
    row |= {
        "pairs": len(pairs),
        "seconds": sum(seconds.values()),
        "cpu_seconds": time.process_time() - before,
    }
    row["peak_gb"] = peak()
    label = labels["label"].to_numpy()
    every, accepted = np.arange(n), np.flatnonzero(label == "accept")
    timed(
        "search",
        find_nearest,
        vectors,
        corpus["prompt_id"].to_numpy(),
        every,
        accepted,
        N_NEIGHBOURS,
    )
    if with_chance:
        timed("chance", chance.compare_with_chance, system, vectors)
        row["chance_peak_gb"] = peak()
    return row | {f"{name}_seconds": value for name, value in seconds.items()}


def main():
    """Measure each size, print the table and write it with its meta file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--resamples", type=int, default=N_RESAMPLES)
    parser.add_argument(
        "--without-chance",
        action="store_true",
        help="leave floors and permutations out",
    )
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_suffix(".csv")
    )
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        with ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn")
        ) as pool:
            rows.append(
                pool.submit(
                    measure, size, options.resamples, not options.without_chance
                ).result()
            )
        print(
            f"{size} prompts: {rows[-1]['seconds']:.3g} s", file=sys.stderr, flush=True
        )
    table = pd.DataFrame(rows)
    table["without_search_seconds"] = table["seconds"] - table["search_seconds"]
    table["times_prompts"] = table["prompts"] / table["prompts"].iloc[0]
    for column in [name for name in table if name.endswith("seconds")]:
        table[f"{column.removesuffix('seconds')}times_first"] = (
            table[column] / table[column].iloc[0]
        )
    meta = {
        "resamples": options.resamples,
        "k": N_NEIGHBOURS,
        "threads": faiss.omp_get_max_threads(),
    }
    stores.write_file(options.output, table, "tables", meta)
    print(table.T.to_string(float_format="%.4g", header=False))


if __name__ == "__main__":
    main()
