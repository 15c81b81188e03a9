"""Outrider: train, speed up and serve sequence-to-sequence and language models."""

__version__ = "0.1.0"
