"""Decode a list with one mode or strategy."""

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
    """Decode without drafts, whatever the config says about them."""
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
