"""What a remedy is: it turns a system into another system (`docs/method.md`, Remedies)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, Protocol, Self

from paraguard_utils.remedies.asking import RemediedModel, ask_remedied
from paraguard_utils.remedies.splits import Split
from paraguard_utils.remedies.untouched import UntouchedSystem
from paraguard_utils.schemas import Corpus, Labels

RemedyKind = Literal["defence", "decision", "inside", "tuning"]
"""A defence, a rule at decision time, a change inside the model, or new weights."""

RemedyRole = Literal["remedy", "control", "ideal"]
"""A remedy can be deployed. The two others are yardsticks: an ideal needs to know how paraphrases are decided."""


class Decider(Protocol):
    """How a system decides prompts."""

    def __call__(self, of: str, prompts: Corpus | None) -> Labels:
        """Decide the prompts of corpus `of`, in their order; `queries` says how often a model was asked for each.

        `prompts` is None for those that the store has labels of but nobody has the text of (XSTest's). Raises Missing
        if the store lacks what the decision needs.
        """


@dataclass(frozen=True)
class RemediedSystem:
    """A system that a remedy made.

    Attributes
    ----------
    decide : Decider
        In a live store it asks what is missing; in the recorded one it reads.
    respondent : callable or None
        Loads and prepares the model that is asked; None if only decisions of the untouched model are used.
    """

    decide: Decider
    respondent: Callable[[], RemediedModel] | None = None

    @classmethod
    def asking(
        cls, base: UntouchedSystem, name: str, parameters: Mapping[str, Any], respondent: Callable[[], RemediedModel]
    ) -> Self:
        """Return a changed model as a system, loaded when first needed; arguments as for `asking.ask_remedied`."""
        respondent = cache(respondent)
        return cls(partial(ask_remedied, base, name, parameters, respondent), respondent)


@dataclass(frozen=True)
class Remedy:
    """One remedy; a module of `catalogue` lists its remedies in `REMEDIES`.

    Attributes
    ----------
    name : str
        Lower case, digits and single hyphens: it is part of folder names.
    source : str
        arXiv number, "ours", or a notebook.
    apply : callable
        Makes the remedied system from the untouched one, the training split and the validation split. It never sees
        the test split, and does nothing expensive before the system is asked.
    asks : bool
        Whether a model is asked; if not, recorded traces and labels are enough.
    queries : float
        Questions a prompt, at most.
    asked : str
        Name that labels are kept under if several remedies share what was asked.
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
        """Name that the labels of what it asks are kept under, beside the corpus's; "" if it asks nothing."""
        return (self.asked or self.name) if self.asks else ""

    @property
    def cheap(self) -> bool:
        """Whether large models are asked too: at most one question a prompt, with unchanged weights."""
        return not self.asks or (self.queries <= 1 and self.kind in ("defence", "decision"))
