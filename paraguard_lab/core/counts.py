"""Counts of drawn answers, and statistics of how often clusters are drawn."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pandas as pd

from paraguard_utils.core.estimates import ClusterBootstrap, Estimate

ArrayStatistic: TypeAlias = Callable[[np.ndarray], np.ndarray]


def count_draws(samples: pd.DataFrame) -> pd.DataFrame:
    """Count the scored answers to each prompt that was answered several times.

    `samples` has prompt_id and label. Columns: size, and of rejections sum and mean; by
    prompt_id.
    """
    scored = samples[samples["label"].isin(["accept", "reject"])]
    rejected = scored["label"].eq("reject")
    return rejected.groupby(scored["prompt_id"]).agg(["size", "sum", "mean"])


def estimate_from_counts(
    clusters: ClusterBootstrap, statistic: ArrayStatistic, parts: int = 1
) -> Estimate:
    """Estimate a statistic of how often each cluster is drawn.

    The statistic takes counts, shape (draws, clusters), and returns shape (draws,). It
    is computed in so many `parts` of the resamples, to save memory.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value = statistic(np.ones((1, len(clusters.codes))))
        chunks = np.array_split(clusters.counts, parts)
        draws = np.concatenate([statistic(chunk) for chunk in chunks])
    return Estimate.percentile(float(value[0]), draws)
