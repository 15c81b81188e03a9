"""A CTranslate2 folder as OpenNMT writes it: separate vocabularies, no end token after sources,
`<blank>` for padding. It is read without CTranslate2 and without PyTorch.
"""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import outrider
from outrider.backends.native import NativeBackend
from outrider.formats.folder import read_model
from outrider.formats.layout import model_layout
from outrider.formats.spec import Seq2SeqSpec
from outrider.runtime import Translator
from outrider.text.tokenizer.sentencepiece_export import sentencepiece_model
from outrider.text.tokenizer.subword import SPECIAL_TOKENS
from tests.helpers import ct2_file, plain_folder

SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
SOURCE = [*SPECIAL[:3], "▁a", "▁cat", "</s>", "▁dog", "▁sees", "▁the", "."]
TARGET = [*SPECIAL, "▁ein", "▁Hund", "▁sieht", "▁die", "▁Katze", "."]
CONFIG = Seq2SeqSpec(
    vocab_size=10,
    hidden_size=16,
    num_attention_heads=2,
    intermediate_size=24,
    encoder_layers=2,
    decoder_layers=1,
    position="learned",
    max_positions=32,
    logits_bias=True,
    share_embeddings=False,
    tie_word_embeddings=False,
)


def random_arrays() -> dict[str, NDArray[np.float32]]:
    return plain_folder.random_arrays(
        {name: one.shape for name, one in model_layout(CONFIG).items()}
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, random_arrays())


def write(tmp_path: Path, arrays: dict[str, NDArray[np.float32]]) -> Path:
    tokens = {"decoder_start_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    folder = ct2_file.write(
        tmp_path / "model",
        arrays,
        {**tokens, "add_source_eos": False, "add_source_bos": False},
        heads=2,
        source=SOURCE,
        target=TARGET,
    )
    pieces = [(token, 0.0) for token in SPECIAL_TOKENS.values()]
    pieces += [(word, -2.0) for word in SOURCE if word.startswith(("▁", "."))]
    (folder / "sentencepiece.model").write_bytes(sentencepiece_model(pieces))
    return folder


def test_source_and_target_keep_separate_vocabularies(folder: Path) -> None:
    translator = outrider.load(folder)
    assert isinstance(translator, Translator)
    assert isinstance(translator.backend, NativeBackend)
    tokenizer = translator.tokenizer
    ids = tokenizer.encode("the dog sees a cat.")
    assert ids == [8, 6, 7, 5, 4, 9]  # "▁a" and the end are swapped: both ends are 3
    assert tokenizer.encode("the owl")[-1] == tokenizer.unk_id
    assert tokenizer.decode([4, 5, 6, 7, 8, 9, 3]) == "ein Hund sieht die Katze."
    assert tokenizer.encode_target_batch(["die Katze sieht."]) == [[7, 8, 6, 9]]
    assert translator.source(ids) == ids
    text = translator.translate("the dog sees a cat.", max_new_tokens=6)
    assert text == translator.translate(["the dog sees a cat.", "a dog"], max_new_tokens=6)[0]


def test_weights_equal_those_of_the_file(folder: Path) -> None:
    part = read_model(folder)
    assert isinstance(part.config, Seq2SeqSpec)
    assert not part.config.source_end
    assert (part.config.pad_token_id, part.config.decoder_start_token_id) == (1, 2)
    part.check()
    arrays = random_arrays()
    table = arrays["source_tokens.weight"]
    found = part.weights["source_tokens.weight"].as_float32()
    np.testing.assert_allclose(found[3], table[5], atol=0.02)
    np.testing.assert_allclose(found[5], table[3], atol=0.02)
    np.testing.assert_allclose(found[8], table[8], atol=0.02)
    for name, array in arrays.items():
        if name != "source_tokens.weight":
            found = part.weights[name].as_float32()
            np.testing.assert_allclose(found, array, atol=0.02, err_msg=name)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_head_with_other_scales_is_not_tied(factor: float, tmp_path: Path) -> None:
    """A halved table has the same int8 values with doubled scales."""
    arrays = random_arrays()
    arrays["head.weight"] = arrays["tokens.weight"] * np.float32(factor)
    part = read_model(write(tmp_path, arrays))
    assert part.config.tie_word_embeddings == (factor == 1.0)
    head = part.weights["tokens.weight" if factor == 1.0 else "head.weight"].as_float32()
    np.testing.assert_allclose(head, arrays["head.weight"], atol=0.02 * factor)
    assert ("head.weight" in part.weights) == (factor != 1.0)
