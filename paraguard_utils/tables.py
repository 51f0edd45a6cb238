"""Tables as a reader sees them: three decimals, each estimate with its 95 % interval, NaN as a dash."""

import numpy as np
import pandas as pd


def shown(frame, estimates, others=()):
    """Make a display table from estimate columns `x`, `x_low`, `x_high`.

    Parameters
    ----------
    frame : DataFrame
    estimates : sequence of str
        Estimates to show, each as "0.123 [0.101, 0.145]".
    others : sequence of str
        Columns put before them as they are.

    Returns
    -------
    DataFrame of str
    """
    columns = {name: frame[name] for name in others}
    for name in estimates:
        columns[name] = [
            interval(*values) for values in frame[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
        ]
    return pd.DataFrame(columns)


def rounded(frame):
    """Make a display table of a whole frame: estimates with their intervals, other numbers to three decimals.

    Parameters
    ----------
    frame : DataFrame
        Columns `x`, `x_low`, `x_high` become one column `x`.

    Returns
    -------
    DataFrame
    """
    columns = {}
    for name in frame.columns:
        if f"{name}_low" in frame.columns:
            columns[name] = shown(frame, [name])[name]
        elif not (name.endswith(("_low", "_high")) and name.rpartition("_")[0] in frame.columns):
            columns[name] = frame[name].round(3) if frame[name].dtype.kind == "f" else frame[name]
    return pd.DataFrame(columns)


def interval(value, low, high):
    """Format one estimate with its interval; a dash where either is undefined."""
    if np.isnan(value):
        return "–"
    return f"{value:.3f} [–]" if np.isnan(low) else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def differences(recorded, live, keys):
    """Compare two versions of a table number by number.

    Parameters
    ----------
    recorded, live : DataFrame
    keys : sequence of str
        Columns that identify a row.

    Returns
    -------
    DataFrame
        keys, column, recorded, live: one row per cell that differs by more than 5 significant digits show, or that is
        in one table only.
    """
    keys = list(keys)
    old, new = (frame.astype(object).melt(keys, var_name="column") for frame in (recorded, live))
    both = old.merge(new, on=[*keys, "column"], how="outer", suffixes=("_recorded", "_live"))
    differs = [not _same(a, b) for a, b in zip(both["value_recorded"], both["value_live"], strict=True)]
    return both[differs].rename(columns=lambda name: name.removeprefix("value_")).reset_index(drop=True)


def _same(a, b):
    if pd.isna(a) or pd.isna(b):
        return bool(pd.isna(a) and pd.isna(b))
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return bool(np.isclose(a, b, rtol=1e-4, atol=1e-9))
