"""Notebooks 03 to 07: neighbours, signals, confusion, chance, cohorts, sensitivity.

Estimators only.
"""
