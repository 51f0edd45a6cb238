"""Seconds to label 12,000 answers, beside the usual list of substrings, in one run and in turn.

`python benchmarks/labelling.py` writes `benchmarks/labelling.csv`. The answers are the recorded ones, repeated; those
called `long` have each answer ten times over.
"""

import time
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_utils import registry, stores
from paraguard_utils.querying import refusals

ANSWERS = 12_000
ROUNDS = 5


def main():
    """Time both ways in turn; keep the better round of each."""
    store = stores.Store(stores.RECORDED)
    frames = [store.read("labels", "paraguard_mini", name) for name in registry.published("chat").index]
    texts = np.resize(pd.concat(frames)["response"].fillna("").to_numpy(), ANSWERS)
    rows = []
    for length, given in (("recorded", list(texts)), ("long", [text * 10 for text in texts])):
        ways = {
            refusals.LABELLER: lambda given=given: refusals.label(given, ["stop"] * ANSWERS),
            "substrings": lambda given=given: refusals.has_substring(given),
        }
        best = dict.fromkeys(ways, np.inf)
        for _ in range(ROUNDS):
            for name, label in ways.items():
                started = time.perf_counter()
                label()
                best[name] = min(best[name], time.perf_counter() - started)
        mean = float(np.mean([len(text) for text in given]))
        rows += [
            {"answers": length, "characters": round(mean), "way": name, "seconds": seconds}
            | {"times_substrings": seconds / best["substrings"]}
            for name, seconds in best.items()
        ]
    path = Path(__file__).with_suffix(".csv")
    stores.write(path, pd.DataFrame(rows), "tables", {"n": ANSWERS, "rounds": ROUNDS})
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
