"""Drift between the prompts of one model, each pair computed once.

The formula is `core.signals.drift`; this module applies it to many pairs at a time
(`docs/method.md`, Neighbours, signals, score).
"""

import itertools
import operator

import numpy as np

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
    row_of = {token: row for row, token in enumerate(tokens["token_id"].tolist())}
    rows = []
    for ids in select_own_words(traces, "token_ids"):
        rows.append(np.array([row_of[token] for token in ids.tolist()], int))
    return rows


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
        pairs = list(zip(firsts, seconds, strict=True))
        missing = sorted(set(pairs) - self._drifts.keys())
        for first, group in itertools.groupby(missing, key=operator.itemgetter(0)):
            others = [second for _, second in group]
            for other, drift in zip(others, self._compare(first, others), strict=True):
                self._drifts[first, other] = drift
        return np.array([self._drifts[pair] for pair in pairs], float)

    def _compare(self, prompt: int, others: list[int]) -> np.ndarray:
        """Compute Drift of a prompt and each of some others, in one product."""
        rows = [self.rows[other] for other in others]
        lengths = np.array([len(own) for own in rows])
        starts = np.cumsum(lengths) - lengths
        distinct, place = np.unique(np.concatenate(rows), return_inverse=True)
        cosines = self.units[self.rows[prompt]] @ self.units[distinct].T
        # Own tokens by the tokens of all others, one prompt after the other
        cosines = cosines[:, place]
        # The best match of each own token in every other prompt, and the reverse
        there = np.maximum.reduceat(cosines, starts, axis=1).mean(axis=0)
        back = np.add.reduceat(cosines.max(axis=0), starts) / lengths
        return np.clip(1.0 - (there + back) / 2, 0.0, 1.0)
