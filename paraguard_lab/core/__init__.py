"""Formulas that notebooks beyond the paper use: label noise and promised thresholds."""
