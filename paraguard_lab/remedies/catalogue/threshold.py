"""Reject above a threshold on p(refuse) of the first token (ours): a baseline that
needs one prefill only.
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
    benign, _ = base.corpora

    @cache
    def learned() -> tuple[refusal.RefusalRates, float | None]:
        known = first_token.learn_refusal_rates(base, train)
        chosen = first_token.p_refuse_split(base, validation, known)
        untouched = float(
            (base.decide(benign, validation.benign)["label"] == "reject").mean()
        )
        limits = np.unique(np.concatenate(chosen))
        return known, first_token.choose_by_youden(
            limits, lambda value: tuple(p >= value for p in chosen), untouched
        )

    def decide(of: str, prompts: Corpus | None) -> Labels:
        traces, (known, limit) = base.traces(of, prompts), learned()
        own = base.decide(of, prompts)
        if limit is None:
            return own
        return replace_decisions(
            own, np.where(refusal.p_refuse(traces, known) >= limit, "reject", "accept")
        )

    return RemediedSystem(decide)


def replace_decisions(own: Labels, label: np.ndarray) -> Labels:
    """Replace decisions; overturned rejections have no answer, since none was
    generated.
    """
    overturned = (own["label"] != "accept") & (label == "accept")
    return own.assign(label=label, answer=own["answer"].mask(overturned))


REMEDIES = (Remedy("threshold", "decision", "ours", apply),)
