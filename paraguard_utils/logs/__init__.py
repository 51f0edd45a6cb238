"""Anybody's decisions: files of many kinds read, audited, compared and gated; no model of ours is needed."""
