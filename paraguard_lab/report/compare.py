"""Compare a live run with the record: labels, then tables number by number."""

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from paraguard_utils import registry
from paraguard_utils.schemas import Table
from paraguard_utils.settings import CORPUS
from paraguard_utils.stores import RECORDED, Store

RUN_TOLERANCE = 0.01
"""Two runs agree if they differ by at most this share.

The share is that of a number's 95 % interval, or of the number itself without one.
"""

_SHOWN_CELLS = 20
_SMALLEST_SIZE = 1e-6
"""Least size of a number that a difference is a share of."""

COMPARED_TABLES = {
    "table1_systems": ["system", "interpretation"],
    "table2_cohorts": ["system", "interpretation", "bins", "risk", "similarity"],
    "table3_guards": ["system"],
    "ci_correlations": ["system", "interpretation", "covariate"],
    "sensitivity": ["dimension", "setting", "system"],
}
"""The tables that are compared, with the columns that identify a row."""

# A live run queries the default systems for harm under one system prompt, and XSTest
# only if it is told where that is.
_OPTIONAL_COLUMNS = "twins|benign_rejected|apart|auc|xstest"


def compare_cells(recorded: Table, live: Table, keys: list[str]) -> pd.DataFrame:
    """Compare two versions of a table cell by cell, in rows and columns of both.

    Parameters
    ----------
    recorded, live : Table
    keys : list of str
        The columns that identify a row.

    Returns
    -------
    DataFrame
        keys, column, recorded, live, and share: the difference as a share of the width
        of the recorded 95 % interval of that number; of its own size without one;
        infinite for different texts, or if one is undefined; 0 if both are.
    """
    old = recorded.set_index(keys)
    old, new = old.align(live.set_index(keys), join="inner")
    parts = []
    for name in old:
        shares = pd.Series(np.inf, old.index)
        if is_numeric_dtype(old[name]) and is_numeric_dtype(new[name]):
            before = old[name].astype(float)
            after = new[name].astype(float)
            size = np.maximum(before.abs(), after.abs()).clip(lower=_SMALLEST_SIZE)
            estimate = name.removesuffix("_low").removesuffix("_high")
            if f"{estimate}_low" in old:
                width = old[f"{estimate}_high"] - old[f"{estimate}_low"]
                size = width.where(width > 0, size)
            shares = (before - after).abs() / size
        is_equal = (old[name] == new[name]) | (old[name].isna() & new[name].isna())
        shares = shares.mask(is_equal, 0.0).fillna(np.inf)
        cells = {"column": name, "recorded": old[name], "live": new[name]}
        parts.append(pd.DataFrame({**cells, "share": shares}).reset_index())
    return pd.concat(parts, ignore_index=True)


def describe_differences(
    name: str, compared: pd.DataFrame, keys: list[str]
) -> list[str]:
    """Describe how far two versions of a table differ.

    Parameters
    ----------
    name : str
        The table's.
    compared : DataFrame
        As from `compare_cells`.
    keys : list of str
        The columns that identify a row.

    Returns
    -------
    list of str
        A line about all cells, and one each about those that are furthest apart: at
        most 20 that differ by more than `RUN_TOLERANCE`.
    """
    if compared.empty:
        return [f"{name}: no row that both runs computed"]
    shares = compared["share"]
    of_numbers = shares[np.isfinite(shares)]
    n_differ = (of_numbers > RUN_TOLERANCE).sum()
    lines = [
        f"{name}: {n_differ} of {len(of_numbers)} numbers differ by more than"
        f" {RUN_TOLERANCE:.0%} of the interval's width (of the number where it has"
        f" none); largest difference {of_numbers.max():.2%}"
    ]
    n_others = len(compared) - len(of_numbers)
    if n_others:
        lines.append(f"  {n_others} texts differ, or are undefined in one run")
    beyond = compared[shares > RUN_TOLERANCE]
    beyond = beyond.sort_values("share", ascending=False, kind="stable")
    for row in beyond.head(_SHOWN_CELLS).to_dict("records"):
        where = ", ".join(str(row[key]) for key in keys)
        lines.append(
            f"  {where}: {row['column']} {row['recorded']} recorded, {row['live']} live"
        )
    return lines


def compare_with_record(live: Store) -> list[str]:
    """Describe how a live store differs from the record: labels, then tables."""
    record = Store(RECORDED)
    published = registry.published_systems("chat", "guard", "refusal").index
    both = []
    for name in published:
        if live.has("labels", CORPUS, name) and record.has("labels", CORPUS, name):
            both.append(name)
    lines = _compare_labels(record, live, both)
    others = [name for name in published if name not in both]
    if others:
        lines.append(f"not queried in both stores: {', '.join(others)}")
    for name, keys in COMPARED_TABLES.items():
        old = record.read("tables", name)
        new = live.read("tables", name)
        old = old[old["system"].isin(both)]
        cells = compare_cells(old, new, keys)
        is_optional = cells["column"].str.match(_OPTIONAL_COLUMNS)
        is_left_out = is_optional & cells["live"].isna()
        lines += describe_differences(name, cells[~is_left_out], keys)
    return lines


def _compare_labels(record: Store, live: Store, systems: list[str]) -> list[str]:
    """Describe the labels that differ, after a line that counts the equal ones."""
    lines = []
    n_equal = 0
    total = 0
    for name in systems:
        old = record.read("labels", CORPUS, name)
        new = live.read("labels", CORPUS, name)
        both = old.merge(new, on="prompt_id", suffixes=("", "_live"))
        is_equal = both["label"] == both["label_live"]
        n_equal += int(is_equal.sum())
        total += len(both)
        for row in both[~is_equal].to_dict("records"):
            prompt = row["prompt_id"]
            lines.append(f"label of {prompt} by {name}: {row['label']} recorded")
    share = n_equal / max(total, 1)
    return [f"labels: {n_equal} of {total} equal ({share:.2%})", *lines]
