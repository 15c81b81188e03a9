"""Benchmarks: decoding, training, serving, attention; comparisons of models."""
