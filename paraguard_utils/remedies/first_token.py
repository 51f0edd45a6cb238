"""p(refuse): how likely an answer's first token begins a refusal (`docs/method.md`, Remedies)."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd

from paraguard_utils.remedies.splits import Split
from paraguard_utils.remedies.untouched import UntouchedSystem
from paraguard_utils.schemas import Labels, Traces

_Value = TypeVar("_Value")

_ROUNDING = 1e-9

_DECIMALS = 9
"""Decimals of p(refuse): processors differ in the sixteenth."""


class RefusalRates(NamedTuple):
    """The share of rejections among answers that begin with a token, shrunk to the share among all answers."""

    shares: pd.Series
    base: float

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """Return the share of each token; the base rate if no answer began with it."""
        return self.shares.reindex(tokens).fillna(self.base).to_numpy()


def first_tokens(traces: Traces) -> np.ndarray:
    """Return the token that begins each greedy answer."""
    return np.array([ids[0] for ids in traces["next_ids"]], int)


def fit_refusal_rates(traces: Traces, labels: Labels) -> RefusalRates:
    """Learn which first tokens begin rejections, from traces and labels of the same prompts in the same order."""
    label = labels["label"].to_numpy()
    decided = np.isin(label, ["accept", "reject"])
    rejected = pd.Series((label == "reject")[decided].astype(float))
    base = float(rejected.mean()) if len(rejected) else 0.0
    groups = rejected.groupby(first_tokens(traces)[decided])
    return RefusalRates((groups.sum() + base) / (groups.count() + 1), base)


def learn_refusal_rates(base: UntouchedSystem, train: Split) -> RefusalRates:
    """Learn which first tokens begin refusals, on the benign prompts and twins of the training split."""
    parts = list(zip(base.corpora, train, strict=True))
    traces = pd.concat([base.traces(of, prompts) for of, prompts in parts], ignore_index=True)
    labels = pd.concat([base.decide(of, prompts) for of, prompts in parts], ignore_index=True)
    return fit_refusal_rates(traces, labels)


def p_refuse(traces: Traces, known: RefusalRates) -> np.ndarray:
    """Return p(refuse) of each trace, in [0, 1]; unlisted tokens count with the base rate."""
    if traces.empty:
        return np.zeros(0)
    lengths = traces["next_ids"].map(len).to_numpy()
    tokens, p = (np.concatenate(traces[name].to_list()) for name in ("next_ids", "next_logprobs"))
    p = np.exp(p.astype(float))
    starts = np.concatenate([[0], lengths.cumsum()[:-1]])
    listed, refused = np.add.reduceat(p, starts), np.add.reduceat(p * known.of(tokens), starts)
    return np.clip(refused + np.maximum(0.0, 1 - listed) * known.base, 0, 1).round(_DECIMALS)


def p_refuse_split(base: UntouchedSystem, split: Split, known: RefusalRates) -> list[np.ndarray]:
    """Return p(refuse) of the benign prompts of a split, and of its twins."""
    return [p_refuse(base.traces(of, prompts), known) for of, prompts in zip(base.corpora, split, strict=True)]


def choose_by_youden(
    values: Iterable[_Value], rejected: Callable[[_Value], Sequence[np.ndarray]], untouched: float
) -> _Value | None:
    """Choose the value with the highest Youden's J: the share of twins rejected minus that of benign prompts.

    The weakest value comes first: among equals the first is taken. `rejected` returns what a value rejects of the
    benign validation prompts and of their twins: decisions, or p(refuse). Values that reject a larger share of the
    benign prompts than the `untouched` model are passed over; if all do, None is returned.
    """
    found, highest = None, -np.inf
    for value in values:
        benign, twins = (float(np.mean(part)) for part in rejected(value))
        if benign <= untouched + _ROUNDING and twins - benign > highest + _ROUNDING:
            found, highest = value, twins - benign
    return found
