"""What a remedy is: a target in, a target out (`docs/method.md`, Remedies)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from paraguard_utils.models.respondents import Local
from paraguard_utils.remedies.splits import Third
from paraguard_utils.remedies.untouched import Untouched
from paraguard_utils.schemas import Corpus, Labels

Kind = Literal["defence", "decision", "inside", "tuning"]


class Decide(Protocol):
    """How a target decides prompts."""

    def __call__(self, of: str, prompts: Corpus | None) -> Labels | None:
        """Return labels, with a column `queries`, in the order of the prompts.

        Parameters
        ----------
        of : str
            Name of the corpus that the prompts are of.
        prompts : DataFrame or None
            None: those of XSTest that the store has labels of, whose text nobody has.

        Returns
        -------
        DataFrame or None
            None where a target cannot decide without the text.
        """


@dataclass(frozen=True)
class Target:
    """A target that a remedy made.

    Attributes
    ----------
    decide : Decide
        A live store asks what is missing; the recorded one reads.
    respondent : callable or None
        Loads and prepares what is asked, where that is not the untouched model with other words in the user's turn.
    """

    decide: Decide
    respondent: Callable[[], Local] | None = None


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
        Questions a prompt, at most; `math.inf` for what only small models are asked.
    """

    name: str
    kind: Kind
    source: str
    apply: Callable[[Untouched, Third, Third], Target]
    asks: bool = False
    queries: float = 1
