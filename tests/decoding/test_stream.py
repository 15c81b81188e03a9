"""A row's random numbers: different for every seed, equal for equal seeds."""

from outrider.decoding import DecodeConfig, Request
from outrider.decoding.sampling import Stream
from tests.helpers.loops import sample


def test_every_seed_of_64_bits_has_different_numbers() -> None:
    seeds = [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**32, 2**63, 2**64 - 1, 2**64 + 9]
    drawn = [tuple(Stream(seed).draw(4)) for seed in seeds]
    assert len(set(drawn)) == len(seeds)
    assert all(0 <= number < 1 for one in drawn for number in one)
    assert Stream(2**40).draw(3) == Stream(2**40).draw(3)


def test_a_stream_continues() -> None:
    for seed in (3, 2**40):
        stream, whole = Stream(seed), Stream(seed).draw(6)
        assert [*stream.draw(2), stream.draw(), *stream.draw(3)] == whole


def test_long_seeds_give_different_texts(toy) -> None:
    config = DecodeConfig(strategy="sample", max_new_tokens=12, min_new_tokens=12)
    requests = [Request(seed=5 + n * 2**32) for n in range(4)]
    assert len({one.tokens for one in sample(toy(), requests, config)}) == 4
