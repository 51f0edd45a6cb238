"""Systems on clusters of a seed and its variants, for cohorts and the regression."""

from dataclasses import replace

import numpy as np
import pandas as pd

from paraguard_utils.analysis.system import System
from paraguard_utils.core.estimates import ClusterBootstrap


def asked(rows, resamples=200):
    """Return a scored system `t` from rows of (cluster, strategy, label)."""
    frame = pd.DataFrame(rows, columns=["cluster_id", "strategy", "label"])
    frame["prompt_id"] = [f"p{i:04d}" for i in range(len(frame))]
    corpus = frame[["prompt_id", "cluster_id", "strategy"]].assign(
        variant=(frame["strategy"] != "seed").astype(int),
        category="hate",
        topical="yes",
        text="two words",
        risk=0.5,
    )
    corpus["similarity"] = np.where(corpus["variant"] == 0, 1.0, 0.8)
    scores = frame[["prompt_id", "cluster_id", "label"]].assign(
        isolation=0.5, ci=0.7, ci_clipped=0.9, mean_similarity=0.7
    )
    scores = scores[scores["label"].isin(["accept", "reject"])].copy()
    clusters = ClusterBootstrap(corpus["cluster_id"], resamples)
    system = System("t", corpus, frame[["prompt_id", "label"]], clusters)
    return replace(system, scores=scores)


def pairs_of(both, seed_only, variant_only, neither, strategy="lexical"):
    """Return rows of clusters with a seed and one variant, counted by which of the two
    is refused.
    """
    kinds = [("reject", "reject")] * both + [("reject", "accept")] * seed_only
    kinds += [("accept", "reject")] * variant_only + [("accept", "accept")] * neither
    return [
        row
        for i, (a, b) in enumerate(kinds)
        for row in ((f"c{i:03d}", "seed", a), (f"c{i:03d}", strategy, b))
    ]
