"""Corpora for the tests of data preparation."""

from tests.helpers.corpus import configure, unigram

__all__ = ["configure", "unigram"]
