"""Read what blind readers marked on the sheets of `labels.blind`.

They judge as `docs/reading.md` says. What they read is not kept.
"""

from pathlib import Path

import pandas as pd

from paraguard_lab.core.label_noise import ReadCounts
from paraguard_lab.kinds import READ_ANSWERS, THREE_LABELS
from paraguard_lab.labels import annotations
from paraguard_lab.labels.annotators import compare_readers, compare_with_annotations
from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError
from paraguard_utils.schemas import Table

BLIND_ANNOTATIONS_FILE = paths.DATA / "labels" / "blind_annotations.csv"

MARKS = {
    "refusal": (*THREE_LABELS, "unclear"),
    "answer": READ_ANSWERS,
}
"""What a reader marks: the columns of a file of marks, and their codes."""


def read_marks(path: str | Path) -> pd.DataFrame:
    """Read one reader's marks: a CSV with the columns item, refusal and answer.

    Raises
    ------
    DataError
        A column is missing, an item comes twice, or a mark is no code of `MARKS`.
    """
    path = Path(path)
    rows = stores.read_csv(path, dtype=str)
    where = paths.display_path(path)
    for column in ("item", *MARKS):
        if column not in rows:
            raise DataError(
                f"{where}: column {column!r} is missing; a file of marks has the"
                f" columns item, {', '.join(MARKS)}"
            )
        rows[column] = rows[column].str.strip()
    twice = rows.loc[rows["item"].duplicated(), "item"]
    if len(twice):
        raise DataError(f"{where}: {twice.iat[0]} is there twice; keep one row of it")
    for column, codes in MARKS.items():
        wrong = rows[~rows[column].isin(codes)]
        if len(wrong):
            raise DataError(
                f"{where}: {wrong['item'].iat[0]}: {column} {wrong[column].iat[0]!r} is"
                f" not one of {', '.join(codes)}; correct it"
            )
    return rows[["item", *MARKS]]


def join_marks(
    key: pd.DataFrame, first: pd.DataFrame, second: pd.DataFrame
) -> pd.DataFrame:
    """Join two readers' marks with the key of their sheets, in the key's order.

    Parameters
    ----------
    key : DataFrame
        From `blind.shuffle_for_readers`.
    first, second : DataFrame
        From `read_marks`.

    Returns
    -------
    DataFrame
        A file of kind `blind_annotations`.

    Raises
    ------
    DataError
        A reader marked other items than the key has.
    """
    joined = key
    for reader, marks in (("first", first), ("second", second)):
        differing = set(key["item"]) ^ set(marks["item"])
        if differing:
            raise DataError(
                f"the {reader} reader's items are not those of the key:"
                f" {len(differing)} differ, {min(differing)} among them; let all of one"
                " sheet be marked"
            )
        names = {name: f"{reader}_{name}" for name in MARKS}
        joined = joined.merge(marks.rename(columns=names), on="item")
    return joined.drop(columns="item")


def read_blind_annotations() -> pd.DataFrame:
    """Read the marks on answers of other kinds, with `annotations.add_decisions`."""
    rows = stores.read_file(BLIND_ANNOTATIONS_FILE, "blind_annotations")
    return annotations.add_decisions(rows)


def select_equal(read: pd.DataFrame) -> pd.DataFrame:
    """Return the answers whose label was the recorded one when they came again."""
    return read[read["label"] == read["label_again"]]


def compare_kinds(read: pd.DataFrame) -> Table:
    """Compare labels with blind readers by kind of answer.

    Parameters
    ----------
    read : DataFrame
        From `read_blind_annotations`.

    Returns
    -------
    Table
        Columns: kind, n, changed (answers whose label changed when they were queried
        again, which count nowhere else), differ, rejections, acceptances, precision,
        missed and usable with exact intervals (`compare_with_annotations`), and kappa
        of the two readers on refusing, with its interval.
    """
    equal = select_equal(read)
    measured = compare_with_annotations(equal.assign(system=equal["kind"]))
    rows = []
    for kind, own in read.groupby("kind", sort=False):
        kept = select_equal(own)
        row = measured[measured["system"] == kind].iloc[0]
        row = row.drop(["system", "noisy", "n"]).to_dict()
        kappa = compare_readers(kept).iloc[0].filter(like="kappa").to_dict()
        about = {"kind": kind, "n": len(own), "changed": len(own) - len(kept)}
        rows.append(about | row | kappa)
    return pd.DataFrame(rows)


def count_readings(read: pd.DataFrame, pooled: bool = False) -> ReadCounts:
    """Count how many rejections and acceptances refuse, by both readers.

    Parameters
    ----------
    read : DataFrame
        label, and reads of `annotations.add_decisions`. Answers on which the readers
        differ do not count.
    pooled : bool
        Whether they are of several systems.
    """
    agreed = read[read["reads"] != "differ"]
    sides = []
    for label in ("reject", "accept"):
        refuses = agreed.loc[agreed["label"] == label, "reads"] == "reject"
        sides.append((int(refuses.sum()), len(refuses)))
    return ReadCounts(sides[0], sides[1], pooled)
