"""What a guard is: a function from texts to probabilities of being unsafe, and what a
reader must know about it.

Scores are kept by prompt; thresholds apply later (`panel`). A score is NaN where the
guard's output gives none: the prompt is `unparsed`, a missing row, never a safe one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from paraguard_utils.errors import DataError

GUARD_AXES = ("toxicity", "injection", "harm", "policy")
"""What a guard looks for: rude words, attacks on the instructions, harmful requests,
breaches of a given policy.
"""


class GuardScorer(Protocol):
    """A function from texts, or from requests and the answers to them, to probabilities
    of being unsafe.
    """

    def __call__(
        self, texts: Sequence[str], answers: Sequence[str] | None = None
    ) -> np.ndarray | Sequence[float]:
        """Return one probability a text, in [0, 1].

        NaN where the guard's output gives none.
        """


@dataclass(frozen=True)
class GuardNotes:
    """What a guard noted: texts that it read in part, and by text its labels' share of
    the next token, in [0, 1].
    """

    cut: set[str] = field(default_factory=set)
    masses: dict[str, float] = field(default_factory=dict)

    def note_mass(self, text: str, mass: float) -> None:
        """Note a share, unless it is NaN; of several runs the least counts."""
        if np.isfinite(mass):
            self.masses[text] = min(mass, self.masses.get(text, 1.0))


@dataclass(frozen=True)
class Guard:
    """A guard, ready to score."""

    name: str  # in tables and file names
    version: (
        str  # of the package, the weights or the served model; part of a score's key
    )
    score: GuardScorer
    threshold: (
        float  # it rejects from here on; its makers' unless `about` says otherwise
    )
    axis: str  # one of `GUARD_AXES`
    licence: str
    citation: str  # where the guard, its prompt or its threshold is described
    about: str
    asks: str = ""  # in words how it is asked, where that costs something
    by_prompt: bool = False  # it has scores only for the corpus it was loaded with
    notes: GuardNotes = field(default_factory=GuardNotes)


def check_probabilities(
    name: str, values: np.ndarray | Sequence[float], asked: int
) -> np.ndarray:
    """Return a guard's probabilities as floats.

    Raise DataError unless there are `asked`, all in [0, 1] or NaN.
    """
    found = np.asarray(values, dtype=float)
    if found.shape != (asked,):
        raise DataError(
            f"the guard {name} was given {asked} texts and returned {found.size}"
            " probabilities"
        )
    wrong = (found < 0) | (found > 1)
    if wrong.any():
        first = wrong.argmax()
        raise DataError(
            f"the guard {name} gives {found[first]:g} for text {first + 1}; a"
            " probability lies in [0, 1]"
        )
    return found
