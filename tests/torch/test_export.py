"""An exported folder is a Marian model for transformers and equals the original in Outrider."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import MarianMTModel, MarianTokenizer

from outrider.cli.main import run
from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import ConfigError, ModelError
from outrider.formats.weights import read_weights
from outrider.runtime import Translator, load
from outrider.torch.export import export_copy, export_marian
from tests.helpers import drafted, tiny

TEXT = ["the cat sees the dog", "the dog sees a cat", "a bird sings in the tree"] * 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = train_tokenizer(iter(TEXT), TokenizerConfig(kind="unigram", vocab_size=400))
    model = tiny.marian_like(vocab_size=tokenizer.vocab_size)
    model.save_pretrained(tmp_path / "ours")
    tokenizer.save(tmp_path / "ours")
    return tmp_path / "ours"


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")  # from MarianTokenizer
def test_transformers_reads_it_and_writes_the_same(folder: Path, tmp_path: Path) -> None:
    target = export_marian(folder, tmp_path / "new" / "marian")
    theirs = MarianMTModel.from_pretrained(target).eval()
    words = MarianTokenizer.from_pretrained(target)
    ours = load(folder)
    batch = words(["the dog sees the bird"], return_tensors="pt")
    assert batch["input_ids"][0].tolist() == [*ours.tokenizer.encode("the dog sees the bird"), 1]
    with torch.no_grad():
        written = theirs.generate(**batch, max_new_tokens=8, num_beams=1, do_sample=False)
    text = words.decode(written[0], skip_special_tokens=True)
    text = text.replace("\ufffd", "")  # incomplete characters, which Outrider omits
    assert ours.translate("the dog sees the bird", max_new_tokens=8) == text
    assert load(target).translate("the dog sees the bird", max_new_tokens=8) == text


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(folder), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "source.spm").exists()
    assert run(["export", str(folder), str(tmp_path / "out")]) == 2
    assert run(["export", str(folder), str(tmp_path / "b"), "--to", "onnx"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line]
    assert "exists already; name a new folder" in said[0]
    assert "--to: got 'onnx', expected marian" in said[1]


def test_a_refused_export_leaves_no_files(folder: Path, tmp_path: Path) -> None:
    tiny.seq2seq(vocab_size=400).save_pretrained(folder)
    with pytest.raises(ModelError, match="norm is 'pre'; a Marian model has 'post'"):
        export_marian(folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]


def test_language_models_are_refused(folder: Path, tmp_path: Path) -> None:
    tiny.language_model(vocab_size=400).save_pretrained(folder)
    with pytest.raises(ModelError, match="is a language model; Marian models translate"):
        export_marian(folder, tmp_path / "out")


def test_a_smaller_copy_has_all_decoding_modes(tmp_path: Path) -> None:
    source = drafted.save_translator(tmp_path / "whole", ctc=True)
    (source / "README.md").write_text("# card\n", encoding="utf-8")
    (source / "model-notes.bin").write_bytes(b"no")
    assert run(["export", str(source), str(tmp_path / "small"), "--to", "outrider"]) == 0
    copy = export_copy(source, tmp_path / "half", dtype="bfloat16")
    for part in (".", "drafter", "ctc"):
        kinds = {weight.kind for weight in read_weights(copy / part).values()}
        assert kinds - {"int64"} == {"bfloat16"}
        assert (copy / part / "config.json").is_file()
    assert (copy / "README.md").read_text(encoding="utf-8") == "# card\n"
    assert not (copy / "model-notes.bin").exists()
    loaded, exact = load(copy), load(tmp_path / "small")
    assert isinstance(loaded, Translator)
    assert isinstance(exact, Translator)
    text = "two men play"
    assert loaded.translate(text, mode="tandem") == loaded.translate(text)
    assert loaded.translate(text, mode="parallel") is not None
    original = load(source)
    assert isinstance(original, Translator)
    assert exact.translate(text) == original.translate(text)


def test_a_copy_in_int8_is_rounded_as_in_the_native_core(tmp_path: Path) -> None:
    source = drafted.save_translator(tmp_path / "whole", ctc=True)
    copy, again = tmp_path / "int8", tmp_path / "again"
    command = ["export", str(source), str(copy), "--to", "outrider", "--dtype", "int8"]
    assert run(command) == 0
    export_copy(copy, again, dtype="int8")
    for part in (".", "drafter", "ctc"):
        exact, small, same = (read_weights(one / part) for one in (source, copy, again))
        assert small.keys() == exact.keys()
        for name, weight in small.items():
            assert weight.shape == exact[name].shape
            np.testing.assert_array_equal(weight.data, same[name].data)
            if weight.scale is None:
                assert weight.kind == exact[name].kind
                continue
            step = np.abs(exact[name].as_float32()).max(1, keepdims=True) / 127
            assert (np.abs(weight.as_float32() - exact[name].as_float32()) <= 0.51 * step).all()
        assert any(weight.kind == "int8" for weight in small.values())
    text = "two men play"
    for backend in ("torch", "native"):
        loaded = load(copy, backend=backend)
        assert isinstance(loaded, Translator)
        assert loaded.translate(text, mode="tandem") == loaded.translate(text)
    assert load(copy, dtype="float32").translate(text) == load(again, dtype="float32").translate(
        text
    )


def test_embeddings_may_be_int4(folder: Path, tmp_path: Path) -> None:
    words = load(folder).tokenizer.vocab_size
    tiny.marian_like(vocab_size=words, hidden_size=32).save_pretrained(folder)
    copy = export_copy(folder, tmp_path / "int4", dtype="int8", int4=["embeddings"])
    exact, small = read_weights(folder), read_weights(copy)
    kinds = {name: weight.kind for name, weight in small.items() if weight.scale is not None}
    assert kinds.pop("tokens.weight") == "int4"
    assert set(kinds.values()) == {"int8"}
    table, before = small["tokens.weight"], exact["tokens.weight"]
    assert table.data.nbytes * 8 == before.data.nbytes
    error = np.square(table.as_float32() - before.as_float32()).mean()
    assert 0 < error < 0.01 * np.square(before.as_float32()).mean()
    text = "the dog sees the bird"
    torch_side, core = (load(copy, backend=one, dtype="float32") for one in ("torch", "native"))
    assert torch_side.translate(text) == core.translate(text)
    assert load(copy, backend="native").translate(text) is not None
    narrow = drafted.save_translator(tmp_path / "narrow")
    with pytest.raises(ConfigError, match=r"a multiple of 32, 'tokens.weight' has 16"):
        export_copy(narrow, tmp_path / "new", dtype="int8", int4=["embeddings"])


def test_invalid_options_of_copies_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = drafted.save_translator(tmp_path / "whole")
    with pytest.raises(ConfigError, match="int3"):
        export_copy(source, tmp_path / "new", dtype="int3")
    assert not (tmp_path / "new").exists()
    for dtype, part, said in (
        ("int8", "attention", "int4: got 'attention', expected embeddings or feedforward"),
        ("float16", "embeddings", "int4: goes with dtype int8, got float16"),
    ):
        with pytest.raises(ConfigError, match=said):
            export_copy(source, tmp_path / "new", dtype=dtype, int4=[part])
    with pytest.raises(ModelError, match="exists already"):
        export_copy(source, source, dtype="float32")
    assert run(["export", str(source), str(tmp_path / "new"), "--dtype", "float16"]) == 2
    assert "--dtype: has no effect" in capsys.readouterr().err
