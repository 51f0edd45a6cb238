"""Small synthetic corpora with traces, for tests of the metric: their answers are
drawn, only the sums are real.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from paraguard_utils.analysis.confusion import score_prompts
from paraguard_utils.analysis.drift import DriftCache
from paraguard_utils.analysis.signals import compute_pairs
from paraguard_utils.analysis.system import System

DIMENSIONS, VOCABULARY = 6, 40

CATEGORIES = [
    "deception",
    "harassment",
    "harmful",
    "hate",
    "illegal",
    "privacy",
    "self-harm",
    "sexual",
    "unethical",
    "violence",
]
"""OR-Bench's ten categories, which the project's own seeds keep to."""


def world(labels, clusters, seed=0):
    """Return corpus, vectors, traces, labels and tokens for given labels and cluster
    names.
    """
    rng = np.random.default_rng(seed)
    n = len(labels)
    corpus = pd.DataFrame(
        {
            "prompt_id": [f"p{i:03d}" for i in range(n)],
            "cluster_id": clusters,
            "variant": 0,
            "strategy": "seed",
            "text": [f"text {i}" for i in range(n)],
            "source": "test",
            "category": "hate",
            "topical": "yes",
            "similarity": 1.0,
            "overlap": 1.0,
            "risk": rng.uniform(0.3, 0.7, n).round(4),
        }
    )
    rows = []
    for i in range(n):
        length = int(rng.integers(3, 9))
        top = rng.dirichlet(np.ones(9))
        order = np.argsort(-top[:8], kind="stable")
        rows.append(
            {
                "prompt_id": corpus["prompt_id"][i],
                "key": str(i),
                "response": "text",
                "finish_reason": "stop",
                "token_ids": rng.integers(0, VOCABULARY, length).astype(np.int32),
                "token_nll": rng.uniform(0.5, 4, length).astype(np.float32),
                "user_start": 1,
                "user_end": length - 1,
                "next_ids": rng.permutation(20)[:8][order].astype(np.int32),
                "next_logprobs": np.log(top[:8][order]).astype(np.float32),
                "tail_mass": float(top[8]),
            }
        )
    labelled = pd.DataFrame({"prompt_id": corpus["prompt_id"], "label": labels})
    tokens = pd.DataFrame(
        {
            "token_id": range(VOCABULARY),
            "text": [f"w{i}" for i in range(VOCABULARY)],
            "embedding": list(
                rng.normal(size=(VOCABULARY, DIMENSIONS)).astype(np.float16)
            ),
        }
    )
    return (
        corpus,
        rng.normal(size=(n, DIMENSIONS)).astype(np.float16),
        pd.DataFrame(rows),
        labelled,
        tokens,
    )


def system(corpus, labels, clusters=None, tokens=None, **frames):
    """Return a system `mine` with these frames, as a store would hold it."""
    made = System.of("mine", corpus, labels, clusters)
    if tokens is not None:
        made = replace(made, drifts=DriftCache(tokens))
    return replace(made, **frames)


def scored(world, clusters=None, scoring=None):
    """Return the system of a world with its pairs and scores."""
    corpus, vectors, traces, labels, tokens = world
    made = system(corpus, labels, clusters, traces=traces, tokens=tokens)
    if scoring is not None:
        made = replace(made, scoring=scoring)
    made = replace(made, pairs=compute_pairs(made, vectors))
    return replace(made, scores=score_prompts(made))


def systems(corpus, labels, clusters=None):
    """Return systems that have decisions only, from labels by name."""
    return [System.of(name, corpus, frame, clusters) for name, frame in labels.items()]
