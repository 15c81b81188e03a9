"""Sentences with faults are decoded another way, and none is lost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding import DecodeConfig, Hypothesis
from outrider.runtime import Translator
from outrider.runtime.revision import Reviser, advance, together
from outrider.text.sentences import Piece


@pytest.fixture(scope="module")
def looping(echo):
    """A model that writes `b` for `a`, and repeats `bA ` for sources of many tokens."""

    class Looping(echo):
        most = 9

        def extend(self, tokens, state, query, *, last=False):
            out = np.zeros((len(tokens), 1, self.vocab_size))
            for n, ((source, length), fed) in enumerate(zip(state.rows, tokens, strict=True)):
                place = length + len(fed) - 1
                if len(source) > self.most:
                    wanted = (5, 30, 31)[place % 3]
                else:
                    wanted = source[place] if place < len(source) else self.eos
                out[n, 0, 5 if wanted == 4 else wanted] = 10.0
                state.rows[n] = (source, length + len(fed))
            return query.answer(out)

    return Looping


def test_a_loop_is_decoded_again_in_parts(looping, characters) -> None:
    translator = Translator(looping(), characters, longest=99)
    (plain,) = translator.results("aaaa aaaa aaaa")[0]
    assert (plain.text[:12], plain.faults) == ("bA bA bA bA ", ())
    (guarded,) = translator.results("aaaa aaaa aaaa", guard=True)[0]
    assert guarded.faults == ("loop",), "both parts are too long"
    (found,) = translator.results("aaaaa aaaaaa", guard=True)[0]
    assert (found.text, found.faults, found.finish) == ("bbbbb bbbbbb", (), "eos")
    assert translator.translate("aaaaa aaaaaa", guard=True) == "bbbbb bbbbbb"
    assert list(translator.translate_iter(["aaaaa aaaaaa"], guard=True)) == ["bbbbb bbbbbb"]


def test_without_guard_nothing_is_checked(looping, characters, monkeypatch) -> None:
    translator = Translator(looping(), characters, longest=99)
    monkeypatch.setattr(Translator, "_reviser", None)
    assert translator.results("aaaaa aaaaaa")[0][0].faults == ()
    (work,) = translator.works("aaaaa aaaaaa", DecodeConfig())
    assert work.revise is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 14).map(lambda n: "ca"[n % 2] + "a" * n), min_size=1, max_size=8))
def test_every_sentence_is_accounted_for(looping, characters, words) -> None:
    translator = Translator(looping(), characters, longest=99)
    text = "".join(f"A{word}. " for word in words).strip()
    (work,) = translator.works(text, DecodeConfig(), guard=True)
    (plain,), (found,) = (translator.results(text, guard=guard)[0] for guard in (False, True))
    assert len(work.requests) == len(words)
    expected = ["A" + word.replace("a", "b") for word in words]
    for sentence, word in zip(expected, words, strict=True):
        if len(word) + 3 <= looping.most:
            assert f"{sentence}." in found.text
            assert f"{sentence}." in plain.text
    assert ("loop" in found.faults) == any(len(word) + 3 > looping.most for word in words)


def reviser(characters, echo, config=None, **facts) -> Reviser:
    translator = Translator(echo(), characters, longest=99, **facts)
    return Reviser(translator, config or DecodeConfig())


def written(characters, text: str, finish="eos") -> list[Hypothesis]:
    return [Hypothesis(tuple(characters.encode(text)), finish)]


def begin(made: Reviser, characters, source: str, first: list[Hypothesis]):
    piece = Piece(source, characters.encode(source))
    request = made.translator.request(piece.ids, max_new_tokens=None)
    steps = made(piece, request, first)
    return steps, *advance(steps, None)


def test_beam_search_is_the_second_attempt(characters, echo) -> None:
    made = reviser(characters, echo)
    bad, good = written(characters, "no " * 9), written(characters, "yes.")
    steps, requests, _ = begin(made, characters, "abc def", bad)
    assert [request.config.strategy for request in requests] == ["beam"]
    assert advance(steps, [good]) == ([], good)


def test_after_beam_search_the_second_attempt_is_greedy(characters, echo) -> None:
    made = reviser(characters, echo, DecodeConfig(beams=5))
    _, requests, _ = begin(made, characters, "abc", written(characters, "no " * 9))
    assert [request.config.strategy for request in requests] == ["greedy"]


def test_if_every_attempt_fails_the_least_bad_is_marked(characters, echo) -> None:
    made = reviser(characters, echo)
    loop, empty = written(characters, "no " * 9), written(characters, "...")
    steps, _, _ = begin(made, characters, "abc def", empty)
    _, _ = advance(steps, [loop])
    _, result = advance(steps, [empty, empty])
    assert result == [replace(loop[0], faults=("loop",))]
    steps, _, _ = begin(made, characters, "abc", loop)
    assert advance(steps, []) == ([], [replace(loop[0], faults=("loop",))]), "one word: no parts"


def test_stopped_sentences_are_not_decoded_again(characters, echo) -> None:
    for finish in ("deadline", "cancelled"):
        stopped = written(characters, "no " * 9, finish)
        assert begin(reviser(characters, echo), characters, "abc", stopped)[1:] == ([], stopped)


def test_alignments_of_parts_are_those_of_the_sentence(characters, echo) -> None:
    made = reviser(characters, echo)
    # As with SentencePiece, the tokens of the parts are those of the sentence.
    piece = Piece("abc! def", characters.encode("abc!def"))
    request = made.translator.request(piece.ids, max_new_tokens=None)
    steps = made(piece, request, written(characters, "no " * 9))
    advance(steps, None)
    requests, _ = advance(steps, [])
    assert [characters.decode(request.source) for request in requests] == ["abc!", "def"]
    parts = [
        Hypothesis(tuple(characters.encode("xy ")), "eos", alignment=(0, 1, 4)),
        Hypothesis(tuple(characters.encode("z")), "eos", alignment=(2,)),
    ]
    _, (joined,) = advance(steps, [[part] for part in parts])
    assert characters.decode(joined.tokens) == "xy z"
    assert joined.alignment == (0, 1, 4, 6)


def test_generators_run_together() -> None:
    def one(steps: int):
        total = 0
        for step in range(steps):
            (answer,) = yield [step]
            total += answer
        return [total]

    steps = together([one(2), one(0), one(1)])
    assert advance(steps, None) == ([0, 0], None)
    assert advance(steps, [5, 7]) == ([1], None)
    assert advance(steps, [1]) == ([], [[6], [0], [7]])
