"""Continuing prompts of any length, alone and in batches."""

import pytest

from outrider.decoding import DecodeConfig
from outrider.errors import InputError
from outrider.runtime import Generator


def test_continues_with_new_text_only(echo, characters) -> None:
    generator = Generator(echo(), characters)
    assert generator.generate("a ", max_new_tokens=3) == "bbb"
    assert generator.generate(["", "abc"], max_new_tokens=2) == ["bb", "bb"]


def test_a_long_prompt_keeps_its_end(echo, characters) -> None:
    generator = Generator(echo(max_length=16), characters)
    assert generator.generate(["a" * 999, "a"], max_new_tokens=4) == ["bbbb", "bbbb"]


def test_new_tokens_stop_where_the_model_stops(echo, characters) -> None:
    (found,) = Generator(echo(max_length=16), characters).results(["abc"], max_new_tokens=99)
    assert found[0].finish == "length"
    assert 0 < len(found[0].text) <= 16


@pytest.mark.parametrize(
    ("asked", "prompt", "written"),
    [(4, 12, 4), (6, 10, 6), (8, 8, 8), (15, 8, 8), (16, 8, 8), (1000, 8, 8), (None, 8, 8)],
)
def test_a_prompt_keeps_half_of_the_positions(echo, characters, asked, prompt, written) -> None:
    """The prompt keeps half of 16 positions; the requested tokens may take the rest."""
    generator, text = Generator(echo(max_length=16), characters), "abcdefghijklmnopqrst"
    config = DecodeConfig(max_new_tokens=asked)
    (request,) = generator.requests([text], config)
    assert characters.decode(request.prompt) == text[-prompt:]
    ((best,),) = generator.results([text], **({} if asked is None else {"max_new_tokens": asked}))
    assert len(best.tokens) == written
    (request,) = generator.requests(["abc"], config)
    assert characters.decode(request.prompt) == "abc"


@pytest.mark.parametrize("positions", [1, 2, 3])
def test_few_positions_keep_the_end_of_a_prompt_or_are_refused(echo, characters, positions) -> None:
    generator = Generator(echo(max_length=positions), characters)
    if positions == 1:
        with pytest.raises(InputError, match="a prompt of 1 tokens leaves no position for"):
            generator.generate("abc")
    else:
        assert len(generator.requests(["abc"], DecodeConfig())[0].prompt) == positions - 1
        assert generator.generate("abc")


def test_prompt_number_i_draws_with_seed_plus_i(echo, characters) -> None:
    generator = Generator(echo(), characters)
    options = {"temperature": 9.0, "max_new_tokens": 12}
    one, two, three = generator.generate(["a", "a", "abc"], seed=4, **options)
    assert one != two
    assert generator.generate("a", seed=5, **options) == two
    assert generator.generate("abc", seed=6, **options) == three
