"""Say that answers hold nothing to read: at the first ones, and after all of them.

A model that reasons first may spend all of its tokens before it says anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from paraguard_utils.errors import DataError, ModelError
from paraguard_utils.labels import refusals
from paraguard_utils.text import THINKING_BLOCK

if TYPE_CHECKING:  # a harness needs neither schemas nor models
    from paraguard_utils.models.backends import Backend
    from paraguard_utils.schemas import Labels, Traces

FIRST_ANSWERS = 16  # answers after which a model that says nothing is given up
ROOMY_LIMIT = 2048  # tokens with which most models that reason come to an answer

# Finish reasons of an answer that was cut at its limit, in lower case
CUT_REASONS = ("length", "max_tokens", "max_output_tokens", "model_length")

ROOM_ADVICE = (
    "a model that reasons first needs more tokens to come to an answer: give it"
    f" -p max_new_tokens={ROOMY_LIMIT} or more"
)


@dataclass(frozen=True)
class Unread:
    """Why answers hold nothing to read.

    Attributes
    ----------
    answers : int
        All of them.
    kinds : mapping of str to int
        How many are unparsed, by kind: empty, error.
    cut : int
        Of the empty ones, those that ended at the limit of tokens.
    reasoned : int
        Answers with reasoning, as far as that is known.
    """

    answers: int
    kinds: Mapping[str, int]
    cut: int = 0
    reasoned: int = 0

    @property
    def total(self) -> int:
        """All answers that hold nothing to read."""
        return sum(self.kinds.values())

    @property
    def words(self) -> str:
        """The counts in words, without those that are zero."""
        parts = [f"{n} {kind}" for kind, n in self.kinds.items()]
        if self.cut:
            parts.append(f"{self.cut} cut at the limit of tokens")
        if self.reasoned:
            parts.append(f"{self.reasoned} with reasoning")
        return ", ".join(parts) or "all set aside"

    @property
    def advice(self) -> str:
        """What to do about it, as far as the counts tell."""
        if self.cut or self.reasoned:
            return ROOM_ADVICE
        if self.kinds.get("error"):
            return "run 02_querying again when the model answers"
        return "see what the model returns"


def count_unread(
    labels: pd.DataFrame, finish_reasons: Sequence[object], reasoned: int = 0
) -> Unread:
    """Count why answers hold nothing to read.

    `labels` has label and kind, in the order of the reasons.

    Examples
    --------
    >>> labels = refusals.label_by_cues(["", "Sure."], ["length", "stop"])
    >>> count_unread(labels, ["length", "stop"]).words
    '1 empty, 1 cut at the limit of tokens'
    """
    is_unread = labels["label"] == "unparsed"
    kinds = labels.loc[is_unread, "kind"].value_counts().to_dict()
    ends = pd.Series(list(finish_reasons), labels.index).astype(str).str.lower()
    is_cut = is_unread & (labels["kind"] == "empty") & ends.isin(CUT_REASONS)
    return Unread(len(labels), kinds, int(is_cut.sum()), reasoned)


@dataclass
class FirstAnswers:
    """Watches the first answers of a system, as `trace_store.Query` wants it.

    Called with trace rows, it raises ModelError once `FIRST_ANSWERS` answers came of
    which all are empty, so that nobody asks the other prompts in vain.
    """

    system: str
    model: "Backend"
    is_over: bool = False
    rows: "list[Traces]" = field(default_factory=list)

    def __call__(self, rows: "Traces") -> None:
        """Look at some more rows."""
        if self.is_over:
            return
        self.rows.append(rows)
        every = pd.concat(self.rows, ignore_index=True)
        labels = refusals.label_by_cues(every["response"], every["finish_reason"])
        came = labels["kind"] != "error"
        if came.sum() < FIRST_ANSWERS:
            return
        self.is_over = True
        if labels.loc[came, "kind"].ne("empty").any():
            return
        known = int(str(self.model.facts(every).get("reasoned", 0)))
        begun = int(every["response"].astype(str).str.match(THINKING_BLOCK).sum())
        reasons = every.loc[came, "finish_reason"]
        unread = count_unread(labels[came], reasons, max(known, begun))
        raise ModelError(
            f"{self.system}: the first {unread.answers} answers hold nothing to read"
            f" ({unread.words}); {unread.advice}"
        )


def report_unread(system: str, labels: "Labels", traces: "Traces") -> str:
    """Return a line about answers of a system that hold nothing to read.

    It is "" if there are none. DataError if nothing else is left.
    """
    unread = count_unread(labels, traces["finish_reason"])
    if len(labels) and not labels["label"].isin(["accept", "reject"]).any():
        raise DataError(
            f"{system}: none of its {unread.answers} answers can be scored"
            f" ({unread.words}); {unread.advice}"
        )
    if not unread.total:
        return ""
    return (
        f"{system}: {unread.total} of {unread.answers} answers hold nothing to read"
        f" ({unread.words}), and no rate counts them; {unread.advice}"
    )
