"""Remedies against false refusals, for notebook 07 (`docs/method.md`, Remedies): the
files of `catalogue`.
"""
