"""Tables that only notebooks beyond the paper show."""

from collections.abc import Sequence

import pandas as pd

from paraguard_utils.core.estimates import MIN_MIXED
from paraguard_utils.report.tables import COLUMN_HEADINGS, format_estimates
from paraguard_utils.schemas import Table

COLUMN_HEADINGS |= {
    "ci_null": "CI, permuted",
    "dr_change": "DR, change",
    "dr_matched": "DR, matched",
    "dr_near_identical": "DR, near-identical",
    "dr_verdict": "DR is",
    "excess_equal_contrast": "excess at equal contrast",
    "excess_matched": "excess over matched floor",
    "floor_matched": "matched floor",
    "frr_change": "FRR, change",
    "n_mixed": "mixed clusters",
    "coin_verdict": "against a coin",
    "over_verdict": "against a threshold",
    "too_few_twins": "too few harmful",
    "twins_change": "twins, change",
    "twins_verdict": "twins are",
    "xstest_safe_rejected": "xstest safe",
}


def pivot(
    frame: pd.DataFrame,
    keys: Sequence[str],
    estimates: Sequence[str],
    by: str = "interpretation",
) -> pd.DataFrame:
    """Format estimates and put the values of one column side by side.

    `frame` has a row for each combination of `keys` and `by`, such as the two
    interpretations of the PPL contrast. Returns the keys, then columns "ESTIMATE, VALUE
    of `by`".
    """
    keys = list(keys)
    parts = {}
    for value, rows in frame.groupby(by, sort=False):
        parts[value] = format_estimates(rows, estimates, keys).set_index(keys)
    if not parts:
        return pd.DataFrame(columns=keys)
    columns = {}
    for name in estimates:
        heading = COLUMN_HEADINGS.get(name, name)
        for value, part in parts.items():
            columns[f"{heading}, {value}"] = part[name]
    return pd.concat(columns, axis="columns").reset_index()


def too_few_for_excess(table: Table) -> pd.Series:
    """Return which rows of Table 1 have too few decisions to judge their excess.

    They have too few rejections or mixed clusters. `table` is Table 1 with its floors.
    """
    return table["too_few"] | (table["n_mixed"] < MIN_MIXED)
