"""Say in a figure which estimates rest on few decisions."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from paraguard_utils.report.figures import style


def write_shortages(
    axis: Axes, values: pd.Series, is_short: pd.Series, least: str
) -> None:
    """Write beside an estimate that it rests on few decisions, or is undefined.

    Parameters
    ----------
    axis : Axes
        A panel with a row for each estimate.
    values : Series
        The estimates, from top to bottom; NaN is undefined.
    is_short : Series of bool
        Which of them rest on too few.
    least : str
        What is written beside these, such as "n < 30".
    """
    look: style.Look = {"of": "x", "va": "center", "color": style.GREY, "zorder": 1.5}
    frame = {"color": "white", "pad": 0.5}
    is_defined = values.notna()
    for y in np.flatnonzero(is_short & is_defined).tolist():
        style.write_remark(axis, 0.98, y, least, ha="right", bbox=frame, **look)
    for y in np.flatnonzero(~is_defined).tolist():
        style.write_remark(axis, 0.02, y, "undefined", **look)
