"""The light install: decoding in every mode, from Outrider and Marian folders."""

from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.backends.native import NativeBackend
from outrider.errors import ConfigError, ModelError
from outrider.formats.readers.marian import import_config, stacked_names
from outrider.formats.spec import Seq2SeqSpec
from outrider.runtime import Generator, Translator
from tests.helpers import plain_folder

TEXTS = ["Where is the station?", "It is late. We should go home now.", ""]


@pytest.fixture(scope="module")
def translator(demo: Path) -> Translator:
    loaded = outrider.load(demo, backend="auto")
    assert isinstance(loaded, Translator)
    return loaded


def test_the_native_core_runs_the_demo(translator: Translator) -> None:
    assert isinstance(translator.backend, NativeBackend)
    assert translator.backend.dtype == "int8"
    assert translator.translate(TEXTS[0]) == "Wo ist der Bahnhof?"


def test_tandem_equals_greedy(translator: Translator) -> None:
    expected = translator.translate(TEXTS)
    assert translator.translate(TEXTS, mode="tandem") == expected
    assert translator.translate(TEXTS, draft_tokens=5) == expected
    assert [translator.translate(text) for text in TEXTS] == expected


OTHERS: list[dict[str, Any]] = [
    {"beams": 4},
    {"temperature": 0.5, "seed": 1},
    {"mode": "parallel"},
    {"decoder": "drafter", "iterations": 2},
    {"gamma": 0.3},
]


@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_other_modes_write_german(translator: Translator, options: dict[str, Any]) -> None:
    found = translator.translate(TEXTS, **options)
    assert "Bahnhof" in found[0]
    assert found[2] == ""
    assert translator.translate(TEXTS, **options) == found


def test_a_language_model_continues_a_prompt(writer: Path) -> None:
    loaded = outrider.load(writer)
    assert isinstance(loaded, Generator)
    options = {"temperature": 1.0, "seed": 5, "max_new_tokens": 6}
    assert loaded.generate("Where is", **options) == loaded.generate("Where is", **options)


def test_a_marian_folder_is_loaded_without_conversion(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "vocab_size": 0}
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    inner = dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24)
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    values = {"model_type": "marian", **sizes, **heads, **inner, **tokens}
    values["vocab_size"] = plain_folder.WORDS
    shapes: dict[str, tuple[int, ...]] = {}
    for _, parts in stacked_names(import_config(values)):
        for name in parts:
            rows = plain_folder.WORDS if "shared" in name else 24 if ".fc1." in name else 16
            columns = 24 if ".fc2." in name else 16
            is_matrix = name.endswith("weight") and "norm" not in name
            shapes[name] = (rows, columns) if is_matrix else (rows,)
    folder = plain_folder.write(tmp_path / "marian", values, plain_folder.random_arrays(shapes))
    loaded = outrider.load(folder)
    assert isinstance(loaded, Translator)
    assert isinstance(loaded.backend, NativeBackend)
    assert loaded.backend.config.norm == "post"
    options = {"max_new_tokens": 6}
    assert loaded.translate(TEXTS[0], beams=1, **options) == loaded.translate(TEXTS[0], **options)


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    config = Seq2SeqSpec(
        vocab_size=plain_folder.WORDS,
        hidden_size=16,
        encoder_layers=1,
        decoder_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
    )
    folder = plain_folder.save(tmp_path / "model", config)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        text.replace('"intermediate_size": 24', '"intermediate_size": 25')
    )
    with pytest.raises(
        ModelError, match=r"up\.weight' has shape \[24, 16\], .* implies \[25, 16\]"
    ):
        outrider.load(folder)


def test_invalid_options_are_named(demo: Path) -> None:
    with pytest.raises(ConfigError, match="dtype: got 'int3'"):
        outrider.load(demo, dtype="int3")
    with pytest.raises(ConfigError, match="threads: got 0"):
        outrider.load(demo, threads=0)
