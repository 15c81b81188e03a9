"""A row's random numbers: those of PyTorch for short seeds, and other ones for every long seed."""

import torch

from outrider.decoding import DecodeConfig, Request, sample
from outrider.decoding.stream import Stream


def test_short_seeds_draw_what_they_always_drew() -> None:
    expected = torch.empty(5, dtype=torch.float64)
    for seed in (0, 7, 2**32 - 1):
        expected.uniform_(generator=torch.Generator().manual_seed(seed))
        assert Stream(seed).draw(5).equal(expected)


def test_every_seed_of_64_bits_has_its_own_numbers() -> None:
    seeds = [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**32, 2**63, 2**64 - 1, 2**64 + 9]
    drawn = [Stream(seed).draw(4) for seed in seeds]
    assert len({tuple(one.tolist()) for one in drawn}) == len(seeds)
    assert all(((one >= 0) & (one < 1)).all() for one in drawn)
    assert Stream(2**40).draw(3).equal(Stream(2**40).draw(3))


def test_a_stream_goes_on() -> None:
    for seed in (3, 2**40):
        stream, whole = Stream(seed), Stream(seed).draw(6)
        assert torch.cat([stream.draw(2), stream.draw(4)]).equal(whole)


def test_long_seeds_say_different_things(toy) -> None:
    config = DecodeConfig(strategy="sample", max_new_tokens=12, min_new_tokens=12)
    requests = [Request(seed=5 + n * 2**32) for n in range(4)]
    assert len({one.tokens for one in sample(toy(), requests, config)}) == 4
