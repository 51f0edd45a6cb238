"""Notebook 05: guards that decide by themselves."""
