"""How long work takes beside a busy process, side by side in one run.

`.venv/bin/python benchmarks/busy_machine.py` takes about five minutes on two cores.
Each way runs in a process of its own, alone and beside a process that keeps one core
busy: asking the default model some prompts, and Drift of all pairs of three systems.
How a thread waits does not concern Drift, so its first two ways show the noise.
The ways differ in how many threads there are, and in how a thread waits for another.
Only the ratios mean something on another machine.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from paraguard_utils import paths, stores
from paraguard_utils.analysis import pipeline, signals
from paraguard_utils.models import encoder, loading, trace_store
from paraguard_utils.settings import CORPUS

MODEL = "smollm2-135m-instruct"
SYSTEMS = [
    f"{MODEL}-q4_1--{instruction}" for instruction in ("none", "safety", "strict")
]

WAYS = {
    "as it comes": {},
    "threads that wait asleep": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
"""The environment of each way."""

VARIABLES = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What the environment may say of threads, and a way does not inherit."""


def ask_prompts(n: int) -> float:
    """Ask the default model n prompts of the corpus; return the seconds."""
    corpus = stores.Store(stores.RECORDED).read("corpus", CORPUS)
    chosen = corpus.iloc[:: len(corpus) // n].head(n)
    model = loading.load_model(loading.resolve_model(MODEL))
    with tempfile.TemporaryDirectory() as folder:
        paths.RESULTS = Path(folder)
        files = stores.CorpusFiles(stores.Store("busy"), CORPUS)
        query = trace_store.Query(files, chosen, "safety", batch=8)
        started = time.perf_counter()
        trace_store.query_model(model, query)
        return time.perf_counter() - started


def compare_prompts(k: int) -> float:
    """Compare all prompts of three systems with their k nearest; return the seconds."""
    files = stores.CorpusFiles(stores.Store(stores.RECORDED), CORPUS)
    systems = pipeline.read_systems(files, SYSTEMS)
    vectors = encoder.stored_vectors(files, files.prompts["text"], earlier=True)
    started = time.perf_counter()
    for system in systems.values():
        signals.compute_pairs(system, vectors, k=k)
    return time.perf_counter() - started


WORK = {"asking": (ask_prompts, 8), "Drift": (compare_prompts, 20)}
"""What is timed, and how much of it."""


def time_way(work: str, way: str) -> float:
    """Time a piece of work in a process that has the environment of a way."""
    inherited = dict(os.environ)
    for name in VARIABLES:
        inherited.pop(name, None)
    done = subprocess.run(
        [sys.executable, __file__, "--work", work],
        env=inherited | WAYS[way],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def compare_ways(repeats: int) -> pd.DataFrame:
    """Time all work in every way, alone and beside a busy process.

    Columns: work, way; alone and busy, the least seconds of all repeats; slower, how
    many times as long it takes beside the busy process.
    """
    rows = []
    for work in WORK:
        for way in WAYS:
            alone = min(time_way(work, way) for _ in range(repeats))
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                beside = min(time_way(work, way) for _ in range(repeats))
            finally:
                busy.kill()
                busy.wait()
            row = {"work": work, "way": way, "alone": alone, "busy": beside}
            rows.append(row | {"slower": beside / alone})
            print(f"{work}, {way}: {alone:.1f} s, {beside:.1f} s", flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    """Write `benchmarks/busy_machine.csv`, or time one piece of work."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--work", choices=list(WORK), help="time this, here")
    options = parser.parse_args()
    if options.work:
        function, size = WORK[options.work]
        print(function(size))
        return
    table = compare_ways(options.repeats)
    output = paths.BENCHMARKS_FOLDER / "busy_machine.csv"
    meta = {"cores": os.cpu_count(), "repeats": options.repeats}
    stores.write_file(output, table, "tables", meta)
    print(f"written to {paths.display_path(output)}")


if __name__ == "__main__":
    main()
