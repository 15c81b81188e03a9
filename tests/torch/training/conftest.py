"""Corpora for the tests of training."""

from tests.helpers.corpus import configure, unigram

__all__ = ["configure", "unigram"]
