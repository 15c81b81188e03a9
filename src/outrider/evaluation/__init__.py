"""Evaluation: how good a model is, how fast it is, and records that can be reproduced."""
