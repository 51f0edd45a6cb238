"""Drift between texts of one model's tokens, each pair computed once.

The formula is `core.signals.drift`, for one pair; `DriftCache` computes the same for
many at a time (`docs/method.md`, Neighbours, signals, score).
"""

from functools import cached_property

import numpy as np
import pandas as pd

from paraguard_utils.core.vectors import normalize_rows
from paraguard_utils.schemas import Tokens, Traces


def select_own_words(traces: Traces, column: str) -> list[np.ndarray]:
    """Return a column's values at each prompt's own words, without the template."""
    rows = traces[[column, "user_start", "user_end"]].to_numpy()
    return [values[start:end] for values, start, end in rows]


def find_token_rows(traces: Traces, tokens: Tokens) -> list[np.ndarray]:
    """Return the rows of a tokens file that hold each prompt's own words.

    A word that has no row is a KeyError.
    """
    words = select_own_words(traces, "token_ids")
    row_of = pd.Series(range(len(tokens)), tokens["token_id"])
    rows = row_of.loc[np.concatenate([[], *words]).astype(int)].to_numpy()
    ends = np.cumsum([len(own) for own in words])
    return np.split(rows, ends[:-1])


class DriftCache:
    """Drift of pairs of prompts under one model.

    It keeps what it computes: neither labels nor system prompts change it.

    Parameters
    ----------
    tokens : Tokens
        The embeddings of the model's tokens.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self._drifts: dict[tuple[bytes, bytes], float] = {}  # by the words of a pair

    @cached_property
    def units(self) -> np.ndarray:
        """The embeddings at unit length, shape (tokens, d)."""
        return normalize_rows(np.stack(self.tokens["embedding"].to_numpy()))

    def __call__(self, traces: Traces, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return Drift, in [0, 1], of pairs of row numbers; all of shape (m,).

        A word of the traces that has no embedding is a KeyError.
        """
        rows = find_token_rows(traces, self.tokens)
        words = [own.tobytes() for own in rows]
        # Drift is symmetric
        firsts = np.minimum(a, b).tolist()
        seconds = np.maximum(a, b).tolist()
        pairs = list(zip(firsts, seconds, strict=True))
        missing: dict[int, list[int]] = {}
        for first, second in sorted(set(pairs)):
            if (words[first], words[second]) not in self._drifts:
                missing.setdefault(first, []).append(second)
        for first, others in missing.items():
            drifts = self._compare(rows[first], [rows[other] for other in others])
            for other, drift in zip(others, drifts, strict=True):
                self._drifts[words[first], words[other]] = drift
        kept = [self._drifts[words[first], words[second]] for first, second in pairs]
        return np.array(kept, float)

    def _compare(self, own: np.ndarray, others: list[np.ndarray]) -> np.ndarray:
        """Compute Drift of a prompt and each of some others, in one product.

        They are given by the rows of their words.
        """
        lengths = np.array([len(rows) for rows in others])
        starts = np.cumsum(lengths) - lengths
        distinct, place = np.unique(np.concatenate(others), return_inverse=True)
        cosines = self.units[own] @ self.units[distinct].T
        # Own tokens by the tokens of all others, one prompt after the other
        cosines = cosines[:, place]
        # The best match of each own token in every other prompt, and the reverse
        there = np.maximum.reduceat(cosines, starts, axis=1).mean(axis=0)
        back = np.add.reduceat(cosines.max(axis=0), starts) / lengths
        return np.clip(1.0 - (there + back) / 2, 0.0, 1.0)
