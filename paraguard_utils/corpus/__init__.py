"""Notebook 01: benchmarks, paraphrases, surface risk, gates, fidelity."""
