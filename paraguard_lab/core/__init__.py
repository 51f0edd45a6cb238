"""Formulas that notebooks beyond the paper use.

Rephrasing success, parts and tests of DR, label noise and promised thresholds are among
them.
"""
