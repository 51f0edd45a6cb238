"""Remedies against false refusals, and what they cost (08; `docs/method.md`, Remedies).

A remedy makes a target of a target. Each is one file of `catalogue`; what they share lies here.
"""
