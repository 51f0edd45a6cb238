"""Notebooks 03, 04, 06 and 09: neighbours, signals, confusion, chance, cohorts, sensitivity. Estimators only."""
