"""What a remedy is, and what its file imports (`docs/method.md`, Remedies).

A remedy turns a system into another one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Self

from paraguard_lab.remedies.asking import RemediedModel, RemediedQueries
from paraguard_lab.remedies.splits import Split
from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_utils.schemas import Corpus, Labels

RemedyKind = Literal["defence", "decision", "inside", "tuning"]
"""A defence, a rule at decision time, a change inside the model, or new weights."""

RemedyRole = Literal["remedy", "control", "ideal"]
"""A remedy can be deployed. The two others are yardsticks: an ideal needs to know how
paraphrases are decided.
"""

Respondent = Callable[[], RemediedModel]  # loads and prepares the model that is asked


@dataclass(frozen=True)
class RemediedSystem:
    """A system that a remedy made.

    `decide` takes the name of a corpus and its prompts, None for those that the store
    has labels of but nobody has the text of (XSTest's). It returns their labels, in
    their order, and `queries`: how often a model was asked for each. In a live store it
    asks what is missing; in the recorded one it reads. It raises Missing if the store
    lacks what the decision needs. `respondent` is None if only decisions of the
    untouched model are used.
    """

    decide: Callable[[str, Corpus | None], Labels]
    respondent: Respondent | None = None

    @classmethod
    def asking(
        cls,
        base: UntouchedSystem,
        name: str,
        parameters: Mapping[str, Any],
        respondent: Respondent | None = None,
        keep_numbers: bool = False,
    ) -> Self:
        """Return a model that is asked in another way (`asking.RemediedQueries`).

        By default only the words change.
        """
        loaded_once = cache(
            respondent or (lambda: RemediedModel(base.local, parameters))
        )
        queries = RemediedQueries(base, name, parameters, loaded_once, keep_numbers)
        return cls(queries.decide, loaded_once)


@dataclass(frozen=True)
class Remedy:
    """One remedy; a module of `catalogue` lists its remedies in `REMEDIES`.

    Its `name` (lower case, digits and single hyphens) is part of folder names; its
    `source` is an arXiv number, "ours", or a notebook. `apply` makes the remedied
    system from the untouched one, the training split and the validation split; it never
    sees the test split, and does nothing expensive before the system is asked. If it
    `asks` no model, recorded traces and labels are enough. `queries` are questions per
    prompt, at most. `asked` is the name that labels are kept under if several remedies
    share what was asked.

    Examples
    --------
    >>> def apply(base, train, validation):
    ...     return RemediedSystem.asking(base, "polite", {"before": "Please: "})
    >>> Remedy("polite", "defence", "ours", apply, asks=True).folder
    'polite'
    """

    name: str
    kind: RemedyKind
    source: str
    apply: Callable[[UntouchedSystem, Split, Split], RemediedSystem]
    asks: bool = False
    queries: float = 1
    asked: str = ""
    role: RemedyRole = "remedy"

    @property
    def folder(self) -> str:
        """The name that labels of its answers are kept under; "" if it asks nothing."""
        return (self.asked or self.name) if self.asks else ""

    @property
    def cheap(self) -> bool:
        """Whether large models are asked too.

        That is so for at most one question per prompt, with unchanged weights.
        """
        changes_words = self.kind in ("defence", "decision")
        return not self.asks or (self.queries <= 1 and changes_words)
