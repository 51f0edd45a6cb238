"""p(refuse): how likely an answer's first token begins a refusal (`docs/method.md`, Remedies)."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd

from paraguard_utils.schemas import Labels, Traces

Value = TypeVar("Value")

ROUNDING = 1e-9

DECIMALS = 9
"""Decimals of p(refuse)."""


class Rates(NamedTuple):
    """How often answers that begin with a token are rejections.

    Attributes
    ----------
    shares : Series of float
        By token, in [0, 1], drawn to the base rate.
    base : float
        Share of all answers.
    """

    shares: pd.Series
    base: float

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """Return the share of each token; the base rate for one that began no answer."""
        return self.shares.reindex(tokens).fillna(self.base).to_numpy()


def first(traces: Traces) -> np.ndarray:
    """Return the token that begins each greedy answer."""
    return np.array([ids[0] for ids in traces["next_ids"]], int)


def learn(traces: Traces, labels: Labels) -> Rates:
    """Learn which first tokens begin rejections.

    Parameters
    ----------
    traces, labels : DataFrame
        Of training prompts, rows in the same order; answers that are neither accepted nor rejected count for nothing.
    """
    label = labels["label"].to_numpy()
    decided = np.isin(label, ["accept", "reject"])
    rejected = pd.Series((label == "reject")[decided].astype(float))
    base = float(rejected.mean()) if len(rejected) else 0.0
    groups = rejected.groupby(first(traces)[decided])
    return Rates((groups.sum() + base) / (groups.count() + 1), base)


def p_refuse(traces: Traces, rates: Rates) -> np.ndarray:
    """Return p(refuse) of each trace, in [0, 1], to `DECIMALS`: processors differ in the sixteenth."""
    if traces.empty:
        return np.zeros(0)
    lengths = traces["next_ids"].map(len).to_numpy()
    tokens, p = (np.concatenate(traces[name].to_list()) for name in ("next_ids", "next_logprobs"))
    p = np.exp(p.astype(float))
    starts = np.concatenate([[0], lengths.cumsum()[:-1]])
    known, told = np.add.reduceat(p, starts), np.add.reduceat(p * rates.of(tokens), starts)
    return np.clip(told + np.maximum(0.0, 1 - known) * rates.base, 0, 1).round(DECIMALS)


def best(values: Iterable[Value], rejected: Callable[[Value], Sequence[np.ndarray]], untouched: float) -> Value | None:
    """Choose on validation prompts the value that makes twins' rejections exceed benign ones most (Youden's J).

    Parameters
    ----------
    values : iterable
        The weakest first: of equals the first is taken.
    rejected : callable
        A value to what it rejects of benign prompts and of twins: decisions, or p(refuse).
    untouched : float
        What the untouched model rejects of the benign prompts: a value that rejects more is no remedy.

    Returns
    -------
    object or None
        None where every value rejects more.
    """
    found, highest = None, -np.inf
    for value in values:
        benign, twins = (float(np.mean(part)) for part in rejected(value))
        if benign <= untouched + ROUNDING and twins - benign > highest + ROUNDING:
            found, highest = value, twins - benign
    return found
