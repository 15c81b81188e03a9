"""Decoding a list by one mode or strategy, for tests that say which."""

from collections.abc import Sequence
from typing import Any

from outrider.decoding import Backend, DecodeConfig, Hypothesis, Request, decode

__all__ = ["beam", "greedy", "parallel", "sample", "tandem"]


def _single(
    backend: Backend, requests: Sequence[Request], config: DecodeConfig, **options: Any
) -> list[Hypothesis]:
    return [best for (best,) in decode(backend, requests, config, **options)]


def greedy(
    backend: Backend, requests: Sequence[Request], config: DecodeConfig, **options: Any
) -> list[Hypothesis]:
    """Whatever the config says of drafts, not one is made."""
    config = config.changed(mode="ar", strategy="greedy")
    return _single(backend, requests, config, **options)


def sample(
    backend: Backend, requests: Sequence[Request], config: DecodeConfig, **options: Any
) -> list[Hypothesis]:
    assert (config.mode, config.strategy) == ("ar", "sample")
    return _single(backend, requests, config, **options)


def tandem(
    backend: Backend, requests: Sequence[Request], config: DecodeConfig, **options: Any
) -> list[Hypothesis]:
    assert config.mode == "tandem"
    if (controller := options.pop("controller", None)) is not None:
        options["controllers"] = {config.draft: controller}
    return _single(backend, requests, config, **options)


def beam(
    backend: Backend, requests: Sequence[Request], config: DecodeConfig
) -> list[list[Hypothesis]]:
    assert config.strategy == "beam"
    return decode(backend, requests, config)


def parallel(
    backend: Backend, requests: Sequence[Request], config: DecodeConfig, **options: Any
) -> list[list[Hypothesis]]:
    assert config.mode == "parallel"
    return decode(backend, requests, config, **options)
