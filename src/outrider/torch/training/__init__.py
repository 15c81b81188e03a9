"""Objectives, trainer and one run from config to model folder."""
