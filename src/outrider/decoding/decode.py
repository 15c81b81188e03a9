"""One entry for all modes and strategies: the config names the loop."""

from collections.abc import Sequence

from outrider.decoding.beam import beam
from outrider.decoding.config import DecodeConfig
from outrider.decoding.greedy import greedy
from outrider.decoding.mask import check_suppress
from outrider.decoding.memory import enough_memory
from outrider.decoding.parallel import parallel
from outrider.decoding.policy import DraftPolicy
from outrider.decoding.protocol import Backend
from outrider.decoding.request import Hypothesis, Request
from outrider.decoding.sample import sample
from outrider.decoding.statistics import Statistics
from outrider.decoding.tandem import tandem

__all__ = ["decode"]


def decode(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeConfig,
    *,
    policy: DraftPolicy | None = None,
    stats: Statistics | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each request, best first, in the order of the requests.

    Args:
        backend: Who computes.
        requests: One for each row.
        config: Mode, strategy and their settings.
        policy: What blocks cost on this machine; lets tandem decoding choose their size.
        stats: Told how tandem and parallel decoding went.
    """
    check_suppress(config, backend.vocab_size, backend.ends)
    with enough_memory(config, rows=len(requests)):
        if config.mode == "parallel":
            return parallel(backend, requests, config, stats=stats)
        if config.strategy == "beam":
            return beam(backend, requests, config)
        if config.mode == "tandem":
            found = tandem(backend, requests, config, policy=policy, stats=stats)
        else:
            loop = greedy if config.strategy == "greedy" else sample
            found = loop(backend, requests, config)
        return [[hypothesis] for hypothesis in found]
