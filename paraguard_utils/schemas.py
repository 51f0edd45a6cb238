"""The columns of every file, in one place, checked on write and on read."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pandas as pd
import pandera.pandas as pa
from pandera.engines.pandas_engine import Engine, NpString
from pandera.errors import SchemaErrors

from paraguard_utils.core.decisions import LABELS
from paraguard_utils.core.strategies import SEED_STRATEGY, STRATEGIES
from paraguard_utils.errors import DataError
from paraguard_utils.text import CONTROL_CHARACTERS

ANSWER_KINDS = ("on_topic", "degenerate")
"""What an answer is made of, whether it refuses or not (`paraguard_lab.labels`)."""

TOPICAL = ("yes", "word only", "unstated")
"""Whether a seed's category is its topic, or only a word of it sounds like it."""


@Engine.register_dtype
class _Text(NpString):
    """Strings; those of a column that pandas knows to be of text are not looked at."""

    def check(self, pandera_dtype: Any, data_container: Any = None) -> Any:
        known = isinstance(pandera_dtype.type, pd.StringDtype)
        return known or super().check(pandera_dtype, data_container)


_not_blank = pa.Check(lambda texts: texts.str.strip() != "", error="is blank")
_no_control = pa.Check(
    lambda texts: ~texts.str.contains(CONTROL_CHARACTERS.pattern),
    error="has a control character",
)
unit = pa.Check.in_range(0, 1)


def one_of(
    values: Iterable[str], nullable: bool = False, required: bool = True
) -> pa.Column:
    """Return a column of some values."""
    allowed = pa.Check.isin(values, error=f"is not one of {', '.join(values)}")
    return pa.Column(_Text, allowed, nullable=nullable, required=required)


def text(unique: bool = False) -> pa.Column:
    """Return a column of texts that are not blank."""
    return pa.Column(_Text, [_not_blank, _no_control], unique=unique)


def free_text() -> pa.Column:
    """Return a column of texts, any or none."""
    return pa.Column(_Text, nullable=True)


def number(*checks: pa.Check, nullable: bool = False) -> pa.Column:
    """Return a column of floats."""
    return pa.Column(float, list(checks), nullable=nullable, coerce=True)


def count(nullable: bool = False) -> pa.Column:
    """Return a column of whole numbers from 0."""
    kind = "Int64" if nullable else int
    return pa.Column(kind, pa.Check.ge(0), nullable=nullable, coerce=True)


def schema(
    unique: list[str] | None = None, /, **columns: pa.Column
) -> pa.DataFrameSchema:
    """Return a schema of these columns and no others.

    Rows differ in the columns `unique`.
    """
    return pa.DataFrameSchema(columns, strict=True, unique=unique)


_unique = text(unique=True)
_share = number(unit)
_maybe_share = number(unit, nullable=True)
_list = pa.Column(object)
_label = one_of(LABELS)
_similarity = number(pa.Check.in_range(-1, 1))

SCHEMAS = {
    "seeds": schema(
        seed_id=_unique,
        text=pa.Column(_Text, _not_blank),
        source=text(),
        category=text(),
        topical=one_of(TOPICAL, required=False),
    ),
    "candidates": schema(
        seed_id=text(),
        strategy=one_of(STRATEGIES),
        text=pa.Column(_Text, _no_control, coerce=True),
    ),
    "corpus": schema(
        prompt_id=_unique,
        cluster_id=text(),
        variant=count(),
        strategy=one_of((SEED_STRATEGY, *STRATEGIES)),
        text=_unique,
        source=text(),
        category=text(),
        topical=one_of(TOPICAL),
        similarity=_similarity,
        overlap=_share,
        risk=_share,
    ),
    "sentences": schema(text_hash=_unique, vector=_list),
    "tokens": schema(
        token_id=pa.Column(int, pa.Check.ge(0), unique=True, coerce=True),
        text=pa.Column(_Text),
        embedding=_list,
    ),
    "traces": schema(
        prompt_id=_unique,
        key=text(),
        response=free_text(),
        finish_reason=text(),
        token_ids=_list,
        token_nll=_list,
        user_start=count(),
        user_end=count(),
        next_ids=_list,
        next_logprobs=_list,
        tail_mass=_share,
    ),
    "guards": schema(prompt_id=_unique, key=text(), score=_maybe_share),
    "labels": schema(
        prompt_id=_unique,
        labeller=text(),
        label=_label,
        kind=free_text(),
        rule=free_text(),
        response=free_text(),
        p_refusal=_maybe_share,
        answer=one_of(ANSWER_KINDS, nullable=True),
    ),
    "pairs": schema(
        ["centre_id", "neighbour_id"],
        centre_id=text(),
        centre_label=_label,
        neighbour_id=text(),
        neighbour_label=_label,
        same_cluster=pa.Column(bool),
        rank=count(nullable=True),
        similarity=_similarity,
        drift=_share,
        prob_shift=_share,
        ppl_relative=_share,
        ppl_clipped=_share,
    ),
    "scores": schema(
        prompt_id=_unique,
        cluster_id=text(),
        label=_label,
        isolation=_maybe_share,
        n_neighbours=count(),
        mean_similarity=number(nullable=True),
        ci=_maybe_share,
        ci_clipped=_maybe_share,
        spread=number(nullable=True),
        spread_clipped=number(nullable=True),
        n_theta=count(),
        ci_theta=_maybe_share,
        ci_clipped_theta=_maybe_share,
    ),
    "systems": schema(
        system=_unique,
        kind=one_of(("chat", "guard", "refusal")),
        model=text(),
        instruction=free_text(),
        default=one_of(("yes", "no")),
        title=_unique,
    ),
}
"""Schemas by kind of file; other packages add theirs (`paraguard_lab.kinds`)."""


class _Frame(Protocol):
    """A data frame whose kind mypy knows.

    A frame's type says what it holds: the columns of the schema of that name (those of
    a table are its function's). All are data frames of pandas; only mypy distinguishes
    them, so that labels passed for scores are an error before anything runs.
    """

    def __getattr__(self, name: str) -> Any: ...
    def __getitem__(self, key: Any) -> Any: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    def __contains__(self, key: object) -> bool: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...


class Corpus(_Frame):
    """Prompts in clusters of the same meaning."""


class Seeds(_Frame):
    """The first prompt of each cluster."""


class Candidates(_Frame):
    """Paraphrases of seeds, not yet judged."""


class Traces(_Frame):
    """Answers with the numbers of their tokens."""


class Labels(_Frame):
    """Decisions: accept, reject, blocked or unparsed."""


class Tokens(_Frame):
    """Texts and embeddings of tokens."""


class Pairs(_Frame):
    """Decided prompts, refused or accepted, beside accepted neighbours."""


class Scores(_Frame):
    """CI of every decided prompt; Table 1 uses that of the refused ones."""


class Table(_Frame):
    """Rows that a notebook shows or records."""


def select_prompts(
    frame: pd.DataFrame, prompts: pd.DataFrame, where: str = "what was read"
) -> pd.DataFrame:
    """Return a frame's rows of some prompts, in their order.

    Raise DataError about a prompt without a row in the frame; `where` is its file.
    """
    by_id = frame.set_index("prompt_id")
    rows = by_id.index.get_indexer_for(prompts["prompt_id"])
    if (rows < 0).any():
        is_missing = ~prompts["prompt_id"].isin(frame["prompt_id"])
        first = prompts["prompt_id"][is_missing].iloc[0]
        raise DataError(
            f"{where}: prompt {first} has no row, and so {is_missing.sum()} of"
            f" {len(prompts)} prompts; restore the file, or make it again"
        )
    return by_id.iloc[rows].reset_index()


MAY_BE_EMPTY = ("pairs", "scores")
"""A system may accept nothing, or give nothing that can be read."""

_PROBLEMS = {
    "field_uniqueness": "stands there twice",
    "column_in_dataframe": "is missing",
    "column_in_schema": "is not part of it",
}
"""What is wrong, in words, by pandera's name of a check."""


def list_text_columns(kind: str) -> list[str]:
    """Return the names of a kind's text columns."""
    columns = SCHEMAS[kind].columns
    return [name for name in columns if isinstance(columns[name].dtype, _Text)]


def check_schema(frame: pd.DataFrame, kind: str, where: str) -> pd.DataFrame:
    """Return a frame with the columns and types of its kind.

    Raises
    ------
    DataError
        About the first problem of `where`, usually a file: it is empty, lacks or has
        extra columns, or a value is not allowed.
    """
    columns = SCHEMAS[kind].columns
    known = [name for name in columns if name in frame]
    if frame.empty:  # no value says which type a column has
        if kind not in MAY_BE_EMPTY:
            raise DataError(
                f"{where}: there are no rows; a {kind} file needs at least one"
            )
        return frame[known].astype({name: columns[name].dtype.type for name in known})
    try:
        return SCHEMAS[kind].validate(frame.reset_index(drop=True), lazy=True)[known]
    except SchemaErrors as error:
        case = error.failure_cases.iloc[0]
    value = case["failure_case"]
    problem = _PROBLEMS.get(case["check"], case["check"])
    if case["check"] in ("column_in_dataframe", "column_in_schema"):
        raise DataError(
            f"{where}: column {value!r} {problem}; a {kind} file has the columns"
            f" {', '.join(columns)}"
        )
    quoted = repr(value) if isinstance(value, str) else value
    # pandas reads an empty CSV field as missing.
    said = "is blank" if pd.isna(value) else f"{quoted!s:.60} ({problem})"
    place = f"column {case['column']}"
    if not pd.isna(case["index"]):
        row = int(case["index"])
        ids = frame.filter(regex="_id$").iloc[row].head(1)
        # Row 1 is the header, as a spreadsheet counts.
        place = f"row {row + 2} ({', '.join(map(str, ids))}), {place}"
    raise DataError(f"{where}: {place}: {said}; correct it")
