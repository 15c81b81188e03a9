"""Traces, HTML pages and pictures of a model at work."""
