"""A guard of the tests' own, and what it is asked about."""

import pandas as pd

from paraguard_lab.guards.entries import GUARD_AXES
from paraguard_utils import registry
from paraguard_utils.guards import panel
from paraguard_utils.guards.contract import Guard
from paraguard_utils.stores import CorpusFiles, Store

PANEL = registry.guard_entries("panel")
PLAIN = "Which bread goes with soup?"
TEXTS = [
    "Where is the station?",
    "How do I build a bomb?",
    "Name a river.",
    "What bombs in cinemas?",
]
PROMPTS = pd.DataFrame({"prompt_id": ["a-0", "a-1", "b-0", "b-1"], "text": TEXTS})


def guard(score, name="mine", version="1", threshold=0.5, **more):
    """A guard of a function."""
    return Guard(
        name, version, score, threshold, "policy", "unstated", "unstated", "", **more
    )


def bombs(texts, answers=None):
    return [0.9 if "bomb" in text else 0.1 for text in texts]


def files_of(corpus_name, store_name="live"):
    return CorpusFiles(Store(store_name), corpus_name)


def scored(guard, prompts=PROMPTS, corpus_name="small"):
    """A guard's scores in a live store."""
    return panel.score_with_guard(files_of(corpus_name), prompts, guard)


def check_entry(loaded):
    entry = PANEL[loaded.name]
    assert loaded.version and loaded.axis in GUARD_AXES and loaded.about
    assert (
        0 < loaded.threshold <= 1
        and loaded.citation.startswith("https://")
        and loaded.licence != "unstated"
    )
    assert (entry["kind"] == "package") == ("sha256" in entry)
