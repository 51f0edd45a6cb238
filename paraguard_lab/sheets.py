"""Texts that a spreadsheet may open."""

import pandas as pd

FORMULA_START = r"[=+\-@\t\r]"
"""How a text begins that a spreadsheet would run as a formula; the explorer's page uses
this pattern too."""


def escape_formulas(cells: pd.Series | pd.DataFrame) -> pd.Series | pd.DataFrame:
    """Put an apostrophe before each text that a spreadsheet would run as a formula."""
    return cells.replace(rf"\A({FORMULA_START})", r"'\1", regex=True)
