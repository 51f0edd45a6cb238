"""The paper's three token-level signals between two prompts, and their weighted sum.

All are symmetric and 0 for identical prompts (`docs/method.md`, Neighbours, signals,
score).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import sparse

from paraguard_utils.core.confusion import N_NEIGHBOURS, THETA
from paraguard_utils.errors import SettingsError

Signal = TypeVar("Signal", np.ndarray, pd.Series)

PPL_INTERPRETATIONS = {"relative": "ppl_relative", "clipped": "ppl_clipped"}
"""The two interpretations of the PPL contrast and their columns in a pairs file."""


@dataclass(frozen=True)
class ScoreWeights:
    """Weights of the score; the defaults are the paper's.

    They are >= 0 and sum to 1, so that a score is in [0, 1]. Other weights are a
    `SettingsError`.

    Examples
    --------
    >>> drift, prob_shift, ppl = np.array([0.5]), np.array([1.0]), np.array([0.2])
    >>> PAPER_WEIGHTS(drift, prob_shift, ppl)
    array([0.4])
    """

    drift: float = 0.4
    prob_shift: float = 0.1
    ppl: float = 0.5

    def __post_init__(self) -> None:
        values = (self.drift, self.prob_shift, self.ppl)
        if min(values) < 0 or abs(sum(values) - 1) > 1e-9:
            raise SettingsError(f"weights must be >= 0 and sum to 1, not {values}")

    def __call__(self, drift: Signal, prob_shift: Signal, ppl: Signal) -> Signal:
        """Return the weighted sum of three signals, each of shape (m,) in [0, 1]."""
        return self.drift * drift + self.prob_shift * prob_shift + self.ppl * ppl


PAPER_WEIGHTS = ScoreWeights()


@dataclass(frozen=True)
class Scoring:
    """How pairs are scored: weights of the signals, k neighbours, theta.

    From a similarity of `theta` on a neighbour counts as a paraphrase. The defaults are
    the paper's, but for theta, for which it names no value.
    """

    weights: ScoreWeights = PAPER_WEIGHTS
    k: int = N_NEIGHBOURS
    theta: float = THETA


PAPER_SCORING = Scoring()


def perplexity(losses: Sequence[ArrayLike]) -> np.ndarray:
    """Compute the perplexity of each prompt under a model: exp(mean cross-entropy).

    Parameters
    ----------
    losses : sequence of array-like, length n
        Negative log-probabilities of each prompt's tokens.

    Returns
    -------
    numpy.ndarray, shape (n,), > 0

    Examples
    --------
    >>> perplexity([[0.0, np.log(4)]])
    array([2.])
    """
    means = [np.mean(np.asarray(of_prompt, np.float64)) for of_prompt in losses]
    return np.exp(np.array(means))


def ppl_relative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the PPL contrast in the interpretation `relative`, in [0, 1).

    It is 1 - min/max of the two perplexities.

    Examples
    --------
    >>> ppl_relative(np.array([10.0]), np.array([40.0]))
    array([0.75])
    """
    return 1.0 - np.minimum(a, b) / np.maximum(a, b)


def ppl_clipped(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the PPL contrast in the interpretation `clipped`, in [0, 1].

    It is min(1, |difference of the two perplexities|).

    Examples
    --------
    >>> ppl_clipped(np.array([10.0, 10.0]), np.array([10.25, 40.0]))
    array([0.25, 1.  ])
    """
    return np.minimum(1.0, np.abs(np.asarray(a) - np.asarray(b)))


def drift(a: np.ndarray, b: np.ndarray) -> float:
    """Compute the embedding distance between aligned tokens of two prompts.

    Each token is aligned with the most similar one of the other prompt, and the
    distance is 1 - (mean_i max_j cos(a_i, b_j) + mean_j max_i cos(b_j, a_i)) / 2,
    clipped to [0, 1]. `analysis.drift.DriftCache` computes the same for many pairs.

    Parameters
    ----------
    a, b : numpy.ndarray, shapes (n, d) and (m, d)
        Token vectors of unit length.

    Examples
    --------
    >>> drift(np.eye(2), np.array([[1.0, 0.0]]))
    0.25
    """
    cosines = a @ b.T
    similarity = (cosines.max(axis=1).mean() + cosines.max(axis=0).mean()) / 2
    return float(np.clip(1.0 - similarity, 0.0, 1.0))


def prob_shifts(
    ids: Sequence[np.ndarray],
    logprobs: Sequence[np.ndarray],
    tails: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
) -> np.ndarray:
    """Compute the total variation between next-token distributions of pairs of prompts.

    A distribution is given by its top tokens and the mass of the rest. A token outside
    one side's top counts as 0 there, and the tails are compared as one further token.
    The true value differs from the result by at most the larger of the two tails.

    Parameters
    ----------
    ids, logprobs : sequence of numpy.ndarray, length n
        Distinct token ids and their natural log-probabilities.
    tails : numpy.ndarray, shape (n,)
        Mass of all other tokens.
    a, b : numpy.ndarray of int, shape (m,)
        Row numbers of the prompts compared.

    Returns
    -------
    numpy.ndarray, shape (m,), in [0, 1]

    Examples
    --------
    >>> ids = [np.array([1, 2]), np.array([1, 3])]
    >>> logprobs = np.log([[0.5, 0.25], [0.25, 0.5]])
    >>> tails = np.array([0.25, 0.25])
    >>> prob_shifts(ids, logprobs, tails, np.array([0]), np.array([1]))
    array([0.5])
    """
    distributions = _sparse_rows(ids, logprobs)
    differences = abs(distributions[a] - distributions[b]).sum(axis=1)
    total = differences + np.abs(tails[a] - tails[b])
    return np.clip(total / 2, 0.0, 1.0)


def _sparse_rows(
    ids: Sequence[np.ndarray], logprobs: Sequence[np.ndarray]
) -> sparse.csr_array:
    """Return the probabilities of the top tokens: a row per prompt, a column per id."""
    columns = np.concatenate([np.empty(0, int), *ids], dtype=int)
    values = np.exp(np.concatenate([np.empty(0, float), *logprobs], dtype=float))
    row_ends = np.cumsum([0, *map(len, ids)])
    shape = (len(row_ends) - 1, columns.max(initial=0) + 1)
    rows = sparse.csr_array((values, columns, row_ends), shape)
    rows.sort_indices()  # once, or scipy sorts in every batch
    return rows
