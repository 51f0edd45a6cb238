"""Notebook 02: targets, and the labels of their answers."""
