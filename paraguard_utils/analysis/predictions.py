"""Judge what was predicted before it was measured (`docs/method.md`, Predictions).

`data/predictions.csv` says of each prediction which rows of which table decide it, and between which limits.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from paraguard_utils import paths
from paraguard_utils.schemas import Table

FILE = paths.DATA / "predictions.csv"

ABOUT = ("target", "first", "second", "remedy", "guard", "score")
"""Columns that say what a row of a table is about."""

COLUMNS = ("number", "about", "measure", "value", "value_low", "value_high", "verdict")


def read() -> Table:
    """Return the file of predictions, a measure of a prediction a row."""
    return pd.read_csv(FILE, keep_default_na=False)


def verdict(low: float, high: float, least: float = -np.inf, most: float = np.inf) -> str:
    """Return whether a prediction `holds` (the whole interval lies between two limits), `fails` or is `open`.

    Examples
    --------
    >>> verdict(0.4, 0.6, least=0.3), verdict(0.2, 0.4, least=0.3), verdict(0.1, 0.3, least=0.3)
    ('holds', 'open', 'fails')
    """
    if not np.isfinite([low, high]).all():
        return "open"
    if least < low and high < most:
        return "holds"
    return "fails" if high <= least or low >= most else "open"


def judge(tables: Mapping[str, Table]) -> Table:
    """Judge the predictions about some tables.

    Parameters
    ----------
    tables : dict of str to DataFrame
        By the name that the file has for them; an empty one is passed over.

    Returns
    -------
    DataFrame
        number; about, the target or targets, with remedy, guard or score; measure; value with its interval; verdict
        (`verdict`, or `few` where there are too few refusals to judge). A measure without an interval is judged by its
        value.

    See Also
    --------
    paraguard_utils.analysis.head_to_head.judgeable : Tables for predictions 1 to 8.
    paraguard_utils.remedies.effects.against_control : Rows for prediction 18.

    Examples
    --------
    >>> told = {"prompts": "all", "reading": "relative", "setting": "full", "few": False}
    >>> rho = {"rho": 0.95, "rho_low": 0.92, "rho_high": 0.97}
    >>> judge({"proxies": pd.DataFrame([{"target": "mine", **told, **rho}])})[["number", "about", "verdict"]]
       number about verdict
    0      19  mine   holds
    """
    found = []
    for one in read().itertuples():
        if not len(tables.get(one.table, ())):
            continue
        rows = tables[one.table].query(one.rows)
        few = rows.eval(one.few) if one.few else pd.Series(False, rows.index)
        names = rows[[name for name in ABOUT if name in rows]].itertuples()
        values = rows[one.measure]
        ends = (rows.get(f"{one.measure}{end}", values) for end in ("_low", "_high"))
        for (place, *about), flagged, value, low, high in zip(names, few, values, *ends, strict=True):
            said = "few" if flagged else verdict(low, high, one.low, one.high)
            found.append((one.number, place, " | ".join(about), one.measure, value, low, high, said))
    frame = pd.DataFrame(found, columns=[COLUMNS[0], "place", *COLUMNS[1:]])
    return frame.sort_values(["number", "place"], kind="stable", ignore_index=True).drop(columns="place")
