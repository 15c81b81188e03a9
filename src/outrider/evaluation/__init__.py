"""Evaluation: how good a model is, whether it is exact, and results that can be reproduced."""
