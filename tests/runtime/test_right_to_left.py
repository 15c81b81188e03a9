"""A right-to-left model writes the mirror of a left-to-right model, and normal texts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.decoding import Hypothesis
from outrider.decoding.parallel import rescore
from outrider.errors import ConfigError, ModelError
from outrider.formats.folder import read_config
from outrider.formats.spec import LanguageModelSpec, build_spec
from outrider.runtime import Translator, load
from outrider.show.tandem_trace import trace_text
from outrider.torch.export import export_copy, export_ctranslate2, export_marian
from outrider.torch.inspect.attention_maps import read_maps
from outrider.torch.inspect.effort import read_effort
from outrider.torch.models import Seq2Seq
from tests.helpers import tiny
from tests.helpers.drafted import TEXT, save_translator

SENTENCES = TEXT[:3]
MODES: list[dict[str, Any]] = [
    {},
    {"beams": 3, "n_best": 3},
    {"temperature": 0.9, "top_k": 20, "seed": 5},
    {"candidates": 3, "n_best": 2, "temperature": 1.0, "seed": 5},
    {"mode": "tandem", "draft_tokens": 3},
    {"mode": "tandem", "draft_tokens": 3, "temperature": 0.9, "seed": 5},
    {"mode": "tandem", "draft_tokens": 3, "gamma": 0.3},
    {"mode": "parallel", "decoder": "ctc"},
    {"mode": "parallel", "decoder": "ctc", "candidates": 3},
    {"mode": "parallel", "decoder": "drafter", "iterations": 1},
]


def mirror(folder: Path, to: Path) -> Path:
    """Copy a model; the same weights now generate the last token first."""
    shutil.copytree(folder, to)
    path = to / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"right_to_left": True}))
    return to


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home = tmp_path_factory.mktemp("mirror")
    usual = save_translator(home / "usual", ctc=True)
    return usual, mirror(usual, home / "turned")


@pytest.fixture(scope="module")
def usual(folders: tuple[Path, Path]) -> Translator:
    return load(folders[0], device="cpu")


@pytest.fixture(scope="module")
def turned(folders: tuple[Path, Path]) -> Translator:
    return load(folders[1], device="cpu")


@pytest.mark.parametrize("options", MODES, ids=str)
def test_the_same_weights_write_the_reverse(usual, turned, options: dict[str, Any]) -> None:
    options = {"max_new_tokens": 12, **options}
    found = usual.results(SENTENCES, **options)
    assert any(one.tokens != one.tokens[::-1] for row in found for one in row), "tests nothing"
    for straight, reverse in zip(found, turned.results(SENTENCES, **options), strict=True):
        for one, other in zip(straight, reverse, strict=True):
            assert other.tokens == one.tokens[::-1]
            assert other.text == turned.tokenizer.decode(other.tokens).strip()
            assert (other.score, other.finish, other.rounds) == (one.score, one.finish, one.rounds)


def test_sentences_keep_their_order(turned) -> None:
    first, second = TEXT[3].split(". ")
    apart = turned.translate([f"{first}.", second], max_new_tokens=9)
    assert turned.translate(TEXT[3], max_new_tokens=9) == " ".join(apart)
    ((whole,),) = turned.results([TEXT[3]], max_new_tokens=9)
    pieces = turned.results([f"{first}.", second], max_new_tokens=9)
    assert whole.tokens == tuple(token for ((piece),) in pieces for token in piece.tokens)


@pytest.mark.parametrize("options", MODES[:1] + MODES[4:5] + MODES[7:8], ids=str)
def test_batched_equals_alone(turned, options: dict[str, Any]) -> None:
    together = turned.translate(TEXT, max_new_tokens=20, **options)
    assert together == [turned.translate(one, max_new_tokens=20, **options) for one in TEXT]
    assert list(turned.translate_iter(TEXT, window=1, max_new_tokens=20, **options)) == together


def test_tandem_equals_greedy(turned) -> None:
    assert turned.translate(TEXT, mode="tandem") == turned.translate(TEXT)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_the_native_core_equals_pytorch(folders, turned, options: dict[str, Any]) -> None:
    pytest.importorskip("outrider_native", reason="outrider-native is not installed")
    native = load(folders[1], backend="native", dtype="float32")
    options = {"max_new_tokens": 12, **options}
    for ours, theirs in zip(
        native.results(SENTENCES, **options), turned.results(SENTENCES, **options), strict=True
    ):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]


def test_int8_writes_the_reverse(folders) -> None:
    pytest.importorskip("outrider_native", reason="outrider-native is not installed")
    usual, turned = (load(folder, backend="native", dtype="int8") for folder in folders)
    for mode in ("ar", "tandem"):
        options = {"mode": mode, "max_new_tokens": 12}
        found = (model.results(SENTENCES, **options) for model in (usual, turned))
        for (straight, *_), (reverse, *_) in zip(*found, strict=True):
            assert reverse.tokens == straight.tokens[::-1]


def test_a_folder_stores_the_key_and_it_may_be_missing(folders, tmp_path: Path) -> None:
    model = tiny.seq2seq(right_to_left=True)
    model.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["right_to_left"] is True
    assert Seq2Seq.from_pretrained(tmp_path / "saved").config.right_to_left
    assert read_config(tmp_path / "saved").right_to_left
    path = folders[0] / "config.json"
    without = {k: v for k, v in json.loads(path.read_text()).items() if k != "right_to_left"}
    old = Path(shutil.copytree(folders[0], tmp_path / "old"))
    (old / "config.json").write_text(json.dumps(without))
    assert not read_config(old).right_to_left
    copy = export_copy(folders[1], tmp_path / "copy", dtype="float32")
    assert load(copy).translate(SENTENCES) == load(folders[1]).translate(SENTENCES)


def test_it_rescores_the_output_of_another_model(usual, turned) -> None:
    """The score is the mean log-probability of the training labels."""
    source = turned.source(turned.tokenizer.encode(TEXT[0]))
    (found,) = usual.results([TEXT[0]], beams=4, n_best=4)
    texts = [Hypothesis(turned.turned(one.tokens), one.finish) for one in found]
    backend = turned.backend
    room = max(len(one.tokens) for one in texts) + 1
    (rated,) = rescore(backend, backend.encode([source], capacity=[room]), [texts])
    assert [one.score for one in rated] == sorted((one.score for one in rated), reverse=True)
    for one in rated:
        labels = torch.tensor([[*one.tokens, *[backend.eos] * (one.finish == "eos")]])
        with torch.no_grad():
            logits = backend.model(input_ids=torch.tensor([source]), labels=labels).logits
        wanted = logits.log_softmax(-1).gather(-1, labels[..., None]).mean()
        assert one.score == pytest.approx(float(wanted), abs=1e-5)
    assert {turned.turned(one.tokens) for one in rated} == {one.tokens for one in found}


def test_maps_and_traces_are_in_reading_order(usual, turned) -> None:
    ours, theirs = read_maps(turned, TEXT[0]), read_maps(usual, TEXT[0])
    assert ours.output != theirs.output
    for one, other in zip(ours.parts, theirs.parts, strict=True):
        assert (one.queries, one.keys) == (other.queries, other.keys)
        torch.testing.assert_close(one.weights_LHTS, other.weights_LHTS)
    options = {"mode": "tandem", "max_new_tokens": 12}
    traces = [trace_text(model, TEXT[0], options) for model in (turned, usual)]
    assert traces[0].rounds == traces[1].rounds
    assert traces[0].text == turned.translate(TEXT[0], **options)


def test_effort_is_in_reading_order(tmp_path: Path) -> None:
    cores = {"pondering": {"bias": -1.0, "steps": 4}, "decoder_core": "gru"}
    folder = save_translator(tmp_path / "usual", drafter=False, **cores)
    usual, turned = (load(one, device="cpu") for one in (folder, mirror(folder, tmp_path / "t")))
    ((one,), (other,)) = (read_effort(model, TEXT[0]) for model in (usual, turned))
    assert one.labels != one.labels[::-1]
    assert other.labels == one.labels
    assert torch.equal(one.taken_T, other.taken_T)


def test_export_formats_without_the_key_refuse_it(tmp_path: Path) -> None:
    model = tiny.marian_like(right_to_left=True, vocab_size=64)
    folder = save_translator(tmp_path / "ours", drafter=False)
    model.save_pretrained(folder)
    with pytest.raises(ModelError, match="right_to_left is True; a Marian model has False"):
        export_marian(folder, tmp_path / "marian")
    pytest.importorskip("ctranslate2")
    with pytest.raises(ModelError, match="right_to_left is True; a CTranslate2 model has False"):
        export_ctranslate2(folder, tmp_path / "ct2")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_a_language_model_has_no_such_key() -> None:
    with pytest.raises(ConfigError, match="right_to_left: unknown key of LanguageModelConfig"):
        build_spec(LanguageModelSpec, {"right_to_left": True})
