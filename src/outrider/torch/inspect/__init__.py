"""Attention maps, patterns and positions of a model."""
