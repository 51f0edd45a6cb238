"""Learn p(refuse) on one split and choose by it on another (`docs/method.md`,
Remedies).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import pandas as pd

from paraguard_lab.guards.refusal import RefusalRates, fit_refusal_rates, p_refuse
from paraguard_lab.remedies.splits import Split
from paraguard_lab.remedies.untouched import UntouchedSystem

_Value = TypeVar("_Value")

_ROUNDING = 1e-9


def learn_refusal_rates(base: UntouchedSystem, train: Split) -> RefusalRates:
    """Learn which first tokens begin refusals, on the benign prompts and twins of the
    training split.
    """
    parts = list(zip(base.corpora, train, strict=True))
    traces = pd.concat(
        [base.traces(of, prompts) for of, prompts in parts], ignore_index=True
    )
    labels = pd.concat(
        [base.decide(of, prompts) for of, prompts in parts], ignore_index=True
    )
    return fit_refusal_rates(traces, labels)


def p_refuse_split(
    base: UntouchedSystem, split: Split, known: RefusalRates
) -> list[np.ndarray]:
    """Return p(refuse) of the benign prompts of a split, and of its twins."""
    return [
        p_refuse(base.traces(of, prompts), known)
        for of, prompts in zip(base.corpora, split, strict=True)
    ]


def choose_by_youden(
    values: Iterable[_Value],
    rejected: Callable[[_Value], Sequence[np.ndarray]],
    untouched: float,
) -> _Value | None:
    """Choose the value with the highest Youden's J: the share of twins rejected minus
    that of benign prompts.

    The weakest value comes first. `rejected` returns what a value rejects of the benign
    validation prompts and of their twins: decisions, or p(refuse). None if all reject a
    larger share of the benign prompts than `untouched`.
    """
    found, highest = None, -np.inf
    for value in values:
        benign, twins = (float(np.mean(part)) for part in rejected(value))
        if benign <= untouched + _ROUNDING and twins - benign > highest + _ROUNDING:
            found, highest = value, twins - benign
    return found
