"""What a stranger imports: decisions, estimates with intervals, measures.

All are functions of arrays; they need numpy, scipy and pandas only.
"""
