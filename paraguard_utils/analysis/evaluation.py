"""Turn a target's labels into counts of refusals by cluster, as `core` takes them.

Labels are those that `labels.labelling` reads: it makes rejections of what a provider stopped.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils.analysis.signals import DriftCache
from paraguard_utils.core import disagreement
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.core.signals import ScoreWeights
from paraguard_utils.schemas import Corpus, Labels, Pairs, Scores, Tokens, Traces


class Evaluation(NamedTuple):
    """What a store holds of one scored target (frames by kind, labels and traces in corpus order), and its settings.

    `drifts` holds the Drift of the pairs of the target's model, `labeller` the value of that parameter of 03.
    """

    labels: Labels
    pairs: Pairs
    scores: Scores
    traces: Traces
    tokens: Tokens
    drifts: DriftCache
    weights: ScoreWeights
    k: int
    labeller: str


def count_label_decisions(corpus: Corpus, labels: Labels) -> pd.DataFrame:
    """Count the decisions of each cluster (`disagreement.count_decisions`); rows of both in the same order."""
    return disagreement.count_decisions(as_refused(labels["label"], blocked=False), corpus["cluster_id"])


def label_isolation(corpus: Corpus, labels: Labels) -> np.ndarray:
    """Compute the share of each rejection's paraphrases that are accepted (`disagreement.isolation`)."""
    return disagreement.isolation(as_refused(labels["label"], blocked=False), corpus["cluster_id"])
