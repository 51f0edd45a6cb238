"""What a stranger imports: decisions, estimates with intervals, measures; numpy, scipy and pandas only."""
