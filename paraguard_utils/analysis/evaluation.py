"""Names of before `analysis.system`, until their callers take a `System`."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pandas as pd

from paraguard_utils.analysis.system import System
from paraguard_utils.core import disagreement
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate
from paraguard_utils.schemas import Corpus, Labels

ArrayStatistic: TypeAlias = Callable[[np.ndarray], np.ndarray]
Evaluation = System


def is_scored(labels: Labels) -> np.ndarray:
    """Mark the prompts that are accepted or rejected."""
    return labels["label"].isin(["accept", "reject"]).to_numpy()


def is_paired(corpus: Corpus, labels: Labels) -> np.ndarray:
    """Mark the scored prompts of clusters with at least two of them."""
    known = count_label_decisions(corpus, labels)["cluster_id"]
    return is_scored(labels) & corpus["cluster_id"].isin(known).to_numpy()


def count_label_decisions(corpus: Corpus, labels: Labels) -> pd.DataFrame:
    """Count the decisions of each cluster (`disagreement.count_decisions`)."""
    refused = as_refused(labels["label"], blocked=False)
    return disagreement.count_decisions(refused, corpus["cluster_id"])


def count_draws(samples: pd.DataFrame) -> pd.DataFrame:
    """Count the scored answers to each prompt that was answered several times."""
    scored = samples[is_scored(samples)]
    rejected = scored["label"].eq("reject")
    return rejected.groupby(scored["prompt_id"]).agg(["size", "sum", "mean"])


def label_isolation(corpus: Corpus, labels: Labels) -> np.ndarray:
    """Compute the share of each rejection's paraphrases that are accepted."""
    refused = as_refused(labels["label"], blocked=False)
    return disagreement.isolation(refused, corpus["cluster_id"])


def estimate_from_counts(
    clusters: ClusterBootstrap, statistic: ArrayStatistic, parts: int = 1
) -> Estimate:
    """Estimate a statistic of counts of clusters, (draws, clusters) to (draws,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = statistic(np.ones((1, len(clusters.codes))))
        draws = np.concatenate(
            [statistic(part) for part in np.array_split(clusters.counts, parts)]
        )
    return Estimate.percentile(float(value[0]), draws)
