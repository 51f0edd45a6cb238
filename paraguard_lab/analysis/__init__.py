"""Say what the measures measure.

Chance, validity, sensitivity, variance, rephrasing, groups of prompts, vetoes and
predictions are here.
"""
