"""Notebook 02 asks the targets and labels their answers."""
