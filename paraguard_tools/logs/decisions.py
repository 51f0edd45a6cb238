"""Read decisions of one or several systems from anybody's file.

The file may have one of many layouts (`docs/usage.md`, Audit your own decisions).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from paraguard_lab.labels.unread import CUT_REASONS
from paraguard_tools.answers.canned import find_canned_lines
from paraguard_tools.logs import conversations, records, repeats
from paraguard_tools.logs.formats.chats import NO_RESULT
from paraguard_tools.logs.formats.sources import map_text
from paraguard_tools.logs.names import show_name
from paraguard_tools.logs.reading import Reading
from paraguard_tools.logs.records import (
    SURROGATE,
    USUAL_COLUMNS,
    YES_NO,
    LogSource,
    Told,
    read_words,
)
from paraguard_tools.logs.repeats import SameText
from paraguard_tools.servers import stops
from paraguard_utils.core.decisions import LABELS
from paraguard_utils.errors import DataError, SettingsError

ONLY_SYSTEM = "all rows"  # the system of a file that names none
UNKNOWN_SYSTEM = "unknown"  # that of a row that names none, where others do
# Answers up to which the classifier reads too, if it is installed: it embeds each
MAX_CLASSIFIED = 20_000

_WORDS = {label: label for label in LABELS} | read_words(
    {
        "reject": "rejected refuse refused refusal block deny denied unsafe flagged"
        " denial evasive full_refusal partial_refusal 2_full_refusal"
        " 3_partial_refusal",
        "accept": "accepted answer answered allow allowed pass passed comply safe"
        " complied compliance complete full_compliance 1_full_compliance",
        "unparsed": "error unclear",
    }
)
"""The label that a word for a decision, in lower case, plainly means."""

HARMFUL_WORDS = YES_NO | read_words(
    {True: "harmful unsafe", False: "harmless safe benign"}
)
"""Words for harmful and harmless, in lower case."""

_IDS = ("id", "prompt_id", "question_id", "custom_id", "doc_id", "item_id")
"""Usual names of the column that says which request a row of one of several files is
of.
"""

_PROMPT_IDS = ("prompt_id", "question_id", "doc_id", "item_id")
"""Those of them that number requests, and never rows: texts of two are two wordings."""

_DEFAULTS = {"system": ONLY_SYSTEM, "harmful": False, "category": "", "text": ""}
_TOLD = ("decision", "cluster", "system", "harmful", "annotation")
_ANSWERED = ("answer", "finish_reason", "text", "system")
_KEPT = (
    "system",
    "cluster",
    "harmful",
    "label",
    "category",
    "annotation",
    "text",
    "wording",
    "repeat",
    "after_stop",
)
_MAX_CANNED = 3  # canned lines that are shown
_MAX_CANNED_CHARS = 80
_NOTHING = ("", "false", "0", "0.0", "no", "none", "nan", "null")


@dataclass(frozen=True)
class Decisions:
    """What systems decided, row by row.

    The index of `rows` counts rows of the file, from 0; doubles are left out. Its
    columns are system, label (one of `core.decisions.LABELS`), harmful (bool), category
    (of a provider's stop, "" elsewhere) and text ("" if there is none); if the file has
    them, cluster and annotation. `wording` numbers the texts of each system and
    cluster, and `repeat` the runs of one text, from 0: rows of one wording differ by
    chance only. `after_stop` says whether a filter stopped an earlier row of the same
    conversation. `labelled_by` is who labelled the answers, "" if the file has
    decisions. `first` is the number by which users know the first row. `reading` says
    what was read.
    """

    rows: pd.DataFrame
    name: str = "decisions"
    labelled_by: str = ""
    first: int = 0
    reading: Reading = field(default_factory=Reading)
    cluster_hints: tuple[str, ...] = ()

    @property
    def clustered(self) -> bool:
        """Whether the rows say which requests ask the same."""
        return "cluster" in self.rows

    @property
    def repeated(self) -> bool:
        """Whether a text was run more than once."""
        return "repeat" in self.rows and bool((self.rows["repeat"] > 0).any())

    @classmethod
    def from_file(
        cls,
        file: str | Path,
        columns: Mapping[str, str] | None = None,
        rejects: Sequence[str] = (),
        requests: str | Path = "",
        labeller: str = "",
        *,
        same_text: SameText = "auto",
        refusal_phrases: Sequence[str] = (),
    ) -> Self:
        r"""Read a file of decisions or answers.

        `paraguard audit --formats` lists what it may be.

        Parameters
        ----------
        file : str or Path
            "-" for standard input.
        columns : dict of str to str
            The columns of text, decision, cluster, system, harmful, answer,
            finish_reason, annotation, error and repeat, if their names are not usual
            ones; "none" for what shall not be used. The cluster may be
            `COLUMN~PATTERN`: what the pattern matches is cut off.
        rejects : sequence of str
            Further decisions that are refusals; unknown words are answers then. Not
            needed if all words are plain, such as "refused".
        requests : str or Path
            The input file of a batch, which has what was asked.
        labeller : str
            Who reads answers if there are no decisions, as in `label_refusals`.
        same_text : str
            What rows of one text are: "repeats" (runs), "doubles" (counted once),
            "wordings", or "auto".
        refusal_phrases : sequence of str
            Phrases of a product that refuse: an answer with one of them is a refusal.

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
        return cls.from_files(
            [file],
            columns,
            rejects,
            requests,
            labeller,
            same_text=same_text,
            refusal_phrases=refusal_phrases,
        )

    @classmethod
    def from_files(
        cls,
        files: Sequence[str | Path],
        columns: Mapping[str, str] | None = None,
        rejects: Sequence[str] = (),
        requests: str | Path = "",
        labeller: str = "",
        *,
        side_by_side: bool = False,
        same_text: SameText = "auto",
        refusal_phrases: Sequence[str] = (),
    ) -> Self:
        """Read several files as one log, such as a batch's output and errors.

        With `side_by_side` each file has another wording of every request, and rows of
        one id are a cluster; the id is the column of clusters, or one of a usual name.
        Other parameters are those of `from_file`.
        """
        if same_text not in ("auto", "repeats", "doubles", "wordings"):
            raise SettingsError(
                f"--same-text {same_text}: it is auto, repeats, doubles or wordings"
            )
        named = dict.fromkeys(USUAL_COLUMNS, "") | dict(columns or {})
        sources = [records.find_log_source(file) for file in files]
        told = [records.read_rows(one, named, requests) for one in sources]
        told = _drop_answered(told)
        if side_by_side:
            told = [_take_ids(*pair) for pair in zip(sources, told, strict=True)]
        _check_rejects(sources, told, rejects)
        asking = _Asking(tuple(rejects), labeller, tuple(refusal_phrases))
        decided = [_decide(*pair, asking) for pair in zip(sources, told, strict=True)]
        return cls(**_join(sources, told, decided, same_text))

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


@dataclass(frozen=True)
class _Asking:
    """How decisions are read, and answers labelled."""

    rejects: tuple[str, ...]
    labeller: str
    phrases: tuple[str, ...]


def _drop_answered(told: list[Told]) -> list[Told]:
    """Leave out requests without a result in one file that another one has."""
    if not any("finish_reason" in one.frame for one in told):
        return told
    ids = [one.raw.get("custom_id", one.raw.get("recordId")) for one in told]
    missing = []
    for one in told:
        reasons = one.frame.get("finish_reason", pd.Series(index=one.frame.index))
        missing.append(reasons == NO_RESULT)
    if not any(mask.any() for mask in missing) or any(one is None for one in ids):
        return told
    seen: set[Any] = set()
    for own, mask in zip(ids, missing, strict=True):
        seen |= set(own[~mask])
    kept = []
    for one, own, mask in zip(told, ids, missing, strict=True):
        gone = mask & own.isin(seen)
        seen |= set(own[mask])
        kept.append(Told(one.frame[~gone], one.raw[~gone], *_rest(one)))
    return kept


def _rest(told: Told) -> tuple[dict[str, str], list[str], str, int]:
    return told.columns, told.notes, told.format, told.requests


def _take_ids(source: LogSource, told: Told) -> Told:
    """Take the id of a row for its cluster."""
    if "cluster" in told.columns or "cluster" in told.frame:
        return told
    ids = next((one for one in _IDS if one in told.raw), "")
    if not ids:
        raise DataError(
            f"{source.name}: there is no id by which rows of several files belong"
            " together; name its column with --cluster"
        )
    frame = told.frame.assign(cluster=map_text(told.raw[ids]))
    columns = {**told.columns, "cluster": ids}
    return Told(frame, told.raw, columns, told.notes, told.format, told.requests)


def _check_rejects(
    sources: Sequence[LogSource], told: Sequence[Told], rejects: Sequence[str]
) -> None:
    """Raise DataError about a refusal that no file has.

    SettingsError if no file has decisions.
    """
    if rejects and not any("decision" in one.frame for one in told):
        raise SettingsError(
            f"{sources[0].name}: it has no decisions, so that --rejects means nothing;"
            " name their column with --decision"
        )
    there = set()
    for one in told:
        if "decision" in one.frame:
            there |= {str(word) for word in one.frame["decision"].dropna().unique()}
    for name in rejects:
        if name not in there:
            known = ", ".join(map(repr, sorted(there)[:6])) or "no decisions"
            raise DataError(
                f"{sources[0].name}: no decision is {name!r}; there are {known}"
            )


@dataclass(frozen=True)
class _Decided:
    """The decisions of one file: all rows, and what is counted of them.

    `rows` has also kind (of what is unparsed), language, reasoning (bool), at_limit
    (bool), outcome, repeat_id, stopped (bool), conversation and turn.
    """

    rows: pd.DataFrame
    labelled_by: str
    notes: list[str]


def _decide(source: LogSource, told: Told, asking: _Asking) -> _Decided:
    """Return what was decided in all rows, and who labelled them."""
    given = told.frame
    if not len(given):
        raise DataError(f"{source.name}: there are no rows")
    given = given.dropna(axis=1, how="all")
    frame = pd.DataFrame(_DEFAULTS | {"system": ""}, given.index)
    notes: list[str] = []
    if "text" in given:
        texts = map_text(given["text"].fillna(""))
        frame["text"] = map_text(texts, lambda text: SURROGATE.sub("\ufffd", text))
    failed = _find_failed(given)
    for name in given.columns.intersection(_TOLD):
        is_lost = failed if name in ("decision", "cluster") else None
        frame[name] = _check_words(source, given[name], is_lost)
    answers = _read_answers(given, failed)
    frame["reasoning"] = False
    frame["at_limit"] = False
    frame["kind"], frame["language"], labelled_by = "", "", ""
    is_line = pd.Series(False, given.index)
    if "decision" in given:
        frame["label"] = _to_labels(source, frame["decision"], asking.rejects)
        notes += _unlabel_failed(frame, answers, failed)
    elif "answer" in given or "finish_reason" in given:
        found, labelled_by = _label(answers, asking.labeller, asking.phrases)
        notes += _describe_canned(answers, found["label"])
        frame["label"] = found["label"].to_numpy()
        kinds = found["kind"].astype(object).where(found["kind"].notna(), "").to_numpy()
        blocked = frame["label"] == "blocked"
        frame["category"] = np.where(blocked, kinds, "")
        frame["kind"] = np.where(frame["label"] == "unparsed", kinds, "")
        is_line |= found["rule"].str.startswith("line: ").fillna(False).to_numpy(bool)
        unread = found["kind"] == "language"  # the rule names the language
        languages = found["rule"].str.removeprefix("language ").where(unread, "")
        frame["language"] = languages.fillna("").to_numpy()
    else:
        raise _nothing_decided(source, told)
    if "answer" in given or "finish_reason" in given:
        ended = given.get("finish_reason", pd.Series("", given.index))
        frame.loc[ended == NO_RESULT, ["label", "kind"]] = "unparsed", NO_RESULT
        frame["at_limit"] = ended.fillna("").str.strip().str.lower().isin(CUT_REASONS)
        said = answers["answer"].map(lambda one: isinstance(one, str) and one.strip())
        flags = given.get("reasoning", pd.Series(False, given.index))
        frame["reasoning"] = said.astype(bool) | flags.fillna(False).astype(bool)
    if "harmful" in given:
        bits = translate(frame["harmful"], HARMFUL_WORDS)
        source.check(frame["harmful"], bits.notna(), "is neither true nor false")
        frame["harmful"] = bits.astype(bool)
        notes += _check_harmful(frame, told, bool(labelled_by))
    if "annotation" in frame:
        frame["annotation"] = translate(frame["annotation"], _WORDS).fillna("")
    frame["outcome"] = frame.get("decision", frame["label"]).astype(object)
    if "answer" in given:
        frame["outcome"] = (
            frame["outcome"] + "\0" + map_text(given["answer"].fillna(""))
        )
    if "repeat" in given:
        frame["repeat_id"] = given["repeat"]
    frame["stopped"] = (frame["label"] == "blocked") | is_line
    frame["conversation"] = map_text(_column(given, "conversation", "").fillna(""))
    frame["turn"] = pd.to_numeric(_column(given, "turn", 0), errors="coerce")
    frame["after_stop"] = _column(given, "after_stop", False).fillna(False).astype(bool)
    return _Decided(frame, labelled_by, notes)


def _column(given: pd.DataFrame, name: str, default: Any) -> pd.Series:
    """Return a column, or a default throughout."""
    return given.get(name, pd.Series(default, given.index, dtype=object))


def _describe_canned(answers: pd.DataFrame, labels: pd.Series) -> list[str]:
    """Say which texts answer many different requests and are no known refusal."""
    if not answers["text"].notna().any():
        return []
    lines = find_canned_lines(answers["text"], answers["answer"], labels)
    said = []
    for line in lines.head(_MAX_CANNED).to_dict("records"):
        said.append(
            f"{line['n']:,} answers, to {line['n_requests']:,} requests, are identical"
            f" and counted as {line['label']}:"
            f" {show_name(line['line'], _MAX_CANNED_CHARS)}"
            " (--refusal-phrases FILE, if your product declines with it)."
        )
    return said


def _read_answers(given: pd.DataFrame, failed: pd.Series) -> pd.DataFrame:
    """Return answers, finish reasons and texts, as a labeller reads them.

    Bytes that are not UTF-8 are read as Windows-1252.
    """
    answers = given.reindex(columns=list(_ANSWERED)).astype(object)
    answers = answers.where(answers.notna(), None)
    if "answer" in given:
        answers["answer"] = map_text(answers["answer"], _restore)
    is_open = answers["finish_reason"].isna() | (answers["finish_reason"] == NO_RESULT)
    answers.loc[is_open & failed, "finish_reason"] = "error"
    if "error" in given and "answer" in given:
        is_blank = answers["answer"].map(lambda one: not str(one or "").strip())
        for row in given.index[failed & is_blank & given["error"].notna()]:
            said = str(given.at[row, "error"])
            stop = stops.find_stop_in_error(said, said)
            if stop:
                answers.at[row, "finish_reason"] = stop.reason
    return answers


def _restore(answer: Any) -> Any:
    """Return an answer with the letters that bytes of Windows-1252 stand for."""
    if not isinstance(answer, str) or not SURROGATE.search(answer):
        return answer
    return SURROGATE.sub(_restore_letter, answer)


def _restore_letter(match: Any) -> str:
    number = ord(match[0]) - 0xDC00
    if not 0x80 <= number <= 0xFF:
        return "\ufffd"
    return bytes([number]).decode("cp1252", "replace")


def _find_failed(given: pd.DataFrame) -> pd.Series:
    """Return which rows are errors, or have no result, instead of an answer.

    A column of errors has yes, or the error itself where there is no answer.
    """
    failed = pd.Series(False, given.index)
    if "finish_reason" in given:
        failed |= given["finish_reason"].isin(["error", NO_RESULT])
    if "error" in given:
        words = map_text(
            given["error"].fillna(""), lambda one: str(one).strip().lower()
        )
        is_yes = words.map(YES_NO).eq(True)
        is_told = ~words.isin(_NOTHING)
        if "answer" in given:
            is_told &= map_text(given["answer"].fillna("")).str.strip() == ""
        failed |= is_yes | is_told
    return failed


def _unlabel_failed(
    frame: pd.DataFrame, answers: pd.DataFrame, failed: pd.Series
) -> list[str]:
    """Take back decisions on answers that never came; say how many there were."""
    frame.loc[failed, "label"] = "unparsed"
    frame.loc[failed, "kind"] = "error"
    said = map_text(answers["answer"], lambda one: str(one or "").strip())
    is_blank = (said == "") & (frame["label"] == "accept")
    if is_blank.any() and (said != "").any():
        frame.loc[is_blank, "label"] = "unparsed"
        frame.loc[is_blank, "kind"] = "empty"
        return [
            f"{int(is_blank.sum()):,} rows are decided as answered though their answer"
            " is empty: they count as neither answered nor refused (--answer none"
            " counts them as decided)."
        ]
    return []


def _nothing_decided(source: LogSource, told: Told) -> DataError:
    """Return an error about a file without decisions and answers."""
    wide = _find_wide(told)
    if wide:
        first, *others = wide
        return DataError(
            f"{source.name}: there is no column of answers, but {first!r} and"
            f" {others[0]!r} look like the answers of one system each; make a row of"
            " each answer (pandas: frame.melt, with var_name='system' and"
            f" value_name='response'), or audit one by --answer {first!r}"
        )
    there = ", ".join(map(repr, list(told.raw)[:12])) or "none"
    return DataError(
        f"{source.name}: there is neither a decision nor an answer (columns: {there});"
        " name the column with --decision or --answer"
    )


def _find_wide(told: Told) -> list[str]:
    """Return columns that look like answers, or decisions, of one system each."""
    found = []
    head = told.raw.head(50)
    for place, name in enumerate(head.columns):
        values = map_text(head.iloc[:, place].dropna())
        if name in told.columns.values() or not len(values):
            continue
        lower = str(name).lower()
        is_named = any(word in lower for word in ("response", "answer", "output"))
        is_word = values.str.strip().str.lower().isin(_WORDS).all()
        is_long = values.str.split().str.len().mean() > 4
        if is_word or is_long or is_named:
            found.append(str(name))
    return found if len(found) > 1 else []


def _check_harmful(frame: pd.DataFrame, told: Told, is_labelled: bool) -> list[str]:
    """Say whether a column of harmful requests rather judges their answers.

    It is not used then: one request cannot be both harmful and harmless.
    """
    name = told.columns.get("harmful", "harmful")
    requests = frame[frame["text"] != ""].groupby("text")["harmful"].nunique()
    both = int((requests > 1).sum())
    if both:
        frame["harmful"] = False
        return [
            f"The column {name!r} was not used: {both:,} texts are both harmful and"
            " harmless in it, so it judges the answers. Name the column that says which"
            " requests should be refused with --harmful."
        ]
    refused = frame["label"].isin(["reject", "blocked"])
    marked = refused[frame["harmful"]]
    others = refused[~frame["harmful"]]
    if is_labelled and len(marked) >= 5 and not marked.any() and others.any():
        return [
            f"No request that {name!r} marks was refused, though others were: it"
            " probably judges the answers (--harmful none)."
        ]
    return []


def _check_words(
    source: LogSource, values: pd.Series, lost: pd.Series | None = None
) -> pd.Series:
    """Return words; a blank one is an error.

    Annotations may be blank, systems too, and what is lost.
    """
    words = map_text(values.astype(object).where(values.notna(), ""))
    is_utf8 = words.map(lambda word: not SURROGATE.search(word))
    source.check(words, is_utf8, "is not UTF-8")
    if values.name not in ("annotation", "system"):
        is_told = words.str.strip() != ""
        source.check(words, is_told if lost is None else is_told | lost, "is blank")
    if values.name == "cluster" and lost is not None:
        for row in words.index[lost & (words.str.strip() == "")]:
            words[row] = f"(none) {source.place(int(row))}"
    return words


def translate(words: pd.Series, meanings: Mapping[str, Any]) -> pd.Series:
    """Return what words mean, in any case; NaN for unknown ones."""
    return words.map({one: meanings.get(one.strip().lower()) for one in words.unique()})


def _to_labels(
    source: LogSource, decisions: pd.Series, rejects: Sequence[str]
) -> pd.Series:
    """Turn decisions, as the file words them, into `LABELS`."""
    there = sorted(one for one in decisions.unique() if one.strip())
    words = dict(_WORDS) | {"": "unparsed"}
    others = {_WORDS.get(name.strip().lower()) for name in there}
    if "accept" not in there and "reject" not in others and not rejects:
        words["blocked"] = "reject"  # one of a filter's two words
    for name in there:
        if name.strip().lower().startswith("error_"):
            words[name.strip().lower()] = "unparsed"
        elif rejects:
            words.setdefault(name.strip().lower(), "accept")
    labels = translate(decisions, words)
    labels = labels.where(~decisions.isin(list(rejects)), "reject")
    refusals = " or ".join(f"--rejects {name!r}" for name in there[:2])
    problem = f"is none of {', '.join(LABELS)}: say which are refusals, by {refusals}"
    source.check(decisions, labels.notna(), problem)
    return labels


def _join(
    sources: Sequence[LogSource],
    told: Sequence[Told],
    decided: Sequence[_Decided],
    same_text: SameText,
) -> dict[str, Any]:
    """Join the rows of all files; return the fields of `Decisions`."""
    parts, start = [], 0
    for one in decided:
        parts.append(one.rows.set_axis(one.rows.index + start))
        start = int(parts[-1].index.max()) + 1
    rows = pd.concat(parts) if len(parts) > 1 else parts[0]
    raw = (
        pd.concat([one.raw.astype(object) for one in told])
        if len(told) > 1
        else told[0].raw
    )
    if "cluster" in rows and rows["cluster"].isna().any():
        place = rows["cluster"].isna().idxmax()
        files = [
            str(one.name)
            for one, part in zip(sources, parts, strict=True)
            if place in part.index
        ]
        raise DataError(
            f"{files[0]}: it has no clusters, though another file of the log has; name"
            " their column with --cluster, or pass --cluster none"
        )
    no_system = _fill_systems(rows)
    looked = rows.rename(columns={"repeat_id": "repeat"})
    ids = next((one for one in _PROMPT_IDS if one in raw), "")
    if ids and same_text == "auto":  # texts may be cut, or share all that was kept
        names = map_text(raw[ids].fillna("")).tolist()
        blank = looked["text"] == ""
        both = looked["text"] + "\0" + pd.Series(names, looked.index)
        looked["text"] = both.where(~blank, "")
    wanted = ["text", "system", "cluster", "outcome", "repeat"]
    looked = looked[[name for name in wanted if name in looked]]
    found = repeats.find_same_texts(looked, raw, same_text)
    rows["wording"], rows["repeat"] = found.wording, found.repeat
    rows["after_stop"] |= conversations.find_after_stop(rows)
    n = len(rows)
    rows = rows[found.kept]
    reading = _count(rows, found.kept)
    columns: dict[str, str] = {}
    notes: list[str] = []
    for file in told:
        columns |= file.columns
        notes += file.notes
    for part in decided:
        notes += part.notes
    names = [one.name for one in sources]
    about = {
        "name": " and ".join(names[:3]) + (" ..." if len(names) > 3 else ""),
        "format": " and ".join(dict.fromkeys(one.format for one in told)),
        "rows": n,
        "requests": told[0].requests,
        "columns": columns,
        "no_system": no_system,
        "notes": tuple(dict.fromkeys(notes)),
    }
    hints: list[str] = []
    if "cluster" not in rows:
        texts = told[0].frame.get("text")
        hints = records.suggest_clusters(told[0].raw, columns.values(), texts)
    rows = rows.drop(columns="decision", errors="ignore")
    rows = rows[[name for name in _KEPT if name in rows]].copy()
    rows["label"] = pd.Categorical(rows["label"], categories=list(LABELS))
    for name in rows.columns.intersection(["system", "cluster", "category"]):
        rows[name] = rows[name].astype("category")
    labelled = [one.labelled_by for one in decided if one.labelled_by]
    return {
        "rows": rows,
        "name": about["name"],
        "labelled_by": labelled[-1] if labelled else "",
        "first": sources[0].first,
        "reading": Reading(**(reading | about)),
        "cluster_hints": tuple(hints),
    }


def _fill_systems(rows: pd.DataFrame) -> int:
    """Name the system of rows that name none; return how many there were."""
    names = rows["system"].astype(object)
    blank = names.isna() | (map_text(names).str.strip() == "")
    known = names[~blank].unique()
    if blank.any() and len(known):
        rows["system"] = names.where(
            ~blank, known[0] if len(known) == 1 else UNKNOWN_SYSTEM
        )
    elif blank.any():
        rows["system"] = ONLY_SYSTEM
        return 0
    return int(blank.sum())


def _count(rows: pd.DataFrame, kept: np.ndarray) -> dict[str, Any]:
    """Return what a `Reading` counts of the rows that are kept."""
    kinds = rows["kind"].where(rows["label"] == "unparsed", None)
    empty = kinds == "empty"
    unparsed: dict[tuple[str, str], int] = {}
    others = rows[(rows["label"] == "unparsed") & ~empty & (kinds != NO_RESULT)]
    for key, n in others.groupby(["kind", "language"]).size().items():
        unparsed[key] = int(n)
    undecided = rows["label"] == "unparsed"
    by_system = {}
    for name, own in undecided.groupby(rows["system"], observed=True, sort=False):
        by_system[str(name)] = int(own.sum()), len(own)
    runs = np.bincount(rows["wording"])
    return {
        "doubles": int((~kept).sum()),
        "repeated_texts": int((runs > 1).sum()),
        "max_repeats": int(runs.max(initial=1)),
        "empty": int(empty.sum()),
        "empty_with_reasoning": int((empty & rows["reasoning"]).sum()),
        "at_limit": int((empty & rows["at_limit"]).sum()),
        "blocked": int((rows["label"] == "blocked").sum()),
        "unparsed": unparsed,
        "missing": int((kinds == NO_RESULT).sum()),
        "by_system": by_system,
    }


def label_refusals(
    answers: Sequence[object],
    finish_reasons: Sequence[object] | None = None,
    requests: Sequence[object] | None = None,
    labeller: str = "",
    phrases: Sequence[str] = (),
) -> pd.DataFrame:
    """Label n answers as accept, reject, blocked or unparsed.

    A provider blocks; nothing can be read in what is unparsed: an error, thinking that
    was cut off, a language without a list of cues. None and NaN are answers that never
    came. Finish reasons are those that the provider tells; the classifier also reads
    what was asked. `labeller` is "cues" for the cue lists alone, "combined" for the
    classifier of English answers too, or "" for the classifier if it is installed and
    there are at most `MAX_CLASSIFIED` answers. `phrases` are fixed lines in which the
    user's own product declines.

    Returns
    -------
    DataFrame, n rows
        label, kind and rule; p_refusal if the classifier read the answers. The kind of
        what is unparsed says why, and the rule names an unread language.

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
    return _label(frame.astype(object), labeller, phrases)[0]


def _label(
    answers: pd.DataFrame, labeller: str, phrases: Sequence[str] = ()
) -> tuple[pd.DataFrame, str]:
    """Label answers, and say who did.

    It is the classifier too if asked for, or if installed and answers are few enough.
    """
    from paraguard_tools.answers import labelling

    if labeller != "cues" and (labeller or len(answers) <= MAX_CLASSIFIED):
        try:
            return labelling.label_with_classifier(answers, phrases)
        except ImportError as error:
            if labeller:
                raise DataError(
                    "the classifier needs a package that is not there"
                    f" ({error.name}): pip install '.[models]', or label by the cue"
                    " lists alone, with --labeller cues"
                ) from None
    return labelling.label_logs_by_cues(answers, phrases), labelling.CUES_LABELLER
