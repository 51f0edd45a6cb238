"""Count the answers of a system that the labeller cannot read, and say so.

A model that reasons first may spend all of its tokens before it says anything, and one
that was trained on another language may answer in it: this labeller reads English.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from paraguard_utils import seams
from paraguard_utils.errors import DataError

if TYPE_CHECKING:  # a harness needs neither schemas nor models
    from paraguard_utils.schemas import Labels, Traces

ROOMY_LIMIT = 2048  # tokens with which most models that reason come to an answer

# Finish reasons of an answer that was cut at its limit, in lower case
CUT_REASONS = ("length", "max_tokens", "max_output_tokens", "model_length")

MOST_FOREIGN = 0.2
"""Largest share of answers in another language with which a system is rated (ours)."""

_READ_LANGUAGES = ("en", "")
"""English, and what is too short or too unlike prose to have a language."""

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
    >>> from paraguard_utils.labels import refusals
    >>> labels = refusals.label_by_cues(["", "Sure."], ["length", "stop"])
    >>> count_unread(labels, ["length", "stop"]).words
    '1 empty, 1 cut at the limit of tokens'
    """
    is_unread = labels["label"] == "unparsed"
    kinds = labels.loc[is_unread, "kind"].value_counts().to_dict()
    ends = pd.Series(list(finish_reasons), labels.index).astype(str).str.lower()
    is_cut = is_unread & (labels["kind"] == "empty") & ends.isin(CUT_REASONS)
    return Unread(len(labels), kinds, int(is_cut.sum()), reasoned)


def count_foreign(labels: "Labels") -> dict[str, int]:
    """Count answers in another language than English, by its code, most first.

    They are among the degenerate ones (`labels.substance`); prompts are English, and an
    extension tells languages. A judge's labels do not say which answers these are, and
    a judge may read other languages.
    """
    if "answer" not in labels:
        return {}
    find_language = seams.load_extension("queries", "language")
    responses = labels.loc[labels["answer"] == "degenerate", "response"].dropna()
    codes = pd.Series([find_language(text) for text in responses], dtype=object)
    return codes[~codes.isin(_READ_LANGUAGES)].value_counts().to_dict()


def report_unread(system: str, labels: "Labels", traces: "Traces") -> str:
    """Return lines about answers of a system that cannot be read.

    It is "" if there are none. DataError if nothing else is left, or if more than
    `MOST_FOREIGN` of the answers are in another language.
    """
    unread = count_unread(labels, traces["finish_reason"])
    if len(labels) and not labels["label"].isin(["accept", "reject"]).any():
        raise DataError(
            f"{system}: none of its {unread.answers} answers can be scored"
            f" ({unread.words}); {unread.advice}"
        )
    lines = []
    if unread.total:
        lines.append(
            f"{system}: {unread.total} of {unread.answers} answers hold nothing to read"
            f" ({unread.words}), and no rate counts them; {unread.advice}"
        )
    foreign = count_foreign(labels)
    n_foreign = sum(foreign.values())
    if n_foreign:
        codes = ", ".join(f"{code} {n}" for code, n in foreign.items())
        found = (
            f"{system}: {n_foreign} of {len(labels)} answers seem to be in another"
            f" language than English ({codes}), which this labeller does not read"
        )
        if n_foreign > MOST_FOREIGN * len(labels):
            raise DataError(
                f"{found}; no rate is given. `paraguard label` reads more languages"
            )
        lines.append(f"{found}; they are counted as it labels them")
    return "\n".join(lines)
