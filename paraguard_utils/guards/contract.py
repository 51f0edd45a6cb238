"""What a guard is: a function from texts to probabilities of being unsafe, and what a reader must know about it.

Scores are kept by prompt; thresholds apply later (`panel`). A score that is NaN is one that the guard's output did not
give: the prompt is `unparsed`, a missing row, never a safe one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paraguard_utils.errors import DataError

AXES = ("toxicity", "injection", "harm", "policy")
"""What a guard looks for: rude words, attacks on the instructions, harmful requests, breaches of a given policy."""


class Scorer(Protocol):
    """Texts, or requests and the answers to them, to probabilities."""

    def __call__(self, texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray | Sequence[float]:
        """Return one probability of being unsafe a text, in [0, 1]; NaN where the guard's output says none."""


@dataclass(frozen=True)
class Guard:
    """A guard, ready to score.

    Attributes
    ----------
    name : str
        As in a table and in file names.
    version : str
        Of the package, the weights or the served model; part of a score's key.
    score : Scorer
    threshold : float
        Probability from which the guard rejects: its makers', unless `about` says otherwise.
    axis : str
        One of `AXES`.
    licence : str
    citation : str
        Where the guard, its prompt or its threshold are described.
    about : str
    """

    name: str
    version: str
    score: Scorer
    threshold: float
    axis: str
    licence: str
    citation: str
    about: str


def checked(name: str, values: np.ndarray | Sequence[float], asked: int) -> np.ndarray:
    """Return a guard's probabilities as floats of the shape that was asked for.

    Raises
    ------
    DataError
        There are more or fewer than texts, or one lies outside [0, 1].
    """
    found = np.asarray(values, dtype=float)
    if found.shape != (asked,):
        raise DataError(f"the guard {name} was given {asked} texts and returned {found.size} probabilities")
    wrong = np.flatnonzero((found < 0) | (found > 1))
    if wrong.size:
        raise DataError(
            f"the guard {name} gives {found[wrong[0]]:g} for text {wrong[0] + 1}; a probability lies in [0, 1]"
        )
    return found
