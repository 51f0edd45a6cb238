"""Reject above a threshold on p(refuse) of the first token (ours).

This is a baseline that needs one prefill only.
"""

from functools import cache

import numpy as np

from paraguard_lab.guards import refusal
from paraguard_lab.remedies import first_token
from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    Split,
    UntouchedSystem,
)
from paraguard_utils.schemas import Corpus, Labels


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Reject prompts from a chosen p(refuse) on.

    If no value may be chosen, the model decides.
    """

    @cache
    def learned() -> tuple[refusal.RefusalRates, float | None]:
        rates = first_token.learn_refusal_rates(base, train)
        p = first_token.p_refuse_split(base, validation, rates)
        labels = base.decide(base.benign_corpus, validation.benign)
        untouched = (labels["label"] == "reject").mean()
        limit = first_token.choose_by_youden(
            np.unique(np.concatenate(p)),
            lambda value: [side >= value for side in p],
            untouched,
        )
        return rates, limit

    def decide(corpus_name: str, prompts: Corpus | None) -> Labels:
        traces = base.traces(corpus_name, prompts)
        rates, limit = learned()
        labels = base.decide(corpus_name, prompts)
        if limit is None:
            return labels
        rejected = refusal.p_refuse(traces, rates) >= limit
        return replace_decisions(labels, np.where(rejected, "reject", "accept"))

    return RemediedSystem(decide)


def replace_decisions(labels: Labels, label: np.ndarray) -> Labels:
    """Replace decisions.

    Overturned rejections have no answer, since none was generated.
    """
    overturned = (labels["label"] != "accept") & (label == "accept")
    return labels.assign(label=label, answer=labels["answer"].mask(overturned))


REMEDIES = (Remedy("threshold", "decision", "ours", apply),)
