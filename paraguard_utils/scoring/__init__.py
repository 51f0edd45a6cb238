"""Notebooks 03, 04 and 06: neighbours, signals, confusion, chance, cohorts, sensitivity. Estimators only."""
