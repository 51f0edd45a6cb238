"""Say in a figure which estimates rest on few decisions."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from paraguard_utils.core.disagreement import MIN_DECISIONS_EACH
from paraguard_utils.core.estimates import MIN_MIXED, MIN_REFUSALS
from paraguard_utils.report.figures import style

_NEEDS = {
    "ci": ("too_few", MIN_REFUSALS),
    "dr": ("too_few_for_dr", MIN_DECISIONS_EACH),
}
"""The column that says whether a measure rests on too few, and how many it needs."""


def write_shortages(axis: Axes, rows: pd.DataFrame, measure: str) -> None:
    """Write beside a system that a measure rests on few decisions, or is undefined.

    CI needs 30 rejections, DR 100 rejections and acceptances, and the excess 10 mixed
    clusters.
    """
    look: style.Look = {"of": "x", "va": "center", "color": style.GREY, "zorder": 1.5}
    is_short = np.zeros(len(rows), dtype=bool)
    remark = ""
    if measure == "excess" and "n_mixed" in rows:
        is_short = rows["n_mixed"].between(1, MIN_MIXED - 1).to_numpy()
        remark = f"< {MIN_MIXED} clusters"
    elif measure in _NEEDS and _NEEDS[measure][0] in rows:
        flag, least = _NEEDS[measure]
        is_short = rows[flag].to_numpy(bool) & rows[measure].notna().to_numpy()
        remark = f"n < {least}"
    frame = {"color": "white", "pad": 0.5}
    for y in np.flatnonzero(is_short).tolist():
        style.write_remark(axis, 0.98, y - 0.33, remark, ha="right", bbox=frame, **look)
    for y in np.flatnonzero(rows[measure].isna()).tolist():
        style.write_remark(axis, 0.02, y, "undefined", **look)
