"""Any length and number of texts: nothing is lost or mixed up, and memory stays bounded."""

import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding import DecodeConfig
from outrider.errors import ConfigError
from outrider.runtime import Generator, Result, Translator

texts = st.lists(
    st.text(alphabet="aaabcA  .!?。你\n", max_size=90) | st.text(alphabet="ab", max_size=90),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(texts=texts, batch_tokens=st.integers(1, 400))
def test_no_sentence_is_lost_at_any_length(echo, characters, texts, batch_tokens) -> None:
    translator = Translator(echo(), characters, longest=12)
    said = translator.translate(texts, batch_tokens=batch_tokens)
    # Spaces between pieces may follow the target language, so compare without white space.
    assert ["".join(s.split()) for s in said] == ["".join(t.split()) for t in texts]
    assert [s.count("\n") for s in said] == [t.strip().count("\n") for t in texts]


@settings(max_examples=50, deadline=None)
@given(
    text=st.lists(
        st.sampled_from(["Abcd. ", "Abcd!  ", "Abcde\n", "Ab cd.\n\n", "\n  Abcd\n"])
    ).map("".join)
)
def test_white_space_between_sentences_is_restored(echo, characters, text) -> None:
    translator = Translator(echo(), characters, longest=9)
    assert translator.translate(text) == text.strip()


def test_one_text_gives_one_text(echo, characters) -> None:
    translator = Translator(echo(), characters, longest=99)
    assert translator.translate("abc") == "abc"
    assert translator.translate(["abc", "", "  ", "b"]) == ["abc", "", "", "b"]
    assert translator.translate([]) == []


def test_every_method_accepts_one_string_as_one_text(echo, characters) -> None:
    text, config = "abc", DecodeConfig(max_new_tokens=3)
    for made in (Translator(echo(), characters, longest=99), Generator(echo(), characters)):
        taking = {
            name: getattr(made, name)
            for name, method in inspect.getmembers(type(made), inspect.isfunction)
            if not name.startswith("_")
            and {"texts", "lines", "prompts"} & {*inspect.signature(method).parameters}
        }
        assert {"results", "works", "requests"} < taking.keys()
        for name, method in taking.items():
            how = {"config": config} if name in ("works", "requests") else {"max_new_tokens": 3}
            alone, among = method(text, **how), method([text], **how)
            if name in ("translate", "generate"):
                assert [alone] == among
            else:
                assert len(list(alone)) == len(list(among)) == 1, name


def test_every_sentence_of_a_line_is_one_row(echo, characters) -> None:
    backend = echo()
    translator = Translator(backend, characters, longest=512)
    assert translator.translate("Ab. Ac!  Ad?") == "Ab. Ac!  Ad?"
    assert translator.translate("Ab.\n\nAc. Ad.") == "Ab.\n\nAc. Ad."
    assert translator.translate("你好。你好！") == "你好。你好！"
    assert [rows for rows, *_ in backend.batches] == [3, 3, 2]


def test_split_false_keeps_lines_whole(echo, characters) -> None:
    backend = echo()
    translator = Translator(backend, characters, longest=16)
    assert translator.translate("Ab. Ac.", split=False) == "Ab. Ac."
    assert translator.translate("Ab. Ac.\nAd.", split=False) == "Ab. Ac.\nAd."
    # Longer than the model's limit: split into sentences.
    assert translator.translate("Ab. Ac. Abcd abcd.", split=False) == "Ab. Ac. Abcd abcd."
    assert list(translator.translate_iter(["Ab. Ac."], split=False)) == ["Ab. Ac."]
    assert [rows for rows, *_ in backend.batches] == [1, 2, 3, 1]
    config = DecodeConfig()
    assert [len(r) for r in translator.requests(["Ab. Ac."], config, split=False)] == [1]
    assert [len(r) for r in translator.requests(["Ab. Ac."], config)] == [2]


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet="abA .!?。你\n", max_size=80), split=st.booleans())
def test_nothing_is_lost_split_or_not(echo, characters, text, split) -> None:
    said = Translator(echo(), characters, longest=200).translate(text, split=split)
    assert "".join(said.split()) == "".join(text.split())


def test_a_very_long_line_does_not_affect_others(echo, characters) -> None:
    translator = Translator(echo(max_length=64), characters, longest=64)
    said = translator.translate(["a b", "a" * 5000, "\x00\ud800", "c"])
    # Pieces of a long word are joined by spaces.
    assert [text if n != 1 else text.replace(" ", "") for n, text in enumerate(said)] == [
        "a b",
        "a" * 5000,
        "?",
        "c",
    ]


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40), budget=st.integers(1, 2000))
def test_batches_stay_within_their_token_budget(echo, characters, lengths, budget) -> None:
    backend = echo()
    translator = Translator(backend, characters, longest=64)
    said = translator.translate(["a" * n for n in lengths], batch_tokens=budget)
    assert said == ["a" * n for n in lengths]
    for rows, source, capacity in backend.batches:
        assert rows == 1 or rows * (source + capacity) <= budget


def test_beams_count_against_the_budget(echo, characters) -> None:
    backend = echo()
    Translator(backend, characters, longest=64).translate(["abcd"] * 8, batch_tokens=400, beams=4)
    # (4 tokens + end + 3 * 4 + 30) for each of 4 beams: 2 rows fit
    assert [rows for rows, *_ in backend.batches] == [2, 2, 2, 2]


def test_n_best_and_scores(echo, characters) -> None:
    translator = Translator(echo(), characters, longest=64)
    (found,) = translator.results(["ab"], beams=3, n_best=3)
    assert found[0].text == "ab"
    assert [r.score for r in found] == sorted((r.score for r in found), reverse=True)
    assert translator.results(["ab", ""]) == [[Result("ab")], [Result("", 0.0)]]
    (scored,) = translator.results(["ab"], scores=True)
    assert scored[0].score < 0
    (cut,) = translator.results(["abc"], max_new_tokens=2)
    assert cut == [Result("ab", None, "length")]


def test_a_stream_is_read_in_growing_windows_and_kept_in_order(echo, characters) -> None:
    translator = Translator(echo(), characters, longest=64)
    read = 0

    def lines():
        nonlocal read
        for n in range(200):
            read += 1
            yield "a" * (n % 7)

    answers = translator.translate_iter(lines())
    first = next(answers)
    assert read == 32
    assert [first, *answers] == ["a" * (n % 7) for n in range(200)]


def test_a_window_of_one_yields_each_line_at_once(echo, characters) -> None:
    read = []

    def lines():
        for text in ("a", "b"):
            read.append(text)
            yield text

    answers = Translator(echo(), characters, longest=64).translate_iter(lines(), window=1)
    assert next(answers) == "a"
    assert read == ["a"]


def test_a_stream_yields_results_while_the_next_line_is_not_ready(echo, characters) -> None:
    backend = echo()
    ready = iter([True, False, True, True, True])
    answers = Translator(backend, characters, longest=64).translate_iter(
        ["a", "b", "aa", "ab", "ba"], ready=lambda: next(ready)
    )
    assert list(answers) == ["a", "b", "aa", "ab", "ba"]
    assert [rows for rows, *_ in backend.batches] == [2, 3]


def test_a_stream_of_huge_lines_reads_few_of_them_ahead(echo, characters, monkeypatch) -> None:
    monkeypatch.setattr("outrider.runtime.translator.WINDOW_CHARACTERS", 10)
    read = []

    def lines():
        for _ in range(9):
            read.append("a" * 6)
            yield read[-1]

    answers = Translator(echo(), characters, longest=64).translate_iter(lines())
    next(answers)
    assert len(read) == 2


def test_sampled_lines_do_not_depend_on_other_lines(echo, characters) -> None:
    translator = Translator(echo(), characters, longest=64)
    options = {"temperature": 8.0, "seed": 5, "max_new_tokens": 20}
    together = translator.translate(["ab", "abc. " * 30, "c"], batch_tokens=100, **options)
    alone = translator.translate("c", **{**options, "seed": 7})
    streamed = list(translator.translate_iter(["ab", "abc. " * 30, "c"], window=1, **options))
    assert together[2] == alone
    assert streamed == together


def test_invalid_arguments_are_named(echo, characters) -> None:
    translator = Translator(echo(), characters, longest=64)
    with pytest.raises(ConfigError, match=r"^beam: unknown key \(did you mean 'beams'\?\)"):
        translator.translate("a", beam=4)
    with pytest.raises(ConfigError, match=r"^batch_tokens: got 0, expected 1 to 1099511627776"):
        translator.translate("a", batch_tokens=0)
    with pytest.raises(ConfigError, match=r"^batch_tokens: got 0, expected 1 to 1099511627776"):
        list(translator.translate_iter(["a"], batch_tokens=0))
