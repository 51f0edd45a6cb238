"""Notebooks 03, 04, 06 and 07: neighbours, signals, confusion, chance, cohorts, sensitivity. Estimators only."""
