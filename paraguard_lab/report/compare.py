"""Compare a live run with the record: labels, then tables number by number."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from paraguard_utils import registry, stores
from paraguard_utils.schemas import Table
from paraguard_utils.settings import CORPUS

# Two runs agree that differ by this share of a number's 95 % interval, or of itself
# without one
RUN_TOLERANCE = 0.01


def compare_cells(recorded: Table, live: Table, keys: Sequence[str]) -> pd.DataFrame:
    """Compare two versions of a table cell by cell, in the rows (identified by the
    columns `keys`) that both have.

    Returns keys, column, recorded, live, share: the difference as a share of the width
    of the recorded 95 % interval of that number; of its own size without one; infinite
    for different texts or if one is undefined; 0 if both are.
    """
    keys = list(keys)
    old, new = (
        frame.astype(object).melt(keys, var_name="column") for frame in (recorded, live)
    )
    both = old.merge(new, on=[*keys, "column"], suffixes=("_recorded", "_live"))
    both = both.rename(columns=lambda name: name.removeprefix("value_"))
    names = [name.removesuffix("_low") for name in recorded if name.endswith("_low")]
    spans = {name: recorded[f"{name}_high"] - recorded[f"{name}_low"] for name in names}
    widths = (
        recorded[keys]
        .assign(**spans)
        .melt(keys, var_name="estimate", value_name="width")
    )
    estimates = both["column"].str.replace(r"_(low|high)$", "", regex=True)
    width = both.assign(estimate=estimates).merge(
        widths, on=[*keys, "estimate"], how="left"
    )["width"]
    cells = zip(both["recorded"], both["live"], width, strict=True)
    return both.assign(share=[_share(old, new, wide) for old, new, wide in cells])


def _share(old: str | float, new: str | float, width: float) -> float:
    if pd.isna(old) or pd.isna(new):
        return 0.0 if pd.isna(old) and pd.isna(new) else np.inf
    if isinstance(old, str | bool) or isinstance(new, str | bool):
        return 0.0 if old == new else np.inf
    # Without an interval, or one without width, a number is measured by its own size.
    size = width if np.isfinite(width) and width > 0 else max(abs(old), abs(new), 1e-6)
    return abs(old - new) / size


def describe_differences(
    name: str, compared: pd.DataFrame, keys: Sequence[str]
) -> list[str]:
    """Describe `compare_cells` in one line, and the 20 cells furthest beyond
    `RUN_TOLERANCE` in one line each.
    """
    if compared.empty:
        return [f"{name}: no row that both runs computed"]
    numbers = compared["share"][np.isfinite(compared["share"])]
    differ = (
        f"{(numbers > RUN_TOLERANCE).sum()} of {len(numbers)} numbers differ by more"
        f" than {RUN_TOLERANCE:.0%}"
    )
    of = (
        "of the interval's width (of the number where it has none); largest difference"
        f" {numbers.max():.2%}"
    )
    lines = [f"{name}: {differ} {of}"]
    if len(numbers) < len(compared):
        lines.append(
            f"  {len(compared) - len(numbers)} texts differ, or are undefined in"
            " one run"
        )
    beyond = compared[compared["share"] > RUN_TOLERANCE].sort_values(
        "share", ascending=False, kind="stable"
    )
    for row in beyond.head(20).to_dict("records"):
        where = ", ".join(str(row[key]) for key in keys)
        lines.append(
            f"  {where}: {row['column']} {row['recorded']} recorded, {row['live']} live"
        )
    return lines


COMPARED_TABLES = {  # and the columns that identify their rows
    "table1_systems": ["system", "interpretation"],
    "table2_cohorts": ["system", "interpretation", "bins", "risk", "similarity"],
    "table3_guards": ["system"],
    "ci_correlations": ["system", "interpretation", "covariate"],
    "sensitivity": ["dimension", "setting", "system"],
}


def compare_with_record(live: stores.Store) -> list[str]:
    """Describe how a live store differs from the record: labels, then tables."""
    recorded = stores.Store(stores.RECORDED)
    lines, equal, total = [], 0, 0
    known = list(registry.published_systems("chat", "guard", "refusal").index)
    asked = [name for name in known if live.has("labels", CORPUS, name)]
    for name in known:
        if name not in asked:
            lines.append(
                f"labels of {name}: not asked in this store, its rows are the recorded"
                " ones"
            )
        elif not recorded.has("labels", CORPUS, name):
            lines.append(f"labels of {name}: nothing recorded")
        else:
            old, new = (
                store.read("labels", CORPUS, name).set_index("prompt_id")
                for store in (recorded, live)
            )
            both = old.index.intersection(
                new.index
            )  # an interrupted store may hold fewer
            same = old.loc[both, "label"].eq(new.loc[both, "label"])
            equal, total = equal + int(same.sum()), total + len(same)
            lines += [
                f"label of {prompt} by {name}: {old['label'][prompt]} recorded"
                for prompt in same.index[~same]
            ]
    if total:
        lines.insert(0, f"labels: {equal} of {total} equal ({equal / total:.2%})")
    for name, keys in COMPARED_TABLES.items():
        if not recorded.has("tables", name):
            lines.append(f"{name}: nothing recorded")
            continue
        # Which store a row comes from is no number.
        old, new = (
            store.read("tables", name).drop(columns="store", errors="ignore")
            for store in (recorded, live)
        )
        old, new = (frame[frame["system"].isin(asked)] for frame in (old, new))
        both = compare_cells(old, new, keys)
        # A live run asks the default systems for harm under one system prompt, and XSTest
        # where it is told where that lies.
        unasked = (
            both["column"].str.match("twins|benign_rejected|apart|auc|xstest")
            & both["live"].isna()
        )
        lines += describe_differences(name, both[~unasked], keys)
    return lines
