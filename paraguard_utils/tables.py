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


def interval(value, low, high):
    """Format one estimate with its interval; a dash where it is undefined."""
    return "–" if np.isnan(value) else f"{value:.3f} [{low:.3f}, {high:.3f}]"


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
    both = recorded.merge(live, on=list(keys), how="outer", suffixes=("|recorded", "|live"), indicator=True)
    rows = []
    values = [name for name in recorded if name not in keys and name in live]
    for row in both.to_dict("records"):
        for name in values:
            a, b = row[f"{name}|recorded"], row[f"{name}|live"]
            if not _same(a, b):
                rows.append({**{key: row[key] for key in keys}, "column": name, "recorded": a, "live": b})
    return pd.DataFrame(rows, columns=[*keys, "column", "recorded", "live"])


def _same(a, b):
    if pd.isna(a) or pd.isna(b):
        return bool(pd.isna(a) and pd.isna(b))
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return bool(np.isclose(a, b, rtol=1e-4, atol=1e-9))
