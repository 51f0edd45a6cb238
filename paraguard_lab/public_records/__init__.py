"""What others recorded of real systems: their decisions, without any text (ours)."""
