"""Read decisions of one or several systems from anybody's file.

The file may have one of many layouts (`docs/usage.md`, Your own log).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from paraguard_tools.logs import records
from paraguard_tools.logs.records import USUAL_COLUMNS, YES_NO, LogSource
from paraguard_utils.core.decisions import LABELS
from paraguard_utils.errors import DataError

ONLY_SYSTEM = "all rows"  # the system of a file that names none
# Answers up to which the classifier reads too, if it is installed: it embeds each
MAX_CLASSIFIED = 20_000

_REFUSALS = (
    "rejected",
    "refuse",
    "refused",
    "refusal",
    "block",
    "deny",
    "denied",
    "unsafe",
    "flagged",
)
_ANSWERS = (
    "accepted",
    "answer",
    "answered",
    "allow",
    "allowed",
    "pass",
    "passed",
    "comply",
    "safe",
)
_WORDS = {
    **{label: label for label in LABELS},
    **dict.fromkeys(_REFUSALS, "reject"),
    **dict.fromkeys(_ANSWERS, "accept"),
    **dict.fromkeys(("error", "unclear"), "unparsed"),
}
"""The label that a word for a decision, in lower case, plainly means."""

HARMFUL_WORDS = YES_NO | {
    "harmful": True,
    "unsafe": True,
    "harmless": False,
    "safe": False,
    "benign": False,
}
"""Words for harmful and harmless, in lower case."""

_KEPT = ("system", "cluster", "harmful", "label", "category", "annotation", "text")
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # what is read of a byte that is not UTF-8


@dataclass(frozen=True)
class Decisions:
    """What systems decided, row by row.

    The index of `rows` counts rows of the file, from 0. Its columns are system, label
    (one of `core.decisions.LABELS`), category (of a provider's stop, "" elsewhere); if
    the file has them, cluster, harmful (bool) and reading; text if the rows are from a
    frame. `labelled_by` is who labelled the answers, "" if the file has decisions.
    `read` reads the file again, in parts, for its texts; `first` is the number by which
    users know its first row.
    """

    rows: pd.DataFrame
    name: str = "decisions"
    labelled_by: str = ""
    read: Callable[[], Iterable[pd.DataFrame]] = field(default=tuple, repr=False)
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
        if unknown := set(columns or {}) - set(USUAL_COLUMNS):
            raise DataError(
                f"there is no field {unknown.pop()!r}; there are"
                f" {', '.join(USUAL_COLUMNS)}"
            )
        named = dict.fromkeys(USUAL_COLUMNS, "") | dict(columns or {})
        read = partial(records.read_parts, source, named, requests)
        rows, labelled_by = _gather(source, read(), rejects, labeller)
        return cls(rows, source.name, labelled_by, read, source.first)

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
        made = frame.assign(
            system=frame.get("system", ONLY_SYSTEM), category=frame.get("category", "")
        )
        return cls(made[[name for name in _KEPT if name in made]], name)

    def by_system(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield the name and the rows of each system, in the order of the file."""
        for name, own in self.rows.groupby("system", observed=True, sort=False):
            yield str(name), own

    def texts(self, wanted: Sequence[int] | np.ndarray) -> pd.Series:
        """Read the texts of some rows, by row; "" where the file has none."""
        if "text" in self.rows:
            return self.rows["text"].reindex(wanted)
        found = [pd.Series(dtype=str)]
        for part in self.read():
            if "text" in part:
                texts = part.loc[part.index.isin(wanted), "text"].fillna("").astype(str)
                found.append(
                    texts.map(
                        lambda text: text.encode("utf-8", "surrogateescape").decode(
                            "utf-8", "replace"
                        )
                    )
                )
        every = pd.concat(found)
        return every[~every.index.duplicated()].reindex(wanted, fill_value="")


def _gather(
    source: LogSource,
    parts: Iterable[pd.DataFrame],
    rejects: Sequence[str],
    labeller: str,
) -> tuple[pd.DataFrame, str]:
    """Return all rows, and who labelled them.

    Names are kept as categories, so that a million rows are small.
    """
    index: list[np.ndarray] = []
    fields: dict[str, list[pd.Categorical]] = {}
    answers = []
    for part in parts:
        index.append(part.index.to_numpy())
        if "decision" not in part or (part["decision"].isna().all() and not part.empty):
            if "answer" not in part and "finish_reason" not in part:
                raise DataError(
                    f"{source.name}: there is neither a decision nor an answer (read:"
                    f" {', '.join(part.columns) or 'nothing'}); name the column with"
                    " --decision or --answer"
                )
            answers.append(part.reindex(columns=["answer", "finish_reason", "text"]))
        for name in ("decision", "cluster", "system", "harmful", "annotation"):
            if name in part:
                fields.setdefault(name, []).append(_categories(source, part[name]))
    n = sum(map(len, index))
    if not n:
        raise DataError(f"{source.name}: there are no rows")
    for name, own in fields.items():
        if sum(map(len, own)) != n:
            raise DataError(
                f"{source.name}: {name} is told in some rows only; fill it in, or pass"
                f" --{name} none"
            )
    of_all = {"category": "", "system": ONLY_SYSTEM}
    made = {
        name: pd.Categorical.from_codes(np.zeros(n, np.int8), [value])
        for name, value in of_all.items()
    }
    made |= {name: union_categoricals(own) for name, own in fields.items()}
    frame, labelled_by = pd.DataFrame(made, index=np.concatenate(index)), ""
    if answers:
        found, labelled_by = _label(pd.concat(answers), labeller)
        frame["label"] = pd.Categorical(found["label"], categories=list(LABELS))
        frame["category"] = pd.Categorical(
            found["kind"].where(found["label"] == "blocked", "")
        )
    else:
        frame["label"] = _to_labels(source, frame["decision"], rejects)
    if "harmful" in frame:
        bits = {
            one: HARMFUL_WORDS.get(one.strip().lower())
            for one in frame["harmful"].cat.categories
        }
        if bad := [one for one, bit in bits.items() if bit is None]:
            raise DataError(
                f"{source.name}: harmful is {bad[0]!r}; write true or false, or pass"
                " --harmful none"
            )
        frame["harmful"] = frame["harmful"].map(bits).astype(bool)
    if "annotation" in frame:
        words = {
            one: _WORDS.get(one.strip().lower(), "")
            for one in frame["annotation"].cat.categories
        }
        frame["annotation"] = pd.Categorical(
            frame["annotation"].map(words).astype(object)
        )
    return frame[[name for name in _KEPT if name in frame]], labelled_by


def _categories(source: LogSource, values: pd.Series) -> pd.Categorical:
    """Turn values into categories.

    A blank one, but for a reading, is an error that names its row.
    """
    made = pd.Categorical(values.astype(object).where(values.notna(), ""))
    for said, bad in (
        (
            "is blank; fill it in or leave the row out",
            lambda one: not one.strip() and values.name != "annotation",
        ),
        ("is not UTF-8; save the file as UTF-8", _SURROGATE.search),
    ):
        if wrong := [code for code, one in enumerate(made.categories) if bad(one)]:
            row = int(values.index[np.isin(made.codes, wrong)][0])
            raise DataError(f"{source.name}, {source.place(row)}: {values.name} {said}")
    return made


def _to_labels(
    source: LogSource, decisions: pd.Series, rejects: Sequence[str]
) -> pd.Categorical:
    """Turn decisions, as the file words them, into `LABELS`."""
    lowered = {name: name.strip().lower() for name in decisions.cat.categories}
    if rejects:
        if missing := [name for name in rejects if name not in lowered]:
            there = ", ".join(map(repr, list(lowered)[:6]))
            raise DataError(
                f"{source.name}: no decision is {missing[0]!r}; there are {there}"
            )
        named: dict[str, str | None] = {
            name: "reject" if name in rejects else "accept" for name in lowered
        }
    else:
        of_filter = not {"reject", "accept"} & set(lowered.values())
        words = _WORDS | (
            {"blocked": "reject"} if of_filter else {}
        )  # one of a filter's two words
        named = {name: words.get(word) for name, word in lowered.items()}
    if other := [name for name, label in named.items() if label is None]:
        row = int(decisions.index[decisions == other[0]][0])
        likely = sorted(
            lowered, key=lambda name: (not YES_NO.get(lowered[name], False), name)
        )
        raise DataError(
            f"{source.name}, {source.place(row)}: the decision {other[0]!r} is none of"
            f" {', '.join(LABELS)}; say which decisions are refusals:"
            f" {' or '.join(f'--rejects {name!r}' for name in likely[:2])}"
        )
    return pd.Categorical(decisions.map(named).astype(str), categories=list(LABELS))


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
    frame = pd.DataFrame({"answer": list(answers)}, dtype=object)
    frame["finish_reason"] = (
        list(finish_reasons) if finish_reasons is not None else None
    )
    frame["text"] = list(requests) if requests is not None else None
    return _label(frame, labeller)[0]


def _label(answers: pd.DataFrame, labeller: str) -> tuple[pd.DataFrame, str]:
    """Label answers, and say who did.

    It is the classifier too if asked for, or if installed and answers are few enough.
    """
    from paraguard_utils.labels import refusals

    reasons = answers["finish_reason"].tolist()
    if labeller != "cues" and (labeller or len(answers) <= MAX_CLASSIFIED):
        try:
            from paraguard_utils.labels import labelling

            requests = (
                answers["text"].fillna("").tolist()
                if answers["text"].notna().any()
                else None
            )
            return (
                labelling.label_responses(
                    answers["answer"].tolist(), reasons, requests
                ),
                labelling.LABELLER,
            )
        except ImportError as error:
            if labeller:
                raise DataError(
                    f"the classifier needs a package that is not there ({error.name}):"
                    " pip install '.[models]', or label by the cue list alone, with"
                    " --labeller cues"
                ) from None
    return (
        refusals.label_by_cues(answers["answer"].tolist(), reasons),
        refusals.CUES_VERSION,
    )
