"""Anybody's decisions: files of many kinds read, audited, compared and gated.

No model of ours is needed.
"""
