"""Compare the record with that of another revision, names of columns and files mapped.

`.venv/bin/python benchmarks/renamed_record.py REVISION [FOLDER]` reads the recorded
tables, scores, pairs, labels, traces, samples and guard scores of REVISION from git and
compares each value with the files under FOLDER (default `data/`). Version 1.0.0 renamed
columns, files and verdicts and changed no value; this shows it.
"""

import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_utils import paths

KINDS = (
    "answers",
    "guards",
    "labels",
    "pairs",
    "samples",
    "scores",
    "tables",
    "traces",
    "verdicts",
)

COLUMNS = {
    "target": "system",
    "targets": "systems",
    "wrapper": "instruction",
    "few": "too_few",
    "few_dr": "too_few_for_dr",
    "few_twins": "too_few_twins",
    "few_change": "too_few_for_change",
    "few_rephrasing": "too_few_rephrasing",
    "open": "undecided",
    "dice": "chance",
    "own_meanings": "own_requests",
    "promised_meanings": "promised_requests",
}
"""Old names of columns and new ones; an interval's ends follow."""

VALUES = {
    "not seen to": "undecided",
    "open": "undecided",
    "few": "too_few",
    "all targets": "all systems",
    "target": "system",
    "target, centred": "system, centred",
    "thirds of a target's own rejections": "thirds of a system's own rejections",
    "dice": "chance",
}
"""Old words in cells, such as verdicts, and new ones."""

NOT_COMPARED = ("tables/numbers.csv", "tables/notebook_minutes.csv")
"""Numbers in prose, which README's tests compare, and minutes."""


MOVED_FILES = {"tables/ci_correlations.csv": "tables/ci_covariates.csv"}
"""Tables whose rows are in another one: CI and its covariates other than similarity."""

_BY_SYSTEM = ("tables/guard_thresholds.csv", ["system"])
_BY_INTERPRETATION = ("tables/system_details.csv", ["system", "interpretation"])

MOVED_COLUMNS = {
    "tables/table1_targets.csv": [_BY_INTERPRETATION],
    "tables/table3_guards.csv": [
        _BY_SYSTEM,
        _BY_INTERPRETATION,
        ("tables/xstest_rejected.csv", ["system"]),
    ],
    "tables/wording.csv": [("tables/table3_wording.csv", ["system"])],
}
"""Tables some of whose columns are in others, and what their rows are found by.

Models in Table 3 were measured on rounded pairs: four ends of their intervals differ
from `system_details` by one in the last digit, as they did from Table 1.
"""


def rename_file(name: str) -> str:
    """Return the new name of a recorded file."""
    if name in MOVED_FILES:
        return MOVED_FILES[name]
    name = re.sub(r"_targets\b", "_systems", name)
    return name.replace("readings", "annotations")


def rename_column(name: str, file: str) -> str:
    """Return the new name of a column of a file."""
    if name in ("reading", "readings"):
        return "annotation" if "annotations" in file else "interpretation"
    base, end = re.fullmatch(r"(.*?)(_low|_high|)", name).groups()
    return COLUMNS.get(base, base) + end


def read_frame(content: bytes, name: str) -> pd.DataFrame:
    """Read a CSV or Parquet file, CSV fields as text."""
    if name.endswith(".parquet"):
        return pd.read_parquet(io.BytesIO(content))
    return pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)


def is_same(old: pd.Series, new: pd.Series) -> bool:
    """Return whether two columns hold the same values, words mapped."""
    if old.dtype == object and len(old) and isinstance(old.iloc[0], np.ndarray):
        pairs = zip(old, new, strict=True)
        return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    if old.dtype.kind in "iufb":
        numbers = old.astype(float), new.astype(float)
        return bool(np.array_equal(*numbers, equal_nan=True))
    return old.replace(VALUES).fillna("").tolist() == new.fillna("").tolist()


def compare_file(old: pd.DataFrame, new: pd.DataFrame, name: str) -> list[str]:
    """Return what differs between two versions of a file, one line a column."""
    renamed = {column: rename_column(column, name) for column in old.columns}
    old = old.rename(columns=renamed)
    lines = [
        f"column {column} is gone" for column in old.columns.difference(new.columns)
    ]
    if len(old) != len(new):
        return [*lines, f"{len(old)} rows became {len(new)}"]
    for column in old.columns.intersection(new.columns):
        if not is_same(old[column], new[column]):
            lines.append(f"column {column} differs")
    return lines


def main(revision: str, folder: str = "data") -> int:
    """Compare every file and print what differs; return how many files differ."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", revision, "data/"],
        cwd=paths.ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    compared = missing = differing = 0
    for file in listed:
        name = file.removeprefix("data/")
        kind = name.partition("/")[0]
        if kind not in KINDS or not name.endswith((".csv", ".parquet")):
            continue
        if name in NOT_COMPARED:
            continue
        new_name = rename_file(name)
        new_file = Path(folder) / new_name
        if not new_file.is_file():
            missing += 1
            if folder == "data":
                print(f"{new_name}: is not there")
            continue
        content = subprocess.run(
            ["git", "show", f"{revision}:{file}"],
            cwd=paths.ROOT,
            check=True,
            capture_output=True,
        ).stdout
        old = read_frame(content, name)
        new = read_frame(new_file.read_bytes(), new_name)
        for moved_name, keys in MOVED_COLUMNS.get(name, []):
            moved = read_frame((Path(folder) / moved_name).read_bytes(), moved_name)
            moved = moved[[*keys, *moved.columns.difference(new.columns)]]
            new = new.merge(moved, on=keys, how="left")
        lines = compare_file(old, new, new_name)
        compared += 1
        differing += bool(lines)
        for line in lines:
            print(f"{new_name}: {line}")
    print(f"{compared} files compared, {differing} differ, {missing} are not there")
    return differing


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:]), 1))
