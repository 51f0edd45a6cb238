"""Remedies against false refusals and their cost, for notebook 08 (`docs/method.md`, Remedies).

A remedy turns a system into another system. Each remedy is one file of `catalogue`; this folder holds what they share.
"""
