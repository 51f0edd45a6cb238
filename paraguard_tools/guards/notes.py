"""What guards note while they score, for the meta files of their scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paraguard_utils.schemas import Corpus


@dataclass(frozen=True)
class GuardNotes:
    """What a guard noted while it scored.

    Attributes
    ----------
    cut : set of str
        Texts of which it read the beginning only.
    masses : dict of str to float
        By text, the share of the next token's probability that the guard's labels
        hold, in [0, 1].
    """

    cut: set[str] = field(default_factory=set)
    masses: dict[str, float] = field(default_factory=dict)

    def note_mass(self, text: str, mass: float) -> None:
        """Note a share, unless it is NaN; of several runs the smallest counts."""
        if np.isfinite(mass):
            self.masses[text] = min(mass, self.masses.get(text, 1.0))

    def describe(
        self, prompts: Corpus, is_asked: np.ndarray, earlier: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the ids of prompts that were read in part, and the median mass.

        See `guards.contract.RunNotes`.
        """
        was_cut = prompts["prompt_id"].isin(earlier.get("cut", [])) & ~is_asked
        is_cut = prompts["text"].isin(self.cut) | was_cut
        masses = prompts["text"][is_asked].map(self.masses).dropna()
        median = round(float(masses.median()), 4) if len(masses) else None
        return {
            "cut": prompts.loc[is_cut, "prompt_id"].tolist(),
            "median_label_mass": median,
        }
