"""Rare parts of the model family: halting, pondering, skipping, pair attention and others."""
