"""Benchmarks against peers, comparisons of models and synthetic tasks."""
