"""Refuse requests of high perplexity.

(Alon and Kamfonas, arXiv 2308.14132; Jain et al., 2309.00614)
"""

import numpy as np

from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    Split,
    UntouchedSystem,
)
from paraguard_utils.analysis.signals import trace_perplexity
from paraguard_utils.schemas import Corpus, Labels

# Of the benign validation prompts; the papers take the maximum over some harmless set
PERPLEXITY_QUANTILE = 0.95


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Reject requests with a perplexity above the limit.

    The model decides the others.
    """

    def decide(corpus_name: str, prompts: Corpus | None) -> Labels:
        perplexity = trace_perplexity(base.traces(corpus_name, prompts))
        usual = trace_perplexity(base.traces(base.benign_corpus, validation.benign))
        limit = np.quantile(usual, PERPLEXITY_QUANTILE)
        labels = base.decide(corpus_name, prompts)
        return labels.assign(label=labels["label"].mask(perplexity > limit, "reject"))

    return RemediedSystem(decide)


REMEDIES = (Remedy("perplexity-filter", "defence", "2308.14132", apply),)
