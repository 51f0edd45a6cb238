"""Drift between the prompts of one model, each pair computed once.

The formula is `core.signals.drift` (`docs/method.md`, Neighbours, signals, score).
"""

import numpy as np
import pandas as pd

from paraguard_utils.core.signals import drift
from paraguard_utils.core.vectors import normalize_rows
from paraguard_utils.schemas import Tokens, Traces


def select_own_words(traces: Traces, column: str) -> list[np.ndarray]:
    """Return a column's values at each prompt's own words, without the template."""
    rows = traces[[column, "user_start", "user_end"]].itertuples(index=False)
    return [values[start:end] for values, start, end in rows]


def find_token_rows(traces: Traces, tokens: Tokens) -> list[np.ndarray]:
    """Return the rows of a tokens file that hold each prompt's own words.

    A word that has no row is a KeyError.
    """
    row_of = pd.Series(range(len(tokens)), tokens["token_id"])
    return [row_of[ids].to_numpy() for ids in select_own_words(traces, "token_ids")]


class DriftCache:
    """Drift of pairs of prompts, which it keeps: labels only decide which are compared.

    Parameters
    ----------
    traces : Traces
        Of n prompts under one model.
    tokens : Tokens
        The embeddings of that model's tokens.
    """

    def __init__(self, traces: Traces, tokens: Tokens) -> None:
        self.rows = find_token_rows(traces, tokens)
        self.units = normalize_rows(np.stack(tokens["embedding"].to_numpy()))
        self._drifts: dict[tuple[int, int], float] = {}

    def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return Drift, in [0, 1], of pairs of row numbers; all of shape (m,)."""
        # Drift is symmetric
        firsts = np.minimum(a, b).tolist()
        seconds = np.maximum(a, b).tolist()
        drifts = []
        for pair in zip(firsts, seconds, strict=True):
            if pair not in self._drifts:
                one, other = (self.units[self.rows[prompt]] for prompt in pair)
                self._drifts[pair] = drift(one, other)
            drifts.append(self._drifts[pair])
        return np.array(drifts, float)
