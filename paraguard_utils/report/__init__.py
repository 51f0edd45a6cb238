"""What a reader sees: tables, findings in words, figures, the explorer.

Nothing is estimated here.
"""
