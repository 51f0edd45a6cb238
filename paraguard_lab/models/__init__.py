"""Models beside the packaged ones."""
