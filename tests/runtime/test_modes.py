"""Decoding modes: the same text, statistics on request, and error messages."""

from copy import copy

import pytest

from outrider.decoding import DecodeConfig
from outrider.decoding.statistics import Statistics
from outrider.errors import ConfigError, ModelError
from outrider.runtime import load
from tests.helpers.drafted import TEXT, save_language_model, save_translator


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return load(save_translator(tmp_path_factory.mktemp("translator")), device="cpu")


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    return load(save_language_model(tmp_path_factory.mktemp("generator")), device="cpu")


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    folder = save_translator(tmp_path_factory.mktemp("parallel"), ctc=True)
    return load(folder, device="cpu")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model without a drafter or CTC decoder."""
    folder = save_translator(tmp_path_factory.mktemp("plain"), drafter=False)
    return load(folder, device="cpu")


@pytest.mark.parametrize("options", [{}, {"draft_tokens": 3}, {"strict": True}], ids=str)
def test_tandem_equals_ar(translator, options) -> None:
    expected = translator.translate(TEXT, max_new_tokens=20)
    assert translator.translate(TEXT, mode="tandem", max_new_tokens=20, **options) == expected
    assert translator.translate(TEXT[0], mode="tandem", max_new_tokens=20) == expected[0]


def test_statistics_come_with_the_text(translator) -> None:
    options = {"mode": "tandem", "draft_tokens": 4, "max_new_tokens": 12}
    texts, stats = translator.translate(TEXT, stats=True, **options)
    assert texts == translator.translate(TEXT, **options)
    assert isinstance(stats, Statistics)
    written = [result[0] for result in translator.results(TEXT, **options)]
    emitted = sum(len(r.tokens) + (r.finish == "eos") for r in written)
    assert stats.tokens == emitted
    assert stats.rounds == sum(len(r.rounds) for r in written)
    assert stats.tokens_per_round == emitted / stats.rounds
    assert len(stats.acceptance_by_position) == 4
    assert stats.seconds["verify"] > 0
    text, _ = translator.translate(TEXT[1], stats=True, **options)
    assert text == texts[1]


def test_statistics_add_up_over_a_stream(translator) -> None:
    options = {"mode": "tandem", "draft_tokens": 4, "max_new_tokens": 12}
    _, together = translator.translate(TEXT, stats=True, **options)
    stats = Statistics()
    found = list(translator.results_iter(TEXT, window=1, stats=stats, **options))
    assert len(found) == len(TEXT)
    assert (stats.rounds, stats.accepted) == (together.rounds, together.accepted)
    assert stats.rounds > len(TEXT)


def test_plain_decoding_has_statistics_too(plain) -> None:
    texts, stats = plain.translate(TEXT, split=False, stats=True, max_new_tokens=4)
    assert texts == plain.translate(TEXT, split=False, max_new_tokens=4)
    assert (stats.plain_rows, stats.rounds) == (len(TEXT), 0)
    assert stats.seconds["plain"] > 0


def test_a_result_has_its_tokens_and_rounds(translator) -> None:
    ((ar, *_),) = translator.results([TEXT[0]], max_new_tokens=12)
    options = {"mode": "tandem", "draft_tokens": 4, "max_new_tokens": 12}
    ((tandem, *_),) = translator.results([TEXT[0]], **options)
    assert tandem == ar
    assert tandem.tokens == ar.tokens
    assert ar.rounds == ()
    spelled = [t for r in tandem.rounds for t in (*r.drafted[: r.accepted], r.token) if t]
    assert [t for t in spelled if t != translator.backend.eos] == list(ar.tokens)


def test_a_language_model_has_the_modes_too(generator) -> None:
    expected = generator.generate(["two ", "a"], max_new_tokens=9)
    texts, stats = generator.generate(["two ", "a"], mode="tandem", max_new_tokens=9, stats=True)
    assert texts == expected
    assert stats.tokens == 18 or stats.plain_rows == 2
    assert generator.generate("a", mode="tandem", max_new_tokens=9) == expected[1]


def test_tandem_samples_by_the_seed(generator) -> None:
    options = {"mode": "tandem", "temperature": 1.5, "max_new_tokens": 9}
    one, two = generator.generate(["a", "a"], seed=3, **options)
    assert generator.generate("a", seed=4, **options) == two
    assert generator.generate("a", seed=3, **options) == one


def test_the_controller_is_kept_between_calls(translator) -> None:
    translator.controllers.clear()
    translator.translate("a", mode="tandem", max_new_tokens=9)
    first = translator.controllers["drafter"]
    translator.translate("a", mode="tandem", max_new_tokens=9)
    assert translator.controllers["drafter"] is first
    assert not first.drafts(1)  # only the first text was drafted


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_copies_of_the_source_need_no_drafter(tmp_path, backend) -> None:
    if backend == "native":
        pytest.importorskip("outrider_native", reason="outrider-native is not installed")
    options = {"max_new_tokens": 12, "batch_tokens": 200}
    for save in (save_translator, save_language_model):
        model = load(save(tmp_path / save.__name__, drafter=False), device="cpu", backend=backend)
        write = model.translate if save is save_translator else model.generate
        expected = write(TEXT, **options)
        for more in ({}, {"draft_tokens": 3}, {"strict": True}):
            found, stats = write(TEXT, mode="tandem", draft="source", stats=True, **more, **options)
            assert found == expected
            assert stats.rounds or "draft_tokens" not in more
        drawn = {"temperature": 0.7, "seed": 3, "draft": "source", **options}
        assert write(TEXT[:1], **drawn) == write(TEXT, **drawn)[:1]
        with pytest.raises(ModelError, match="no drafter"):
            write("a", mode="tandem")


def test_the_source_is_copied_in_tokens_of_the_target(plain) -> None:
    """The source is encoded with the target's tokenizer, in generation order."""
    config = plain_config(draft="source")
    ((request,),) = plain.requests("a dog", config)
    assert request.text == tuple(plain.tokenizer.encode_target_batch(["a dog"])[0])
    turned = copy(plain)
    turned.right_to_left = True
    ((other,),) = turned.requests("a dog", config)
    assert other.text == request.text[::-1]
    ((usual,),) = plain.requests("a dog", plain_config())
    assert usual.text == ()


def plain_config(**options):
    return DecodeConfig(mode="tandem", **options)


def test_a_missing_part_is_named_with_the_fix(plain) -> None:
    with pytest.raises(ModelError, match=r"no drafter.*mode tandem.*outrider train .*drafter"):
        plain.translate("a", mode="tandem")
    with pytest.raises(ModelError, match=r"no CTC decoder; train one .*model.type: ctc"):
        plain.translate("a", mode="parallel", decoder="ctc")
    with pytest.raises(ModelError, match="needs a CTC decoder or a drafter"):
        plain.translate("a", mode="parallel")
    with pytest.raises(ModelError, match=r"no drafter.*mode parallel"):
        plain.translate("a", mode="parallel", decoder="drafter")


def test_too_long_a_draft_is_refused(translator) -> None:
    with pytest.raises(ConfigError, match=r"draft_tokens: got 7, but this drafter .* at most 6"):
        translator.translate("a", mode="tandem", draft_tokens=7)


def test_a_batch_of_tandem_leaves_room_for_blocks(translator) -> None:
    """A budget for two plain rows holds fewer rows with blocks; the text stays the same."""
    expected = translator.translate(TEXT, max_new_tokens=10)
    options = {"mode": "tandem", "max_new_tokens": 10, "batch_tokens": 64}
    assert translator.translate(TEXT, **options) == expected


@pytest.mark.parametrize(
    "options",
    [{}, {"decoder": "drafter"}, {"iterations": 1}, {"candidates": 2, "batch_tokens": 100}],
    ids=str,
)
def test_parallel_output_does_not_depend_on_the_batch(parallel, options) -> None:
    options = {"mode": "parallel", "max_new_tokens": 12, **options}
    texts, stats = parallel.translate(TEXT, stats=True, **options)
    assert isinstance(stats, Statistics)
    assert list(parallel.translate_iter(TEXT, window=1, **options)) == texts
    assert any(texts)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_language_model_continues_in_blocks(backend, tmp_path) -> None:
    writer = load(save_language_model(tmp_path), backend=backend, dtype="float32")
    options = {"mode": "parallel", "max_new_tokens": 12}
    text, stats = writer.generate("two men", stats=True, **options)
    assert stats.rounds < stats.tokens, "several tokens a round"
    assert writer.generate(["two men", "a dog runs"], **options)[0] == text
    assert writer.generate("two men", iterations=2, **options) is not None
