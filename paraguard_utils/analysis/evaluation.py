"""Turn labels, as `labels.labelling` reads them, into counts of refusals by cluster, as
`core` takes them.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from paraguard_utils.core import disagreement
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.core.estimates import ClusterBootstrap, Estimate
from paraguard_utils.core.signals import ScoreWeights
from paraguard_utils.schemas import Corpus, Labels, Pairs, Scores, Tokens, Traces

ArrayStatistic: TypeAlias = Callable[[np.ndarray], np.ndarray]


class Evaluation(NamedTuple):
    """What a store holds of one scored system (frames by kind, labels and traces in
    corpus order), and its settings.
    """

    labels: Labels
    pairs: Pairs
    scores: Scores
    traces: Traces
    tokens: Tokens
    weights: ScoreWeights
    k: int
    labeller: str


def is_scored(labels: Labels) -> np.ndarray:
    """Mark the prompts that are accepted or rejected."""
    return labels["label"].isin(["accept", "reject"]).to_numpy()


def is_paired(corpus: Corpus, labels: Labels) -> np.ndarray:
    """Mark the scored prompts of clusters with at least two of them.

    Rows of both in the same order.
    """
    known = count_label_decisions(corpus, labels)["cluster_id"]
    return is_scored(labels) & corpus["cluster_id"].isin(known).to_numpy()


def count_label_decisions(corpus: Corpus, labels: Labels) -> pd.DataFrame:
    """Count the decisions of each cluster (`disagreement.count_decisions`).

    Rows of both in the same order.
    """
    return disagreement.count_decisions(
        as_refused(labels["label"], blocked=False), corpus["cluster_id"]
    )


def count_draws(samples: pd.DataFrame) -> pd.DataFrame:
    """Count the scored answers to each prompt that was answered several times: size,
    sum and mean of rejections.
    """
    scored = samples[is_scored(samples)]
    return (
        scored["label"]
        .eq("reject")
        .groupby(scored["prompt_id"])
        .agg(["size", "sum", "mean"])
    )


def label_isolation(corpus: Corpus, labels: Labels) -> np.ndarray:
    """Compute the share of each rejection's paraphrases that are accepted
    (`disagreement.isolation`).
    """
    return disagreement.isolation(
        as_refused(labels["label"], blocked=False), corpus["cluster_id"]
    )


def estimate_from_counts(
    clusters: ClusterBootstrap, statistic: ArrayStatistic, parts: int = 1
) -> Estimate:
    """Estimate a statistic of counts of clusters, (draws, clusters) to (draws,),
    computed in `parts` to save memory.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value = statistic(np.ones((1, len(clusters.codes))))
        draws = np.concatenate(
            [statistic(part) for part in np.array_split(clusters.counts, parts)]
        )
    return Estimate.percentile(float(value[0]), draws)
