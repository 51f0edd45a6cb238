"""p(refuse): how likely an answer's first token begins a refusal (`docs/method.md`, Remedies)."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd

from paraguard_utils.remedies.splits import Third
from paraguard_utils.remedies.untouched import Untouched
from paraguard_utils.schemas import Labels, Traces

Value = TypeVar("Value")

ROUNDING = 1e-9

DECIMALS = 9
"""Decimals of p(refuse): processors differ in the sixteenth."""


class Rates(NamedTuple):
    """The share of rejections among answers that begin with a token, shrunk to the share among all answers."""

    shares: pd.Series
    base: float

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """Return the share of each token; the base rate if no answer began with it."""
        return self.shares.reindex(tokens).fillna(self.base).to_numpy()


def first(traces: Traces) -> np.ndarray:
    """Return the token that begins each greedy answer."""
    return np.array([ids[0] for ids in traces["next_ids"]], int)


def learn(traces: Traces, labels: Labels) -> Rates:
    """Learn which first tokens begin rejections, from traces and labels of the same prompts in the same order."""
    label = labels["label"].to_numpy()
    decided = np.isin(label, ["accept", "reject"])
    rejected = pd.Series((label == "reject")[decided].astype(float))
    base = float(rejected.mean()) if len(rejected) else 0.0
    groups = rejected.groupby(first(traces)[decided])
    return Rates((groups.sum() + base) / (groups.count() + 1), base)


def rates(base: Untouched, train: Third) -> Rates:
    """Learn which first tokens begin refusals, on the benign prompts and twins of the training split."""
    parts = list(zip(base.corpora, train, strict=True))
    traces = pd.concat([base.traces(of, prompts) for of, prompts in parts], ignore_index=True)
    labels = pd.concat([base.decide(of, prompts) for of, prompts in parts], ignore_index=True)
    return learn(traces, labels)


def p_refuse(traces: Traces, known: Rates) -> np.ndarray:
    """Return p(refuse) of each trace, in [0, 1]; unlisted tokens count with the base rate."""
    if traces.empty:
        return np.zeros(0)
    lengths = traces["next_ids"].map(len).to_numpy()
    tokens, p = (np.concatenate(traces[name].to_list()) for name in ("next_ids", "next_logprobs"))
    p = np.exp(p.astype(float))
    starts = np.concatenate([[0], lengths.cumsum()[:-1]])
    listed, refused = np.add.reduceat(p, starts), np.add.reduceat(p * known.of(tokens), starts)
    return np.clip(refused + np.maximum(0.0, 1 - listed) * known.base, 0, 1).round(DECIMALS)


def best(values: Iterable[Value], rejected: Callable[[Value], Sequence[np.ndarray]], untouched: float) -> Value | None:
    """Choose the value with the highest Youden's J: the share of twins rejected minus that of benign prompts.

    Parameters
    ----------
    values : iterable
        The weakest first: among equals the first is taken.
    rejected : callable
        Returns what a value rejects of the benign validation prompts and of their twins: decisions, or p(refuse).
    untouched : float
        Share of the benign prompts that the untouched model rejects. Values that reject more are passed over; if all
        do, None is returned.
    """
    found, highest = None, -np.inf
    for value in values:
        benign, twins = (float(np.mean(part)) for part in rejected(value))
        if benign <= untouched + ROUNDING and twins - benign > highest + ROUNDING:
            found, highest = value, twins - benign
    return found
