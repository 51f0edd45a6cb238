"""Compare a live run with the record: labels, then tables number by number."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from paraguard_utils import registry
from paraguard_utils.schemas import Table
from paraguard_utils.settings import CORPUS
from paraguard_utils.stores import RECORDED, CorpusFiles, Store

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


def compare_cells(recorded: Table, live: Table, keys: Sequence[str]) -> pd.DataFrame:
    """Compare two versions of a table cell by cell, in rows and columns of both.

    The columns `keys` identify a row. Returns keys, column, recorded, live, and share:
    the difference as a share of the width of the recorded 95 % interval of that number;
    of its own size without one; infinite for different texts, or if one is undefined; 0
    if both are.
    """
    keys = list(keys)
    both = _list_cells(recorded, keys, "recorded").merge(
        _list_cells(live, keys, "live"),
        on=[*keys, "column"],
    )
    estimate = both["column"].str.replace(r"_(low|high)$", "", regex=True)
    widths = _measure_intervals(recorded, keys)
    with_widths = both.assign(estimate=estimate).merge(
        widths,
        on=[*keys, "estimate"],
        how="left",
    )
    shares = []
    for row in with_widths.to_dict("records"):
        shares.append(_compute_share(row["recorded"], row["live"], row["width"]))
    return both.assign(share=shares)


def _list_cells(table: Table, keys: list[str], name: str) -> pd.DataFrame:
    """Return the cells of a table, a row each: keys, column, and `name` (the value)."""
    return table.astype(object).melt(keys, var_name="column", value_name=name)


def _measure_intervals(table: Table, keys: list[str]) -> pd.DataFrame:
    """Return the width of each estimate's interval: keys, estimate, width."""
    widths = table[keys].copy()
    for low in table:
        if low.endswith("_low"):
            name = low.removesuffix("_low")
            widths[name] = table[f"{name}_high"] - table[low]
    return widths.melt(keys, var_name="estimate", value_name="width")


def _compute_share(old: Any, new: Any, width: float) -> float:
    """Return how far two values of a cell are apart, as `compare_cells` says."""
    if pd.isna(old) and pd.isna(new):
        return 0.0
    if pd.isna(old) or pd.isna(new):
        return np.inf
    if isinstance(old, str | bool) or isinstance(new, str | bool):
        return 0.0 if old == new else np.inf
    # Without an interval, or one without width, a number is measured by its own size.
    size = max(abs(old), abs(new), _SMALLEST_SIZE)
    if np.isfinite(width) and width > 0:
        size = width
    return abs(old - new) / size


def describe_differences(
    name: str, compared: pd.DataFrame, keys: Sequence[str]
) -> list[str]:
    """Describe `compare_cells` in one line, and the cells furthest apart in one each.

    At most 20 cells are described, those that differ by more than `RUN_TOLERANCE`.
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
    queried = [name for name in published if live.has("labels", CORPUS, name)]
    lines = _compare_labels(record, live, list(published))
    for name, keys in COMPARED_TABLES.items():
        if not record.has("tables", name):
            lines.append(f"{name}: nothing recorded")
            continue
        old = _read_rows(record, name, queried)
        new = _read_rows(live, name, queried)
        both = compare_cells(old, new, keys)
        is_optional = both["column"].str.match(_OPTIONAL_COLUMNS)
        is_left_out = is_optional & both["live"].isna()
        lines += describe_differences(name, both[~is_left_out], keys)
    return lines


def _compare_labels(record: Store, live: Store, systems: list[str]) -> list[str]:
    """Describe the labels that differ, after a line that counts the equal ones."""
    lines = []
    n_equal = 0
    total = 0
    for name in systems:
        if not live.has("labels", CORPUS, name):
            lines.append(
                f"labels of {name}: not asked in this store, its rows are the recorded"
                " ones"
            )
            continue
        if not record.has("labels", CORPUS, name):
            lines.append(f"labels of {name}: nothing recorded")
            continue
        old = _read_label(record, name)
        new = _read_label(live, name)
        both = old.index.intersection(new.index)  # an interrupted store may hold fewer
        old = old[both]
        is_equal = old.eq(new[both])
        n_equal += int(is_equal.sum())
        total += len(is_equal)
        for prompt, label in old[~is_equal].items():
            lines.append(f"label of {prompt} by {name}: {label} recorded")
    if total:
        share = n_equal / total
        lines.insert(0, f"labels: {n_equal} of {total} equal ({share:.2%})")
    return lines


def _read_label(store: Store, system: str) -> pd.Series:
    """Read the label of each prompt, by its id."""
    labels = CorpusFiles(store, CORPUS).read("labels", system)
    return labels.set_index("prompt_id")["label"]


def _read_rows(store: Store, name: str, systems: list[str]) -> Table:
    """Read the rows of some systems; which store they come from is no number."""
    table = store.read("tables", name).drop(columns="store", errors="ignore")
    return table[table["system"].isin(systems)]
