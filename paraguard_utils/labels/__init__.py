"""Notebook 02 asks the systems and labels their answers."""
