"""Adjust p-values of many tests at once."""

import numpy as np
import pandas as pd


def adjust_holm(p: pd.Series) -> np.ndarray:
    """Adjust p-values by Holm; NaN stays NaN and counts as no test."""
    adjusted, order = np.full(len(p), np.nan), np.argsort(p.to_numpy(float))[: p.notna().sum()]  # NaN sorts last
    # Not statsmodels', which collects all garbage of the process in each of hundreds of calls.
    adjusted[order] = np.maximum.accumulate(p.to_numpy(float)[order] * np.arange(len(order), 0, -1)).clip(max=1.0)
    return adjusted
