"""Benchmarks: how fast models decode and train, what attentions cost, models side by side."""
