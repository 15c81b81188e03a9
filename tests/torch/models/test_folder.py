"""Model folders: saving, loading and error messages."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.errors import ConfigError, ModelError
from outrider.formats.folder import read_model
from outrider.formats.safetensors import Weight
from outrider.torch.models import LanguageModel, Seq2Seq, load_model
from outrider.torch.models.folder import build_model
from tests.helpers import tiny

PARTS: list[dict[str, Any]] = [
    {},
    {"position": "learned", "share_embeddings": False, "tie_word_embeddings": False},
    {"position": "rotary", "gated": True, "num_key_value_heads": 1, "logits_bias": True},
    {"decoder_attention": [{"kind": "causal"}, {"kind": "sliding", "window": 4}]},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.seq2seq().save_pretrained(tmp_path)
    return tmp_path


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_round_trip(parts: dict[str, Any], tmp_path: Path) -> None:
    model = tiny.seq2seq(**parts)
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert isinstance(again, Seq2Seq)
    assert {name: value.tolist() for name, value in again.state_dict().items()} == {
        name: value.tolist() for name, value in model.state_dict().items()
    }
    batch = {"input_ids": torch.tensor([[5, 6, 1]]), "decoder_input_ids": torch.tensor([[0, 7]])}
    with torch.no_grad():
        torch.testing.assert_close(again(**batch).logits, model(**batch).logits)


def test_language_model_round_trip(tmp_path: Path) -> None:
    model = tiny.language_model(attention={"kind": "sliding", "window": 3})
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert isinstance(again, LanguageModel)
    tokens = torch.tensor([[3, 5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(again(input_ids=tokens).logits, model(input_ids=tokens).logits)


def test_sharded_weights(tmp_path: Path) -> None:
    tiny.seq2seq().save_pretrained(tmp_path, max_shard_size="4KB")
    assert not (tmp_path / "model.safetensors").exists()
    weights = tiny.seq2seq().state_dict()
    for name, value in load_model(tmp_path).state_dict().items():
        assert torch.equal(value, weights[name])


def test_weights_are_converted_between_float32_and_bfloat16(folder: Path) -> None:
    half = load_model(folder, dtype="bfloat16")
    assert half.dtype == torch.bfloat16
    half.save_pretrained(folder)
    assert load_model(folder).dtype == torch.float32


def test_int8_with_scales_is_dequantised(folder: Path) -> None:
    weights = read_model(folder).weights
    name = next(one for one in weights if one.endswith("feedforward.up.weight"))
    rows, width = weights[name].shape
    scales = np.linspace(0.5, 2, rows, dtype=np.float32)
    bytes_ = np.arange(rows * width).reshape(rows, width).astype(np.int8)
    part = replace(read_model(folder), weights={**weights, name: Weight("int8", bytes_, scales)})
    found = build_model(part).state_dict()[name]
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.from_numpy(bytes_ * scales[:, None]))


def test_a_loaded_model_can_be_trained(folder: Path) -> None:
    model = load_model(folder).train()
    model(input_ids=torch.tensor([[5, 1]]), labels=torch.tensor([[6, 1]])).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


FAULTS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (
        lambda c: c.update(model_type="bert"),
        r"model_type is 'bert'; Outrider can load: outrider_seq2seq",
    ),
    (
        lambda c: c.update(hiden_size=3),
        r"hiden_size: unknown key of Seq2SeqConfig \(did you mean 'hidden_size'",
    ),
    (lambda c: c.update(hidden_size="x"), "hidden_size"),
    (lambda c: c.update(hidden_size=10**9), "hidden_size: got 1000000000, expected 1 to 65536"),
    (lambda c: c.update(encoder_layers=0), "encoder_layers: got 0"),
    (
        lambda c: c.update(num_attention_heads=3),
        "num_attention_heads: got 3, which does not divide",
    ),
    (
        lambda c: c.update(num_key_value_heads=3),
        "num_key_value_heads: got 3, which does not divide",
    ),
    (
        lambda c: c.update(num_attention_heads=16),
        "position: 'sinusoidal' needs an even head width, not 1",
    ),
    (lambda c: c.update(activation="cube"), "activation: unknown 'cube'; expected one of relu"),
    (lambda c: c.update(norm="psot"), r"norm: unknown 'psot' \(did you mean 'post'\?\)"),
    (lambda c: c.update(dropout=1.0), "dropout: got 1.0, expected 0 to less than 1"),
    (
        lambda c: c.update(decoder_attention={"kind": "full"}),
        "decoder_attention.kind: 'full' cannot be used in a decoder",
    ),
    (
        lambda c: c.update(decoder_attention=[{"kind": "causal"}]),
        "decoder_attention: lists 1 attentions for 2 layers",
    ),
    (
        lambda c: c.update(decoder_attention={"kind": "os.system"}),
        "decoder_attention.kind: unknown 'os.system'",
    ),
    (
        lambda c: c.update(intermediate_size=32),
        r"has shape \[24, 16\], config.json implies \[32, 16\]",
    ),
    (lambda c: c.update(encoder_layers=3), r"the weights lack 'encoder\.blocks\.2"),
    (lambda c: c.update(encoder_layers=1), r"the weights have an unknown 'encoder\.blocks\.1"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS, ids=[m for _, m in FAULTS])
def test_a_wrong_config_is_named(
    folder: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit_config(folder, change)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_damaged_weights_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors: damaged or not safetensors"):
        load_model(folder)


def test_a_shard_outside_the_folder_is_refused(folder: Path) -> None:
    index = {"weight_map": {"tokens.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors").unlink()  # the index is read only without it
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="a shard is outside of the folder"):
        load_model(folder)


def test_an_index_without_a_map_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()  # the index is read only without it
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="has no weight_map"):
        load_model(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold one JSON object"),
        (" " * (1 << 24) + "{}", "is larger than 16 MiB"),
    ],
    ids=["broken", "list", "huge"],
)
def test_a_damaged_config(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is not a model folder, it has no config\.json"):
        load_model(tmp_path)


def test_an_unknown_dtype(folder: Path) -> None:
    with pytest.raises(ModelError, match="dtype: got 'int3', expected one of float32, bfloat16"):
        load_model(folder, dtype="int3")


def test_extra_weights_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"backdoor": torch.zeros(1)}, path)
    with pytest.raises(ModelError, match="have an unknown 'backdoor'"):
        load_model(folder)


def test_interleaved_factors_alternate() -> None:
    model = tiny.language_model(layers=3, attention={"kind": "fixed", "use": "interleave"})
    factors = [block.attention.attention.config.factor for block in model.decoder.blocks]
    assert factors == [1, 2, 1]


def test_hashed_attention_refuses_a_biased_score() -> None:
    hashed = {"kind": "lsh", "chunk": 4, "buckets": 4}
    parts = [{"heads": 1, **hashed}, {"kind": "causal"}]
    for spec in (hashed, {"kind": "mixed", "parts": parts}):
        with pytest.raises(ConfigError, match="position: 'lsh' in attention cannot be biased by"):
            tiny.language_model(position="alibi", attention=spec)
