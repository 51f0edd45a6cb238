"""The numbers of the paper, version 2, with which ours are compared.

They are read from `data/paper_values.csv`, never typed.
"""

from functools import cache

import pandas as pd

from paraguard_utils import paths
from paraguard_utils.schemas import Table

PAPER_VALUES_FILE = paths.DATA / "paper_values.csv"


@cache
def read_paper_values() -> Table:
    """Read the paper's values by item.

    Columns: what, value, written (with its digits), where (table, figure or "text").
    """
    table = pd.read_csv(
        PAPER_VALUES_FILE,
        index_col="item",
        dtype=str,
        keep_default_na=False,
    )
    table.insert(1, "written", table["value"])
    return table.assign(value=table["value"].astype(float))


def paper_value(item: str) -> float:
    """Return one number of the paper, by its item, such as "cohort.risky"."""
    return float(read_paper_values().at[item, "value"])
