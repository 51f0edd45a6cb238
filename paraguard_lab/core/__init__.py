"""Formulas that notebooks beyond the paper use.

Rephrasing odds, parts and tests of DR, label noise and promised thresholds are among
them.
"""
