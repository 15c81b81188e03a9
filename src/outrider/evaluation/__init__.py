"""Evaluation of models: metrics, COMET, and an n-gram baseline."""
