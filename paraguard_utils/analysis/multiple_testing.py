"""Adjust p-values of many tests at once."""

import numpy as np
import pandas as pd


def adjust_holm(p: pd.Series) -> np.ndarray:
    """Adjust p-values by Holm; NaN stays NaN and counts as no test."""
    from statsmodels.stats.multitest import multipletests  # seconds to import

    adjusted = np.full(len(p), np.nan)
    known = p.notna().to_numpy()
    if known.any():
        adjusted[known] = multipletests(p[known], method="holm")[1]
    return adjusted
