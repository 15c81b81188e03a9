"""Corpora for the tests of tokenizers."""

from tests.helpers.corpus import configure, unigram

__all__ = ["configure", "unigram"]
