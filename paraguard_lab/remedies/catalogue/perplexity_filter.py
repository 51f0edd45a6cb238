"""Refuse requests of high perplexity (Alon and Kamfonas, arXiv 2308.14132; Jain et al.,
2309.00614).
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
    """Reject requests with a perplexity above the limit; the model decides the others."""
    benign, _ = base.corpora

    def decide(of: str, prompts: Corpus | None) -> Labels:
        odd = trace_perplexity(base.traces(of, prompts))
        limit = np.quantile(
            trace_perplexity(base.traces(benign, validation.benign)),
            PERPLEXITY_QUANTILE,
        )
        own = base.decide(of, prompts)
        return own.assign(label=own["label"].mask(odd > limit, "reject"))

    return RemediedSystem(decide)


REMEDIES = (Remedy("perplexity-filter", "defence", "2308.14132", apply),)
