"""Drift between the prompts of one model, each pair computed once.

The formula is `core.signals.drift`; this module applies it to many pairs at a time
(`docs/method.md`, Neighbours, signals, score).
"""

import itertools

import numpy as np
from threadpoolctl import threadpool_limits

from paraguard_utils.core.vectors import normalize_rows
from paraguard_utils.schemas import Tokens, Traces


def find_token_rows(traces: Traces, tokens: Tokens) -> list[np.ndarray]:
    """Return the rows of a tokens file that hold each prompt's own words.

    The words are without the chat template. A word that has no row is a KeyError.
    """
    row_of = {token: row for row, token in enumerate(tokens["token_id"].tolist())}
    rows = []
    for ids, start, end in zip(
        traces["token_ids"].to_numpy(),
        traces["user_start"].tolist(),
        traces["user_end"].tolist(),
        strict=True,
    ):
        own = [row_of[token] for token in ids[start:end].tolist()]
        rows.append(np.array(own, int))
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
        self._pairs = np.empty(0, int)  # those computed so far, in ascending order
        self._drifts = np.empty(0)

    def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return Drift, in [0, 1], of pairs of row numbers; all of shape (m,)."""
        n = len(self.rows)
        pairs = np.minimum(a, b) * n + np.maximum(a, b)  # Drift is symmetric
        missing = np.setdiff1d(pairs, self._pairs)
        if len(missing):
            first, second = np.divmod(missing, n)
            known = np.concatenate([self._pairs, missing])
            drifts = np.concatenate([self._drifts, self._compute(first, second)])
            order = np.argsort(known)
            self._pairs = known[order]
            self._drifts = drifts[order]
        return self._drifts[np.searchsorted(self._pairs, pairs)]

    def _compute(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Compute Drift of pairs that are sorted by their first prompts."""
        drifts = np.empty(len(first))
        starts = np.flatnonzero(np.diff(first, prepend=-1)).tolist()
        # Products this small gain nothing from threads.
        with threadpool_limits(1, "blas"):
            for start, end in itertools.pairwise([*starts, len(first)]):
                others = second[start:end].tolist()
                drifts[start:end] = self._compare(int(first[start]), others)
        return np.clip(drifts, 0.0, 1.0)

    def _compare(self, prompt: int, others: list[int]) -> np.ndarray:
        """Compute Drift of a prompt and each of some others, in one product."""
        rows = [self.rows[other] for other in others]
        lengths = np.array([len(own) for own in rows])
        starts = np.cumsum(lengths) - lengths
        distinct, place = np.unique(np.concatenate(rows), return_inverse=True)
        cosines = self.units[self.rows[prompt]] @ self.units[distinct].T
        cosines = cosines[:, place]  # own tokens x the tokens of all others, in a row
        # The best match in each other prompt of every own token, and the reverse.
        there = np.maximum.reduceat(cosines, starts, axis=1).mean(axis=0)
        back = np.add.reduceat(cosines.max(axis=0), starts) / lengths
        return 1.0 - (there + back) / 2
