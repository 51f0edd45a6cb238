"""What a guard is: a function from texts to probabilities of being unsafe.

Scores are kept by prompt; thresholds apply later (`panel`). A score is NaN if the
guard's output gives none: the prompt is `unparsed`, a missing row, never a safe one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from paraguard_utils.schemas import Corpus
from paraguard_utils.stores import Store

GuardScorer: TypeAlias = Callable[[Sequence[str]], np.ndarray | Sequence[float]]
"""A function from texts to probabilities of being unsafe, in [0, 1].

It is NaN if the guard's output gives none.
"""


class RunNotes(Protocol):
    """What a guard noted while it scored, for the meta file of its scores."""

    def describe(
        self, prompts: Corpus, is_asked: np.ndarray, earlier: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Describe all prompts.

        `is_asked` marks those that were scored now; of the others, `earlier` is what
        the meta file said.
        """


@dataclass(frozen=True)
class Guard:
    """A guard, ready to score."""

    name: str  # in tables and file names
    version: str  # of package, weights or served model; part of a score's key
    score: GuardScorer
    threshold: float  # it rejects from here on; its makers' unless `about` says else
    axis: str  # what it looks for: toxicity, injection, harm or policy
    licence: str
    citation: str  # where the guard, its prompt or its threshold is described
    about: str
    asks: str = ""  # how it is queried, in words, if that costs something
    by_prompt: bool = False  # it has scores only for the corpora it was loaded with
    notes: RunNotes | None = None


@dataclass(frozen=True)
class GuardOptions:
    """How a guard is loaded and what it is queried about.

    Each kind of guard takes what it needs: deployed guards a device, a model's own
    refusal the store with the model's answers, a file of scores the prompts.

    Attributes
    ----------
    device : str
        "cpu", "cuda", "cuda:1", ...
    dtype : str
        Precision of the weights, "float32" or "bfloat16".
    batch : int
        Prompts per batch.
    base_url : str
        Address of a server, "" if there is none.
    store : Store, optional
        The store with what earlier notebooks wrote.
    corpora : mapping of str to Corpus
        By name, the prompts that the guard will score; the first ones are harmless.
    """

    device: str = "cpu"
    dtype: str = "float32"
    batch: int = 16
    base_url: str = ""
    store: Store | None = None
    corpora: Mapping[str, Corpus] = field(default_factory=dict)
