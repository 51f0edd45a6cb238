"""Figures of the notebooks beyond the paper."""
