"""Continuing prompts: of any length, in any company."""

from outrider.runtime import Generator


def test_continues_with_new_text_only(echo, characters) -> None:
    generator = Generator(echo(), characters)
    assert generator.generate("a ", max_new_tokens=3) == "bbb"
    assert generator.generate(["", "abc"], max_new_tokens=2) == ["bb", "bb"]


def test_of_an_endless_prompt_the_end_is_kept(echo, characters) -> None:
    generator = Generator(echo(max_length=16), characters)
    assert generator.generate(["a" * 999, "a"], max_new_tokens=4) == ["bbbb", "bbbb"]


def test_new_tokens_stop_where_the_model_stops(echo, characters) -> None:
    (found,) = Generator(echo(max_length=16), characters).results(["abc"], max_new_tokens=99)
    assert found[0].finish == "length"
    assert 0 < len(found[0].text) <= 16


def test_prompt_number_i_draws_with_seed_plus_i(echo, characters) -> None:
    generator = Generator(echo(), characters)
    options = {"temperature": 9.0, "max_new_tokens": 12}
    one, two, three = generator.generate(["a", "a", "abc"], seed=4, **options)
    assert one != two
    assert generator.generate("a", seed=5, **options) == two
    assert generator.generate("abc", seed=6, **options) == three
