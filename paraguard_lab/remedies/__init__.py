"""Remedies against false refusals, for notebook 07 (`docs/method.md`, Remedies).

Each is a file of `catalogue`.
"""
