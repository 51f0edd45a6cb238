"""How the engine fares beside another process, side by side in one run: thread settings
alone and under load.

`.venv/bin/python benchmarks/under_load.py` takes about twenty minutes on two cores.
Each setting asks the same prompts in a process of its own: alone, and beside a process
that takes a quarter of a core, half of one, or a whole one. Settings take turns, so
that what else happens on the machine falls on all of them. Only the ratios mean
something elsewhere.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from paraguard_utils import paths, registry, stores
from paraguard_utils.models import cpu, loading, prompting, trace_store

SETTINGS = {
    "threads fitted (the engine)": {},
    "threads fixed": {"FIXED": "1"},
    "fixed, waiting threads sleep": {"FIXED": "1", "OMP_WAIT_POLICY": "PASSIVE"},
    "fixed, waiting threads spin briefly": {"FIXED": "1", "GOMP_SPINCOUNT": "3000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
"""Environments of the process that asks, by name; `FIXED` keeps the engine from fitting
its threads.
"""

LOADS = {
    "alone": 0.0,
    "a quarter taken": 0.25,
    "half a core taken": 0.5,
    "a whole core taken": 1.0,
}

TICK = 0.01
"""Seconds in which a busy process works for its share and sleeps for the rest."""


def busy(share):
    """Keep one core busy for a share of the time, for ever."""
    while True:
        end = time.perf_counter() + TICK * share
        while time.perf_counter() < end:
            pass
        time.sleep(TICK * (1 - share))


@contextmanager
def beside(share):
    """Have a busy process run meanwhile."""
    process = (
        multiprocessing.Process(system=busy, args=(share,), daemon=True)
        if share
        else None
    )
    if process:
        process.start()
    try:
        yield
    finally:
        if process:
            process.terminate()
            process.join()


def ask(n, new):
    """Ask the packaged default model the same prompts; print the rate."""
    from query_throughput import engine

    if "FIXED" in os.environ:
        cpu._LOOK_SECONDS = float("inf")
    source = loading.resolve_model("smollm2-135m-instruct")
    model = loading.load_model(source)
    corpus = (
        stores.Store(stores.RECORDED)
        .read("corpus", "paraguard_mini")
        .sample(n, random_state=1)
    )
    text = registry.system_prompts()["safety"]["text"]
    frame = prompting.PromptContext(
        source.weights_id,
        "float32",
        *prompting.render_system_prompt(model.tokenizer, text),
        prompting.Decoding(new),
    )
    requests = prompting.tokenize_prompts(corpus, model.tokenizer, frame)
    engine(
        model, requests[:4], 4, 4
    )  # the first calls of a process are slow, and not what is measured
    started = time.perf_counter()
    engine(model, requests, trace_store.BATCH_SIZE, new)
    print(n / (time.perf_counter() - started))


def main():
    """Measure, print the table and write it with its meta file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "-n", type=int, default=64, help="how many prompts (default: %(default)s)"
    )
    parser.add_argument(
        "--new", type=int, default=64, help="new tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=2,
        help="times each setting is measured (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, default=paths.RESULTS / "benchmarks" / "under_load.csv"
    )
    parser.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        return ask(options.n, options.new)
    rows = []
    for _ in range(options.repeats):
        for load, share in LOADS.items():
            for setting, environment in SETTINGS.items():
                with beside(share):
                    command = [
                        sys.executable,
                        __file__,
                        "--ask",
                        "-n",
                        str(options.n),
                        "--new",
                        str(options.new),
                    ]
                    done = subprocess.run(
                        command,
                        env=os.environ | environment,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        check=True,
                    )
                rows.append(
                    {
                        "setting": setting,
                        "load": load,
                        "prompts_per_second": float(done.stdout),
                    }
                )
                print(rows[-1], file=sys.stderr, flush=True)
    table = (
        pd.DataFrame(rows)
        .groupby(["setting", "load"], sort=False)["prompts_per_second"]
        .max()
        .unstack()
    )
    table = table[list(LOADS)].reset_index()
    stores.write_file(
        options.output,
        table,
        "tables",
        {"prompts": options.n, "new_tokens": options.new, "cores": os.cpu_count()},
    )
    print(table.to_string(index=False, float_format="%.3g"))
    print(f"written to {paths.display_path(options.output)}")


if __name__ == "__main__":
    main()
