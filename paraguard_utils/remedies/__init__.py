"""Remedies against false refusals, for notebook 07 (`docs/method.md`, Remedies); each is one file of `catalogue`."""
