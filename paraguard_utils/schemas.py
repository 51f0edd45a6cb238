"""The columns of every file, in one place, checked on write and on read."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pandas as pd
import pandera.pandas as pa
from pandera.errors import SchemaErrors

from paraguard_utils.core.decisions import LABELS
from paraguard_utils.core.strategies import SEED, STRATEGIES
from paraguard_utils.errors import DataError
from paraguard_utils.text import CONTROL_CHARACTERS

THREE_LABELS = (
    "full_compliance",
    "full_refusal",
    "partial_refusal",
)  # XSTest's three labels of an answer

READ_ANSWERS = (
    "usable",
    "poor",
    "off_topic",
    "degenerate",
)  # what a reader says of an answer (`docs/reading.md`)

ANSWER_KINDS = (
    "on_topic",
    "degenerate",
)  # what an answer is made of, whether it refuses or not (`labels.substance`)

TOPICAL = (
    "yes",
    "word only",
    "unstated",
)  # is a seed's category its topic, or does only a word of it sound like it?

_not_blank = pa.Check(lambda texts: texts.str.strip() != "", error="is blank")
_no_control = pa.Check(
    lambda texts: (
        ~texts.isin(
            [text for text in texts.tolist() if CONTROL_CHARACTERS.search(text)]
        )
    ),
    error="has a control character",
)
_unit = pa.Check.in_range(0, 1)


def _one_of(
    values: Iterable[str], nullable: bool = False, required: bool = True
) -> pa.Column:
    allowed = pa.Check.isin(values, error=f"is not one of {', '.join(values)}")
    return pa.Column(str, allowed, nullable=nullable, required=required)


def _text(unique: bool = False) -> pa.Column:
    return pa.Column(str, [_not_blank, _no_control], unique=unique)


def _number(*checks: pa.Check, nullable: bool = False) -> pa.Column:
    return pa.Column(float, list(checks), nullable=nullable, coerce=True)


def _count(nullable: bool = False) -> pa.Column:
    return pa.Column(
        "Int64" if nullable else int, pa.Check.ge(0), nullable=nullable, coerce=True
    )


def _schema(
    unique: list[str] | None = None, /, **columns: pa.Column
) -> pa.DataFrameSchema:
    return pa.DataFrameSchema(columns, strict=True, unique=unique)


_list = pa.Column(object)
_label = _one_of(LABELS)
_response = pa.Column(str, nullable=True)
_answer = _one_of(ANSWER_KINDS, nullable=True)
_similarity = _number(pa.Check.in_range(-1, 1))

_verdicts = {
    "prompt_id": _text(unique=True),
    "labeller": _text(),
    "label": _label,
    "kind": pa.Column(str, nullable=True),
    "rule": pa.Column(str, nullable=True),
    "response": _response,
}

SCHEMAS = {
    "seeds": _schema(
        seed_id=_text(unique=True),
        text=pa.Column(str, _not_blank),
        source=_text(),
        category=_text(),
        topical=_one_of(TOPICAL, required=False),
    ),
    "candidates": _schema(
        seed_id=_text(),
        strategy=_one_of(STRATEGIES),
        text=pa.Column(str, _no_control, coerce=True),
    ),
    "generated": _schema(
        seed_id=_text(),
        strategy=_one_of(STRATEGIES),
        text=_text(),
        generator=_text(),
        rule=_text(),
    ),
    "corpus": _schema(
        prompt_id=_text(unique=True),
        cluster_id=_text(),
        variant=_count(),
        strategy=_one_of((SEED, *STRATEGIES)),
        text=_text(unique=True),
        source=_text(),
        category=_text(),
        topical=_one_of(TOPICAL),
        similarity=_similarity,
        overlap=_number(_unit),
        risk=_number(_unit),
    ),
    "neutral": _schema(prompt_id=_text(unique=True), text=_text(unique=True)),
    "sentences": _schema(text_hash=_text(unique=True), vector=_list),
    "drifts": _schema(
        ["first_hash", "second_hash"],
        first_hash=_text(),
        second_hash=_text(),
        drift=_number(_unit),
    ),
    "tokens": _schema(
        token_id=pa.Column(int, pa.Check.ge(0), unique=True, coerce=True),
        text=pa.Column(str),
        embedding=_list,
    ),
    "traces": _schema(
        prompt_id=_text(unique=True),
        key=_text(),
        response=_response,
        finish_reason=_text(),
        token_ids=_list,
        token_nll=_list,
        user_start=_count(),
        user_end=_count(),
        next_ids=_list,
        next_logprobs=_list,
        tail_mass=_number(_unit),
    ),
    "guards": _schema(
        prompt_id=_text(unique=True), key=_text(), score=_number(_unit, nullable=True)
    ),
    "labels": _schema(
        **_verdicts, p_refusal=_number(_unit, nullable=True), answer=_answer
    ),
    "verdicts": _schema(**_verdicts),
    "answers": _schema(
        prompt_id=_text(unique=True),
        key=_text(),
        response=_response,
        finish_reason=_text(),
        label=_label,
        declined_later=pa.Column(bool),
        sample=pa.Column(bool),
    ),
    "samples": _schema(
        ["prompt_id", "temperature", "draw"],
        prompt_id=_text(),
        temperature=_number(),
        draw=_count(),
        key=_text(),
        label=_label,
        answer=_answer,
        response=_response,
    ),
    "annotations": _schema(
        ["system", "prompt_id"],
        system=_text(),
        prompt_id=_text(),
        first_refusal=_one_of((*THREE_LABELS, "unclear")),
        second_refusal=_one_of((*THREE_LABELS, "unclear")),
        first_answer=_one_of(READ_ANSWERS),
        second_answer=_one_of(READ_ANSWERS),
        response=_text(),
    ),
    "training_answers": _schema(
        answer_id=_text(unique=True),
        source=_text(),
        prompt=_text(),
        response=_text(),
        first_label=_one_of(THREE_LABELS),
        second_label=_one_of(THREE_LABELS),
    ),
    "pairs": _schema(
        ["centre_id", "neighbour_id"],
        centre_id=_text(),
        centre_label=_label,
        neighbour_id=_text(),
        neighbour_label=_label,
        same_cluster=pa.Column(bool),
        rank=_count(nullable=True),
        similarity=_similarity,
        drift=_number(_unit),
        prob_shift=_number(_unit),
        ppl_relative=_number(_unit),
        ppl_clipped=_number(_unit),
    ),
    "scores": _schema(
        prompt_id=_text(unique=True),
        cluster_id=_text(),
        label=_label,
        isolation=_number(_unit, nullable=True),
        n_neighbours=_count(),
        mean_similarity=_number(nullable=True),
        ci=_number(_unit, nullable=True),
        ci_clipped=_number(_unit, nullable=True),
        spread=_number(nullable=True),
        spread_clipped=_number(nullable=True),
        n_theta=_count(),
        ci_theta=_number(_unit, nullable=True),
        ci_clipped_theta=_number(_unit, nullable=True),
    ),
    "systems": _schema(
        system=_text(unique=True),
        kind=_one_of(("chat", "guard", "refusal")),
        model=_text(),
        instruction=pa.Column(str, nullable=True),
        default=_one_of(("yes", "no")),
        title=_text(unique=True),
    ),
}


if TYPE_CHECKING:

    class _Frame:
        """A data frame whose kind mypy knows."""

        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, key: Any) -> Any: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...
        def __contains__(self, key: object) -> bool: ...
        def __iter__(self) -> Iterator[Any]: ...
        def __len__(self) -> int: ...

    class Corpus(_Frame): ...

    class Seeds(_Frame): ...

    class Candidates(_Frame): ...

    class Traces(_Frame): ...

    class Labels(_Frame): ...

    class Tokens(_Frame): ...

    class Pairs(_Frame): ...

    class Scores(_Frame): ...

    class Table(_Frame): ...

else:
    Corpus = Seeds = Candidates = pd.DataFrame
    Traces = Labels = Tokens = pd.DataFrame
    Pairs = Scores = Table = pd.DataFrame

# A frame's type says what it holds: the columns of the schema of that name (those of a
# table are its function's). They are all data frames; only mypy tells them apart, so
# that labels passed for scores are an error before anything runs.


COPY_SEPARATOR = "~"  # separates a prompt's id from the number of its copy or rewording


def original_ids(prompt_ids: pd.Series) -> pd.Series:
    """Return the ids of the prompts behind copies."""
    return prompt_ids.str.replace(rf"{COPY_SEPARATOR}\d+$", "", regex=True)


def select_prompts(frame: pd.DataFrame, prompts: pd.DataFrame) -> pd.DataFrame:
    """Return a frame's rows of some prompts, in their order."""
    return frame.set_index("prompt_id").loc[prompts["prompt_id"]].reset_index()


MAY_BE_EMPTY = (
    "pairs",
    "scores",
)  # a system may accept nothing, or give nothing that can be read


def list_text_columns(kind: str) -> list[str]:
    """Return the names of a kind's text columns."""
    text = pa.Column(str).dtype
    return [
        name for name, column in SCHEMAS[kind].columns.items() if column.dtype == text
    ]


def check_schema(frame: pd.DataFrame, kind: str, where: str) -> pd.DataFrame:
    """Check a frame against the schema of its kind and return it with the schema's
    columns and types.

    Raise a DataError about the first problem of `where`, usually a file: it is empty,
    lacks or has extra columns, or a value is not allowed.
    """
    schema = SCHEMAS[kind]
    missing = [
        name
        for name, column in schema.columns.items()
        if column.required and name not in frame.columns
    ]
    extra = [name for name in frame.columns if name not in schema.columns]
    if missing:
        raise DataError(
            f"{where}: column {missing[0]!r} is missing; a {kind} file has the columns"
            f" {', '.join(schema.columns)}"
        )
    if extra:
        raise DataError(
            f"{where}: column {extra[0]!r} is not part of a {kind} file; remove it"
        )
    if frame.empty and kind not in MAY_BE_EMPTY:
        raise DataError(f"{where}: there are no rows; a {kind} file needs at least one")
    if frame.empty:  # no value tells the types
        return pd.DataFrame(
            {
                name: pd.Series(dtype=column.dtype.type)
                for name, column in schema.columns.items()
            }
        )
    frame = frame[
        [name for name in schema.columns if name in frame.columns]
    ].reset_index(drop=True)
    for name in frame.columns:
        # pandas reads an empty CSV field as missing
        if not schema.columns[name].nullable and frame[name].isna().any():
            _fail(where, frame, int(frame[name].isna().argmax()), name, "is blank")
    try:
        return schema.validate(frame, lazy=True)
    except SchemaErrors as error:
        case = error.failure_cases.iloc[0]
        problem = (
            "stands there twice"
            if case["check"] == "field_uniqueness"
            else case["check"]
        )
        _fail(
            where,
            frame,
            case["index"],
            case["column"],
            f"{_shorten(case['failure_case'])} ({problem})",
        )


def _fail(
    where: str, frame: pd.DataFrame, index: int | None, column: str, problem: str
) -> NoReturn:
    if index is None or pd.isna(index):
        raise DataError(f"{where}: column {column}: {problem}; correct the file")
    row = frame.iloc[int(index)]
    identity = next(
        (str(row[name]) for name in frame.columns if name.endswith("_id")), ""
    )
    # Row 1 is the header, as a spreadsheet counts.
    raise DataError(
        f"{where}: row {int(index) + 2} ({identity}), column {column}: {problem};"
        " correct the row"
    )


def _shorten(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
