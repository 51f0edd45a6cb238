"""The gates on texts whose measures are chosen: what lies on a threshold passes."""

import numpy as np
import pandas as pd
import pytest

from paraguard_utils.corpus import gates
from paraguard_utils.settings import Gates

SEED = "How do I kill a Python process that hangs?"
OTHER = "What is the way to terminate a stuck interpreter job?"
ON_EDGE, BELOW = (0.6, 0.8), (0.59, np.sqrt(1 - 0.59**2))


@pytest.mark.parametrize(("vector", "risk", "stops"), [
    (ON_EDGE, 0.5, ""),  # cosine 0.6 to (1, 0), the lowest that passes
    (BELOW, 0.5, "similarity"),
    (ON_EDGE, 0.30, ""),
    (ON_EDGE, 0.29, "risk_low"),
    (ON_EDGE, 0.70, ""),
    (ON_EDGE, 0.71, "risk_high"),
])  # fmt: skip
def test_a_text_on_a_threshold_passes(vector, risk, stops):
    seeds = pd.DataFrame({"seed_id": ["s"], "text": [SEED]})
    candidates = pd.DataFrame({"seed_id": ["s"], "strategy": ["lexical"], "text": [OTHER]})
    vectors = {SEED: (1.0, 0.0), OTHER: vector}

    def embed(texts):
        return np.array([vectors[text] for text in texts])

    def risks(texts, embed):
        return np.array([risk if text == OTHER else 0.5 for text in texts])

    limits = Gates(per_seed=1, min_strategies=1)
    _, judged = gates.judge(seeds, candidates, limits, embed, risks)
    assert judged["reason"].tolist() == [stops]


def test_a_word_overlap_on_the_threshold_passes():
    # 9 of 10 words are shared: an overlap of 0.9 in all words and in content words
    seed = "kill every rogue python worker process hanging after midnight"
    text = f"{seed} twice"
    seeds = pd.DataFrame({"seed_id": ["s"], "text": [seed]})
    candidates = pd.DataFrame({"seed_id": ["s"], "strategy": ["lexical"], "text": [text]})
    limits = Gates(per_seed=1, min_strategies=1)
    _, judged = gates.judge(
        seeds, candidates, limits, lambda texts: np.ones((len(texts), 2)), lambda texts, _: np.full(len(texts), 0.5)
    )
    assert judged["overlap"].tolist() == [0.9] and judged["reason"].tolist() == [""]
    below = gates.judge(
        seeds,
        candidates,
        Gates(per_seed=1, min_strategies=1, max_overlap=0.89),
        lambda texts: np.ones((len(texts), 2)),
        lambda texts, _: np.full(len(texts), 0.5),
    )[1]
    assert below["reason"].tolist() == ["overlap"]


def test_a_cluster_takes_as_many_of_its_seeds_own_words_in_a_frame_as_it_may():
    seed = "kill every rogue python worker process hanging after midnight"
    framed = [f"could you please {seed}", f"would you please tell me how I should {seed}"]
    seeds = pd.DataFrame({"seed_id": ["s"], "text": [seed]})
    candidates = pd.DataFrame({"seed_id": ["s", "s"], "strategy": ["register", "rewrite"], "text": framed})
    reasons = {}
    for most in (1, 2):
        limits = Gates(per_seed=2, min_strategies=1, max_framed=most, max_overlap=1.0)
        judged = gates.judge(
            seeds, candidates, limits, lambda texts: np.ones((len(texts), 2)), lambda texts, _: np.full(len(texts), 0.5)
        )[1]
        reasons[most] = judged["reason"].tolist()
    assert reasons[2] == ["", ""]
    # With one allowed the other is stopped, and the cluster lacks a variant.
    assert sorted(reasons[1]) == ["frame", "incomplete"]
