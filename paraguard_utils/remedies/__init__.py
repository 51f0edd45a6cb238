"""Remedies against false refusals, for notebook 08 (`docs/method.md`, Remedies); each is one file of `catalogue`."""
