"""Kinds of models, trainer and one run from config to model folder."""
