"""Whether time per prompt and memory stay the same as a corpus grows.

`.venv/bin/python benchmarks/corpus_size.py --sizes 200 1200 12000` asks the recorded
corpus, repeated or cut to each size, in a process of its own per size, into an empty
store. Twelve thousand prompts of 64 tokens take about an hour on two cores; `--new`
shortens the answers.
"""

import argparse
import multiprocessing
import resource
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_utils import paths, stores
from paraguard_utils.models import loading, prompting, trace_store

NAME = "benchmark-corpus-size"


def sized(corpus, size, seed=1):
    """Return `size` prompts: a seeded order of the corpus, as often as needed, so that
    every size is alike.
    """
    rng = np.random.default_rng(seed)
    rows = np.concatenate(
        [rng.permutation(len(corpus)) for _ in range(-(-size // len(corpus)))]
    )[:size]
    frame = corpus.iloc[rows].reset_index(drop=True)
    return frame.assign(prompt_id=[f"p{i:06d}" for i in range(size)])[
        ["prompt_id", "text"]
    ]


def ask(size, options):
    """Ask one size from nothing and return its row."""
    store = stores.Store(NAME)
    shutil.rmtree(store.writes, ignore_errors=True)
    corpus = sized(stores.Store(stores.RECORDED).read("corpus", "paraguard_mini"), size)
    started = time.perf_counter()
    model = loading.load_model(loading.resolve_model(options.model))
    loaded = time.perf_counter()
    for system_prompt in options.system_prompts:
        query = trace_store.Query(
            stores.CorpusFiles(store, f"size-{size}"),
            corpus,
            system_prompt,
            prompting.Decoding(options.new),
        )
        trace_store.query_model(model, query)
    seconds = time.perf_counter() - loaded
    asked = size * len(options.system_prompts)
    shutil.rmtree(store.writes)
    return {
        "prompts": size,
        "asked": asked,
        "new_tokens": options.new,
        "load_seconds": loaded - started,
        "seconds": seconds,
        "seconds_per_prompt": seconds / asked,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main():
    """Measure each size, print the table and write it with its meta file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--model",
        default="smollm2-135m-instruct",
        help="any name that notebook 02 takes",
    )
    parser.add_argument("--system-prompts", nargs="+", default=["safety"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[200, 1200, 12_000])
    parser.add_argument(
        "--new", type=int, default=64, help="new tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=paths.RESULTS / "benchmarks" / "corpus_size.csv"
    )
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        with ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn")
        ) as pool:
            rows.append(pool.submit(ask, size, options).result())
    table = pd.DataFrame(rows)
    table["times_smallest"] = (
        table["seconds_per_prompt"] / table["seconds_per_prompt"].iloc[0]
    )
    stores.write_file(
        options.output,
        table,
        "tables",
        {"model": options.model, "system_prompts": options.system_prompts},
    )
    print(table.to_string(index=False, float_format="%.4g"))
    print(f"written to {paths.display_path(options.output)}")


if __name__ == "__main__":
    main()
