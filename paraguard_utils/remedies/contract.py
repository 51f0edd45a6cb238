"""What a remedy is: a target in, a target out (`docs/method.md`, Remedies)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from paraguard_utils.remedies.asking import Remedied
from paraguard_utils.remedies.splits import Third
from paraguard_utils.remedies.untouched import Untouched
from paraguard_utils.schemas import Corpus, Labels

Kind = Literal["defence", "decision", "inside", "tuning"]

Role = Literal["remedy", "control", "ideal"]
"""What somebody could deploy; what a remedy is held against; what needs to know how paraphrases are decided."""


class Decide(Protocol):
    """How a target decides prompts."""

    def __call__(self, of: str, prompts: Corpus | None) -> Labels:
        """Return labels, with a column `queries`, in the order of the prompts.

        Parameters
        ----------
        of : str
            Name of the corpus that the prompts are of.
        prompts : DataFrame or None
            None: those that the store has labels of, whose text nobody has (XSTest's).

        Raises
        ------
        Missing
            The store lacks what this needs.
        """


@dataclass(frozen=True)
class Target:
    """A target that a remedy made.

    Attributes
    ----------
    decide : Decide
        A live store asks what is missing; the recorded one reads.
    respondent : callable or None
        Loads and prepares what is asked; None where that is the untouched model, whose decisions are looked at.
    """

    decide: Decide
    respondent: Callable[[], Remedied] | None = None


@dataclass(frozen=True)
class Remedy:
    """One remedy: a module of `catalogue` has one or several in `REMEDIES`.

    Attributes
    ----------
    name : str
        Lower case, digits and single hyphens: part of folder names.
    kind : str
        defence, decision (at decision time), inside (the model) or tuning.
    source : str
        arXiv number, "ours", or a notebook.
    apply : callable
        The untouched target, the training and the validation third to the remedied target. It never sees the test
        third, and does nothing expensive before it is asked.
    asks : bool
        Whether a model is asked; all others follow from recorded traces and labels.
    queries : float
        Questions a prompt, at most.
    asked : str
        Name that labels are kept under, where several remedies share what was asked.
    role : str
        remedy; control or ideal, which are yardsticks and never said to work.
    """

    name: str
    kind: Kind
    source: str
    apply: Callable[[Untouched, Third, Third], Target]
    asks: bool = False
    queries: float = 1
    asked: str = ""
    role: Role = "remedy"

    @property
    def folder(self) -> str:
        """How the labels of what it asks are called beside the corpus's own; "" where nothing is asked."""
        return (self.asked or self.name) if self.asks else ""

    @property
    def cheap(self) -> bool:
        """Whether large models are asked too: one question a prompt at most, and the weights stay as they are."""
        return not self.asks or (self.queries <= 1 and self.kind in ("defence", "decision"))
