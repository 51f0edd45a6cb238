"""Decisions of one or several systems, read from anybody's file (`docs/usage.md`, Your own log)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from paraguard_utils.core.decisions import LABELS
from paraguard_utils.errors import DataError
from paraguard_utils.logs import records
from paraguard_utils.logs.records import BITS, Columns, Source

ONE = "all rows"
"""The system of a file that names none."""

REFUSALS = frozenset(
    {"reject", "rejected", "refuse", "refused", "refusal", "block", "deny", "denied", "unsafe", "flagged"}
)
ANSWERS = frozenset(
    {"accept", "accepted", "answer", "answered", "allow", "allowed", "pass", "passed", "comply", "safe"}
)
SET_ASIDE = frozenset({"unparsed", "error", "unclear"})
"""Words for a decision, in lower case, whose reading is plain."""

BY_CLASSIFIER = 20_000
"""Answers up to which the classifier reads too, where it is installed: it embeds each."""

USUAL = Columns()
"""Columns that are called as usual."""

KEPT = ("system", "cluster", "harmful", "label", "category", "reading", "text")


@dataclass(frozen=True)
class Decisions:
    """What systems decided, row by row.

    Attributes
    ----------
    rows : DataFrame
        Index: rows of the file, from 0. Columns system, label (one of `core.decisions.LABELS`), category (of a
        provider's stop, "" elsewhere); where they are told, cluster, harmful (bool), reading, and text of a frame: a
        file's texts are read when they are needed.
    name : str
        Of the file.
    labelled_by : str
        Who read the answers; "" where the file has decisions.
    """

    rows: pd.DataFrame
    name: str = "decisions"
    labelled_by: str = ""
    source: Source | None = None
    columns: Columns = USUAL
    requests: str | Path = ""

    @property
    def clustered(self) -> bool:
        """Whether requests that ask the same are told."""
        return "cluster" in self.rows

    @classmethod
    def from_file(
        cls,
        file: str | Path,
        columns: Mapping[str, str] | Columns = USUAL,
        rejects: Sequence[str] = (),
        requests: str | Path = "",
        labeller: str = "",
    ) -> Self:
        r"""Read a file: CSV, TSV, Parquet, JSON lines, chat logs, batches, spans, or a log of Inspect.

        Parameters
        ----------
        file : str or Path
            "-" for standard input.
        columns : dict of str to str
            What text, decision, cluster, system, harmful, answer, finish_reason and reading are called in this file, as
            far as it is not usual; "none" for what shall not be used.
        rejects : sequence of str
            Decisions that are refusals, all others being answers; not needed where the words are plain.
        requests : str or Path
            The input file of a batch.
        labeller : str
            Who reads answers where there is no decision: "cues", "combined", or "" for the better that is installed.

        Raises
        ------
        DataError
            The file cannot be read, or a row tells no decision: the message names file and row.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
        >>> _ = file.write_text("text,decision,cluster\nHow to kill weeds?,refused,a\nHow to weed?,answered,a\n")
        >>> Decisions.from_file(file).rows["label"].tolist()
        ['reject', 'accept']
        """
        source = records.find(file)
        named = columns if isinstance(columns, Columns) else Columns(**columns)
        gathered = _Gathered(source, named, labeller)
        for part in records.parts(source, named, requests):
            gathered.add(part)
        rows, labelled_by = gathered.rows(tuple(rejects))
        return cls(rows, source.name, labelled_by, source, named, requests)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, name: str = "decisions") -> Self:
        """Take a frame with the columns of `rows`, of which `label` is needed.

        Examples
        --------
        >>> Decisions.from_frame(pd.DataFrame({"label": ["reject", "accept"], "cluster": "a"})).clustered
        True
        """
        frame = frame.reset_index(drop=True)
        made = frame.assign(system=frame.get("system", ONE), category=frame.get("category", ""))
        return cls(made[[name for name in KEPT if name in made]], name)

    def by_system(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield the name and the rows of each system, in the order of the file."""
        for name, own in self.rows.groupby("system", observed=True, sort=False):
            yield str(name), own

    def texts(self, wanted: Sequence[int] | np.ndarray) -> pd.Series:
        """Read the texts of some rows, by row; "" where the file tells none."""
        if "text" in self.rows:
            return self.rows["text"].reindex(wanted)
        found = [pd.Series(dtype=str)]
        if self.source is not None:
            for part in records.parts(self.source, self.columns, self.requests):
                own = part[part.index.isin(wanted)]
                texts = own["text"] if "text" in own else pd.Series("", index=own.index)
                found.append(texts.fillna("").astype(str).map(_readable))
        every = pd.concat(found)
        return every[~every.index.duplicated()].reindex(wanted, fill_value="")


def _readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Gathered:
    """What has been read of a file: names as categories, so that a million rows are small."""

    def __init__(self, source: Source, columns: Columns, labeller: str) -> None:
        self.source, self.columns, self.labeller = source, columns, labeller
        self.parts: dict[str, list[Any]] = {}
        self.index: list[np.ndarray] = []
        self.answers: list[pd.DataFrame] = []

    def add(self, part: pd.DataFrame) -> None:
        """Take a part, with the answers as far as they must be read later."""
        self.index.append(part.index.to_numpy())
        decided = "decision" in part and (part["decision"].notna().any() or part.empty)
        if not decided and "answer" not in part and "finish_reason" not in part:
            told = ", ".join(part.columns) or "nothing"
            raise DataError(
                f"{self.source.name}: there is neither a decision nor an answer (read: {told}); name the column with "
                "--decision or --answer"
            )
        for field in ("decision", "cluster", "system", "harmful", "reading"):
            if field in part:
                self.parts.setdefault(field, []).append(self._categories(field, part[field]))
        if not decided:
            self.answers.append(part.reindex(columns=["answer", "finish_reason", "text"]))

    def _categories(self, field: str, values: pd.Series) -> pd.Categorical:
        """Return values as categories; a blank one of a column that must be filled is an error with its row."""
        words = values.astype(object).where(values.notna(), "")
        made = pd.Categorical(words)
        blank = [one for one in made.categories if not str(one).strip()]
        if blank and field != "reading":
            where = self._where(values, made.isin(blank))
            raise DataError(f"{self.source.name}, {where}: {field} is blank; fill it in or leave the row out")
        for one in made.categories:
            if not _is_utf8(one):
                where = self._where(values, made == one)
                raise DataError(f"{self.source.name}, {where}: {field} is not UTF-8; save the file as UTF-8")
        return made

    def _where(self, values: pd.Series, rows: np.ndarray) -> str:
        place = int(np.flatnonzero(rows)[0])
        return f"{self.source.unit} {int(values.index[place]) + self.source.first}"

    def rows(self, rejects: tuple[str, ...]) -> tuple[pd.DataFrame, str]:
        """Return all rows, and who labelled them."""
        if not self.index or not sum(map(len, self.index)):
            raise DataError(f"{self.source.name}: there are no rows")
        index = np.concatenate(self.index)
        made: dict[str, Any] = {}
        for field, own in self.parts.items():
            if sum(map(len, own)) != len(index):
                raise DataError(
                    f"{self.source.name}: {field} is told in some rows only; fill it in, or pass --{field} none"
                )
            made[field] = union_categoricals(own)
        frame = pd.DataFrame(made, index=index)
        labelled_by, category = "", pd.Series("", index=index)
        if self.answers:
            found, labelled_by = _labelled(pd.concat(self.answers), self.labeller)
            frame["label"] = pd.Categorical(found["label"], categories=list(LABELS))
            category = found["kind"].where(found["label"] == "blocked", "").set_axis(index)
        else:
            frame["label"] = _labels(self.source, frame["decision"], index, rejects)
        frame["category"] = pd.Categorical(category)
        if "system" not in frame:
            frame["system"] = pd.Categorical.from_codes(np.zeros(len(frame), np.int8), [ONE])
        if "harmful" in frame:
            frame["harmful"] = self._bits(frame["harmful"])
        if "reading" in frame:
            frame["reading"] = _words(frame["reading"])
        return frame[[name for name in KEPT if name in frame]], labelled_by

    def _bits(self, values: pd.Series) -> np.ndarray:
        named = {one: BITS.get(str(one).strip().lower()) for one in values.cat.categories}
        named |= {one: word in REFUSALS | {"harmful"} for one in named if (word := str(one).lower()) in _HARM}
        if bad := [one for one, bit in named.items() if bit is None]:
            raise DataError(f"{self.source.name}: harmful is {bad[0]!r}; write true or false, or pass --harmful none")
        return values.map(named).astype(bool).to_numpy()


_HARM = frozenset({"harmful", "harmless", "unsafe", "safe", "benign"})


def _words(values: pd.Series) -> pd.Categorical:
    """Return readings as labels; what is no plain word is not read."""
    named = {one: _plain(str(one)) or "" for one in values.cat.categories}
    return pd.Categorical(values.map(named).astype(object))


def _plain(word: str) -> str | None:
    """Return the label that a word plainly means."""
    word = word.strip().lower()
    if word in LABELS:
        return word
    return "reject" if word in REFUSALS else "accept" if word in ANSWERS else "unparsed" if word in SET_ASIDE else None


def _labels(source: Source, decisions: pd.Series, index: np.ndarray, rejects: tuple[str, ...]) -> pd.Categorical:
    """Return decisions as `LABELS`."""
    found = [str(one) for one in decisions.cat.categories]
    lowered = {one.strip().lower() for one in found}
    named: dict[str, str | None]
    if rejects:
        if missing := [name for name in rejects if name not in found]:
            raise DataError(
                f"{source.name}: no decision is {missing[0]!r}; there are {', '.join(map(repr, found[:6]))}"
            )
        named = {name: "reject" if name in rejects else "accept" for name in found}
    elif "blocked" in lowered and not lowered & {"reject", "accept"}:  # a filter's two words
        named = {name: "reject" if name.strip().lower() == "blocked" else _plain(name) for name in found}
    else:
        named = {name: _plain(name) for name in found}
    if other := [name for name in found if named[name] is None]:
        place = int(np.flatnonzero((decisions == other[0]).to_numpy())[0])
        where = f"{source.unit} {int(index[place]) + source.first}"
        ways = " or ".join(f"--rejects {name!r}" for name in sorted(found, key=_likely)[:2])
        raise DataError(
            f"{source.name}, {where}: the decision {other[0]!r} is none of {', '.join(LABELS)}; say which decisions "
            f"are refusals: {ways}"
        )
    return pd.Categorical(decisions.map(named).astype(str), categories=list(LABELS))


def _likely(word: str) -> tuple[bool, str]:
    return not BITS.get(word.strip().lower(), False), word


def label_refusals(
    answers: Sequence[object],
    finish_reasons: Sequence[object] | None = None,
    requests: Sequence[object] | None = None,
    labeller: str = "",
) -> pd.DataFrame:
    """Label answers: accept, reject, blocked by a provider, or nothing that can be read.

    Parameters
    ----------
    answers : sequence of str, length n
        None and NaN are answers that never came.
    finish_reasons : sequence of str, length n, or None
        Why they ended, as the provider says.
    requests : sequence of str, length n, or None
        What was asked; the classifier reads it.
    labeller : str
        "cues", the cue list alone; "combined", with the classifier; "": the classifier reads up to `BY_CLASSIFIER`
        answers where it is installed.

    Returns
    -------
    DataFrame, n rows
        label, kind and rule; p_refusal where the classifier read.

    See Also
    --------
    Decisions.from_file : Reads a log and labels its answers where it has no decisions.

    Examples
    --------
    >>> label_refusals(["I'm sorry, but I can't help.", "Sure: dig."], labeller="cues")["label"].tolist()
    ['reject', 'accept']
    """
    frame = pd.DataFrame({"answer": list(answers)}, dtype=object)
    frame["finish_reason"] = list(finish_reasons) if finish_reasons is not None else None
    frame["text"] = list(requests) if requests is not None else None
    return _labelled(frame, labeller)[0]


def label_file(file: str | Path, column: str, request: str = "", labeller: str = "combined") -> pd.DataFrame:
    """Read a CSV file of answers and label them.

    Parameters
    ----------
    file : str or Path
        A column finish_reason is used where there is one.
    column : str
        Of the answers.
    request : str
        Column of what was asked; "" for none.
    labeller : str
        "combined", or "cues" for the cue list alone, which needs no model.

    Returns
    -------
    DataFrame
        The file's columns, all as text, and those of `label_refusals`.

    Raises
    ------
    DataError
        The file cannot be read, or has no such column.
    """
    try:
        frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise DataError(f"{file}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read: {str(error).splitlines()[0]}; pass a CSV file in UTF-8") from error
    for name, option in ((column, "--column"), (request, "--request")):
        if name and name not in frame:
            raise DataError(f"{file}: no column {name!r}; it has {', '.join(frame)}; name one with {option}")
    reasons = frame.get("finish_reason", [""] * len(frame))
    asked = frame[request].tolist() if request else None
    return frame.assign(**label_refusals(frame[column].tolist(), list(reasons), asked, labeller))


def _labelled(answers: pd.DataFrame, labeller: str) -> tuple[pd.DataFrame, str]:
    """Label answers by the classifier too where that is asked for, or it is installed and they are not too many."""
    from paraguard_utils.labels import refusals

    reasons = answers["finish_reason"].tolist()
    if labeller != "cues" and (labeller or len(answers) <= BY_CLASSIFIER):
        try:
            from paraguard_utils.labels import labelling

            requests = answers["text"].fillna("").tolist() if answers["text"].notna().any() else None
            return labelling.label(answers["answer"].tolist(), reasons, requests), labelling.LABELLER
        except ImportError as error:
            if labeller:
                raise DataError(
                    f"the classifier needs a package that is not there ({error.name}): pip install '.[models]', "
                    "or label by the cue list alone, with --labeller cues"
                ) from None
    return refusals.label(answers["answer"].tolist(), reasons), refusals.VERSION
