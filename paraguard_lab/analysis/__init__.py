"""Say what the measures measure.

Chance, validity, sensitivity, variance, vetoes and predictions are here.
"""
