"""A model's own refusal as a guard."""
