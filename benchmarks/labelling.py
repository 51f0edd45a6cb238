"""Seconds to label 12,000 answers: the labeller in use, its cue list alone, and the
usual list of substrings.

`python benchmarks/labelling.py` writes `benchmarks/labelling.csv`: the best of
`rounds`, all ways in turn in one run. The answers are the recorded ones with their
requests, repeated; those called `long` have each answer ten times over. The labeller in
use takes minutes, nearly all of them in the sentence encoder, and is timed in one
round.
"""

import time
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_lab.labels import agreement
from paraguard_utils import registry, stores
from paraguard_utils.labels import labelling, refusals

ANSWERS = 12_000
ROUNDS = 5


def main():
    """Time all ways in turn; keep the best round of each."""
    store = stores.Store(stores.RECORDED)
    frames = [
        store.read("labels", "paraguard_mini", name)
        for name in registry.published_systems("chat").index
    ]
    found = pd.concat(frames)
    asked = (
        store.read("corpus", "paraguard_mini")
        .set_index("prompt_id")["text"]
        .loc[found["prompt_id"]]
    )
    texts, requests = (
        np.resize(one.fillna("").to_numpy(), ANSWERS)
        for one in (found["response"], asked)
    )
    ended = ["stop"] * ANSWERS
    labelling.label_responses(
        texts[:1], ended[:1], requests[:1]
    )  # loads the encoder and the classifier
    rows = []
    for length, given in (
        ("recorded", list(texts)),
        ("long", [text * 10 for text in texts]),
    ):
        ways = {
            labelling.LABELLER: (
                1,
                lambda given=given: labelling.label_responses(given, ended, requests),
            ),
            refusals.CUES_VERSION: (
                ROUNDS,
                lambda given=given: refusals.label_by_cues(given, ended),
            ),
            "substrings": (ROUNDS, lambda given=given: agreement.has_substring(given)),
        }
        best = dict.fromkeys(ways, np.inf)
        for number in range(ROUNDS):
            for name, (rounds, label) in ways.items():
                if number < rounds:
                    started = time.perf_counter()
                    label()
                    best[name] = min(best[name], time.perf_counter() - started)
        mean = float(np.mean([len(text) for text in given]))
        rows += [
            {
                "answers": length,
                "characters": round(mean),
                "way": name,
                "rounds": ways[name][0],
                "seconds": seconds,
            }
            | {"times_substrings": seconds / best["substrings"]}
            for name, seconds in best.items()
        ]
    path = Path(__file__).with_suffix(".csv")
    stores.write_file(path, pd.DataFrame(rows), "tables", {"n": ANSWERS})
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
