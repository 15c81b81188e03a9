"""Scores that need a PyTorch model."""
