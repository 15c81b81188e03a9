"""Tokenizers, sentences, normalisation and chat templates."""
