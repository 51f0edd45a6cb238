"""Learn p(refuse) on one split and choose by it on another.

(`docs/method.md`, Remedies)
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import pandas as pd

from paraguard_lab.guards.refusal import RefusalRates, fit_refusal_rates, p_refuse
from paraguard_lab.remedies.splits import Split, Splits
from paraguard_lab.remedies.untouched import UntouchedSystem

_Value = TypeVar("_Value")

_ROUNDING = 1e-9


def learn_refusal_rates(base: UntouchedSystem, train: Split) -> RefusalRates:
    """Learn from the training split which first tokens begin refusals.

    Its benign prompts and its twins both count.
    """
    traces = []
    labels = []
    for corpus_name, prompts in base.by_corpus(train).items():
        traces.append(base.traces(corpus_name, prompts))
        labels.append(base.decide(corpus_name, prompts))
    return fit_refusal_rates(
        pd.concat(traces, ignore_index=True), pd.concat(labels, ignore_index=True)
    )


def p_refuse_split(
    base: UntouchedSystem, split: Split, rates: RefusalRates
) -> list[np.ndarray]:
    """Return p(refuse) of the benign prompts of a split, and of its twins."""
    return [
        p_refuse(base.traces(corpus_name, prompts), rates)
        for corpus_name, prompts in base.by_corpus(split).items()
    ]


def score_folds(
    base: UntouchedSystem, folds: Sequence[Splits]
) -> tuple[Split, list[np.ndarray]]:
    """Return the test prompts of all folds, and p(refuse) of both sides.

    Each fold's rates are learned from its own training split.
    """
    sides = zip(*[fold.test for fold in folds], strict=True)
    prompts = Split(*[pd.concat(side, ignore_index=True) for side in sides])
    p = []
    for fold in folds:
        rates = learn_refusal_rates(base, fold.train)
        p.append(p_refuse_split(base, fold.test, rates))
    return prompts, [np.concatenate(side) for side in zip(*p, strict=True)]


def choose_by_youden(
    values: Iterable[_Value],
    rejected: Callable[[_Value], Sequence[np.ndarray]],
    untouched: float,
) -> _Value | None:
    """Choose the value with the highest Youden's J.

    Youden's J is the share of twins rejected minus that of benign prompts. The weakest
    value comes first, and wins among equals. `rejected` returns what a value rejects of
    the benign validation prompts and of their twins: decisions, or p(refuse). None if
    all values reject a larger share of the benign prompts than `untouched`.

    Examples
    --------
    >>> p = [np.array([0.1, 0.4]), np.array([0.5, 0.9])]
    >>> choose_by_youden([0.8, 0.5], lambda limit: [side >= limit for side in p], 1.0)
    0.5
    """
    chosen = None
    highest = -np.inf
    for value in values:
        benign, twins = (float(np.mean(side)) for side in rejected(value))
        allowed = benign <= untouched + _ROUNDING
        if allowed and twins - benign > highest + _ROUNDING:
            chosen = value
            highest = twins - benign
    return chosen
