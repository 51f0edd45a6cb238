"""What a stranger imports: decisions, estimates with intervals, measures.

Numpy, scipy and pandas only.
"""
