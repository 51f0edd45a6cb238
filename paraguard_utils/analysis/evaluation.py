"""What a target decided on a corpus, as the measures of the core take it."""

import numpy as np
import pandas as pd

from paraguard_utils.core import disagreement
from paraguard_utils.core.decisions import as_refused
from paraguard_utils.schemas import Corpus, Labels


def tally(corpus: Corpus, labels: Labels) -> pd.DataFrame:
    """Count the decisions of each cluster (`disagreement.count_decisions`); rows of both in the same order."""
    return disagreement.count_decisions(as_refused(labels["label"], blocked=False), corpus["cluster_id"])


def isolation(corpus: Corpus, labels: Labels) -> np.ndarray:
    """Return the share of each rejection's paraphrases that are accepted (`disagreement.isolation`)."""
    return disagreement.isolation(as_refused(labels["label"], blocked=False), corpus["cluster_id"])
