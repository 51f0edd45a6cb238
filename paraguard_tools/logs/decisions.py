"""Read decisions of one or several systems from anybody's file.

The file may have one of many layouts (`docs/usage.md`, Your own log).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import pandas as pd

from paraguard_tools.logs import records
from paraguard_tools.logs.records import (
    SURROGATE,
    USUAL_COLUMNS,
    YES_NO,
    LogSource,
    read_words,
)
from paraguard_utils.core.decisions import LABELS
from paraguard_utils.errors import DataError, SettingsError

ONLY_SYSTEM = "all rows"  # the system of a file that names none
# Answers up to which the classifier reads too, if it is installed: it embeds each
MAX_CLASSIFIED = 20_000

_WORDS = {label: label for label in LABELS} | read_words(
    {
        "reject": "rejected refuse refused refusal block deny denied unsafe flagged",
        "accept": "accepted answer answered allow allowed pass passed comply safe",
        "unparsed": "error unclear",
    }
)
"""The label that a word for a decision, in lower case, plainly means."""

HARMFUL_WORDS = YES_NO | read_words(
    {True: "harmful unsafe", False: "harmless safe benign"}
)
"""Words for harmful and harmless, in lower case."""

_DEFAULTS = {"system": ONLY_SYSTEM, "harmful": False, "category": "", "text": ""}
_TOLD = ("decision", "cluster", "system", "harmful", "annotation")
_ANSWERED = ("answer", "finish_reason", "text")
_KEPT = ("system", "cluster", "harmful", "label", "category", "annotation", "text")


@dataclass(frozen=True)
class Decisions:
    """What systems decided, row by row.

    The index of `rows` counts rows of the file, from 0. Its columns are system, label
    (one of `core.decisions.LABELS`), harmful (bool), category (of a provider's stop, ""
    elsewhere) and text ("" if there is none); if the file has them, cluster and
    annotation. `labelled_by` is who labelled the answers, "" if the file has decisions.
    `first` is the number by which users know the first row.
    """

    rows: pd.DataFrame
    name: str = "decisions"
    labelled_by: str = ""
    first: int = 0

    @property
    def clustered(self) -> bool:
        """Whether the rows say which requests ask the same."""
        return "cluster" in self.rows

    @classmethod
    def from_file(
        cls,
        file: str | Path,
        columns: Mapping[str, str] | None = None,
        rejects: Sequence[str] = (),
        requests: str | Path = "",
        labeller: str = "",
    ) -> Self:
        r"""Read a file of decisions or answers.

        It is CSV, TSV, Parquet, JSON lines, chat logs, batches, spans, or a log of
        Inspect.

        Parameters
        ----------
        file : str or Path
            "-" for standard input.
        columns : dict of str to str
            The columns of text, decision, cluster, system, harmful, answer,
            finish_reason and reading, if their names are not usual ones; "none" for
            what shall not be used.
        rejects : sequence of str
            Decisions that are refusals, all others being answers; not needed if the
            words are plain, such as "refused".
        requests : str or Path
            The input file of a batch, which has what was asked.
        labeller : str
            Who reads answers if there are no decisions, as in `label_refusals`.

        Raises
        ------
        DataError
            The file cannot be read, or a row has no decision: the message names file
            and row.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
        >>> rows = ["How to kill weeds?,refused,a", "How to weed?,answered,a"]
        >>> _ = file.write_text("\n".join(["text,decision,cluster", *rows]))
        >>> Decisions.from_file(file).rows["label"].tolist()
        ['reject', 'accept']
        """
        source = records.find_log_source(file)
        named = dict.fromkeys(USUAL_COLUMNS, "") | dict(columns or {})
        told = records.read_rows(source, named, requests)
        rows, labelled_by = _decide(source, told, rejects, labeller)
        return cls(rows, source.name, labelled_by, source.first)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, name: str = "decisions") -> Self:
        """Take a frame with the columns of `rows`, of which `label` is needed.

        Examples
        --------
        >>> rows = pd.DataFrame({"label": ["reject", "accept"], "cluster": "a"})
        >>> Decisions.from_frame(rows).clustered
        True
        """
        frame = frame.reset_index(drop=True)
        for column, default in _DEFAULTS.items():
            frame[column] = frame.get(column, default)
        return cls(frame[[column for column in _KEPT if column in frame]], name)

    def by_system(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield the name and the rows of each system, in the order of the file."""
        for name, own in self.rows.groupby("system", observed=True, sort=False):
            yield str(name), own


def _decide(
    source: LogSource, told: pd.DataFrame, rejects: Sequence[str], labeller: str
) -> tuple[pd.DataFrame, str]:
    """Return what was decided in all rows, and who labelled them."""
    if not len(told):
        raise DataError(f"{source.name}: there are no rows")
    told = told.dropna(axis=1, how="all")
    frame = pd.DataFrame(_DEFAULTS, told.index)
    if "text" in told:
        frame["text"] = told["text"].fillna("").map(partial(SURROGATE.sub, "\ufffd"))
    for name in told.columns.intersection(_TOLD):
        frame[name] = _check_words(source, told[name])
    labelled_by = ""
    if "decision" in told:
        frame["label"] = _to_labels(source, frame["decision"], rejects)
    elif "answer" in told or "finish_reason" in told:
        if rejects:
            raise SettingsError(
                f"{source.name}: it has answers and no decisions, so that --rejects"
                " means nothing; name the decisions with --decision"
            )
        answers = told.reindex(columns=_ANSWERED).astype(object)
        found, labelled_by = _label(answers, labeller)
        frame["label"] = found["label"].to_numpy()
        frame["category"] = found["kind"].where(found["label"] == "blocked", "").array
    else:
        raise DataError(
            f"{source.name}: there is neither a decision nor an answer (read:"
            f" {', '.join(told) or 'nothing'}); name the column with --decision or"
            " --answer"
        )
    if "harmful" in told:
        bits = translate(frame["harmful"], HARMFUL_WORDS)
        source.check(frame["harmful"], bits.notna(), "is neither true nor false")
        frame["harmful"] = bits.astype(bool)
    if "annotation" in frame:
        frame["annotation"] = translate(frame["annotation"], _WORDS).fillna("")
    frame["label"] = pd.Categorical(frame["label"], categories=list(LABELS))
    for name in frame.columns.intersection(["system", "cluster", "category"]):
        frame[name] = frame[name].astype("category")
    return frame[[name for name in _KEPT if name in frame]], labelled_by


def _check_words(source: LogSource, values: pd.Series) -> pd.Series:
    """Return words; a blank one, but for an annotation, is an error."""
    words = values.astype(object).where(values.notna(), "")
    is_utf8 = words.map(lambda word: not SURROGATE.search(word))
    source.check(words, is_utf8, "is not UTF-8")
    if values.name != "annotation":
        source.check(words, words.str.strip() != "", "is blank")
    return words


def translate(words: pd.Series, meanings: Mapping[str, Any]) -> pd.Series:
    """Return what words mean, in any case; NaN for unknown ones."""
    return words.map({one: meanings.get(one.strip().lower()) for one in words.unique()})


def _to_labels(
    source: LogSource, decisions: pd.Series, rejects: Sequence[str]
) -> pd.Series:
    """Turn decisions, as the file words them, into `LABELS`."""
    there = sorted(decisions.unique())
    for name in rejects:
        if name not in there:
            known = ", ".join(map(repr, there[:6]))
            raise DataError(
                f"{source.name}: no decision is {name!r}; there are {known}"
            )
    if rejects:
        return decisions.isin(rejects).map({True: "reject", False: "accept"})
    words = dict(_WORDS)
    if not {"reject", "accept"} & {name.strip().lower() for name in there}:
        words["blocked"] = "reject"  # one of a filter's two words
    labels = translate(decisions, words)
    refusals = " or ".join(f"--rejects {name!r}" for name in there[:2])
    problem = f"is none of {', '.join(LABELS)}: say which are refusals, by {refusals}"
    source.check(decisions, labels.notna(), problem)
    return labels


def label_refusals(
    answers: Sequence[object],
    finish_reasons: Sequence[object] | None = None,
    requests: Sequence[object] | None = None,
    labeller: str = "",
) -> pd.DataFrame:
    """Label n answers as accept, reject, blocked or unparsed.

    A provider blocks; nothing can be read in what is unparsed. None and NaN are answers
    that never came. Finish reasons are those that the provider tells; the classifier
    also reads what was asked. `labeller` is "cues" for the cue list alone, "combined"
    for the classifier too, or "" for the classifier if it is installed and there are at
    most `MAX_CLASSIFIED` answers.

    Returns
    -------
    DataFrame, n rows
        label, kind and rule; p_refusal if the classifier read the answers.

    See Also
    --------
    Decisions.from_file : Reads a log and labels its answers where it has no decisions.

    Examples
    --------
    >>> answers = ["I'm sorry, but I can't help.", "Sure: dig."]
    >>> label_refusals(answers, labeller="cues")["label"].tolist()
    ['reject', 'accept']
    """
    frame = pd.DataFrame(columns=_ANSWERED, dtype=object)
    frame["answer"] = list(answers)
    if finish_reasons is not None:
        frame["finish_reason"] = list(finish_reasons)
    if requests is not None:
        frame["text"] = list(requests)
    return _label(frame.astype(object), labeller)[0]


def _label(answers: pd.DataFrame, labeller: str) -> tuple[pd.DataFrame, str]:
    """Label answers, and say who did.

    It is the classifier too if asked for, or if installed and answers are few enough.
    """
    from paraguard_utils.labels import refusals

    texts = answers["answer"].tolist()
    reasons = answers["finish_reason"].tolist()
    if labeller != "cues" and (labeller or len(texts) <= MAX_CLASSIFIED):
        requests = answers["text"]
        asked = requests.fillna("").tolist() if requests.notna().any() else None
        try:
            from paraguard_utils.labels import labelling

            labels = labelling.label_responses(texts, reasons, asked)
            return labels, labelling.LABELLER
        except ImportError as error:
            if labeller:
                raise DataError(
                    "the classifier needs a package that is not there"
                    f" ({error.name}): pip install '.[models]', or label by the cue"
                    " list alone, with --labeller cues"
                ) from None
    return refusals.label_by_cues(texts, reasons), refusals.CUES_VERSION
