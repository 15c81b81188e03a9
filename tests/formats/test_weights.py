"""Weights are read as the folder's files and config define, or refused with one error message."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.errors import ModelError
from outrider.formats.folder import read_model
from outrider.torch.export import to_marian
from outrider.torch.models import load_model
from tests.helpers import families, tiny

FAMILIES = ("marian", "bart", "mbart", "m2m_100", "t5", "mt5", "gpt2", "llama", "mistral", "qwen2")
TIED = ("llama", "mistral", "qwen2")
"""Families that tie their head only if the config requires it."""


def save(name: str, folder: Path) -> Any:
    """Save a tiny model of a family with tied tables."""
    if name == "marian":
        model = to_marian(tiny.marian_like(vocab_size=64))
    elif name in TIED:
        family = families.FAMILIES[name]
        torch.manual_seed(0)
        options = family.options | {"tie_word_embeddings": True}
        model = family.model(family.config(**options)).eval()
    else:
        model = families.make(name)
    model.save_pretrained(folder)
    return model


def edit(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def refused(folder: Path, message: str) -> None:
    """Check that both loaders refuse the folder with one error message and no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ModelError, match=message) as caught:
            load_model(folder)
        assert "\n" not in str(caught.value)
        with pytest.raises(ModelError, match=message):
            read_model(folder).check_values()


def difference(folder: Path, model: Any) -> float:
    """Return the largest difference between our logits and those of transformers."""
    ids = torch.randint(4, 60, (2, 9), generator=torch.Generator().manual_seed(3))
    batch = {"input_ids": ids}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = ids
    with torch.no_grad():
        return float((load_model(folder)(**batch).logits - model(**batch).logits).abs().max())


QUERIES = {
    "marian": "model.encoder.layers.0.self_attn.q_proj.weight",
    "bart": "model.encoder.layers.0.self_attn.q_proj.weight",
    "mbart": "model.decoder.layers.1.encoder_attn.k_proj.bias",
    "m2m_100": "model.shared.weight",
    "t5": "encoder.block.0.layer.0.SelfAttention.q.weight",
    "mt5": "lm_head.weight",
    "gpt2": "transformer.h.0.attn.c_attn.weight",
    "llama": "model.layers.0.self_attn.q_proj.weight",
    "mistral": "model.layers.0.mlp.up_proj.weight",
    "qwen2": "model.layers.0.self_attn.q_proj.bias",
}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bool])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_number_type_is_checked_before_it_is_converted(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    save(name, tmp_path)
    weight = QUERIES[name]
    if weight not in load_file(tmp_path / "model.safetensors"):
        weight = "shared.weight"
    edit(tmp_path, lambda w: w.update({weight: w[weight].to(dtype)}))
    refused(tmp_path, f"'{re.escape(weight)}' is stored as .*, expected one of bfloat16, float16")


def test_scaled_queries_are_checked_too(tmp_path: Path) -> None:
    families.make("gpt2 scaled").save_pretrained(tmp_path)
    name = "transformer.h.1.attn.c_attn.bias"
    edit(tmp_path, lambda w: w.update({name: w[name].to(torch.float8_e4m3fn)}))
    refused(tmp_path, f"'{re.escape(name)}' is stored as float8_e4m3fn")


def test_complex_numbers_are_refused_by_name(tmp_path: Path) -> None:
    save("llama", tmp_path)
    edit(tmp_path, lambda w: w.update({QUERIES["llama"]: torch.zeros(3, dtype=torch.complex64)}))
    refused(tmp_path, f"'{re.escape(QUERIES['llama'])}' has the unknown type 'C64'")


@pytest.mark.parametrize("name", FAMILIES)
def test_unknown_weights_are_refused(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    edit(tmp_path, lambda w: w.update({"model.q_norm.weight": torch.ones(4)}))
    message = r"unknown 'model\.q_norm\.weight' \(1 names are not computed\); remove them"
    refused(tmp_path, message)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("marian", "encoder_layers"),
        ("bart", "decoder_layers"),
        ("m2m_100", "encoder_layers"),
        ("t5", "num_decoder_layers"),
        ("gpt2", "n_layer"),
        ("llama", "num_hidden_layers"),
    ],
)
def test_layers_beyond_those_of_the_config_are_refused(name: str, key: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, key: values[key] - 1}))
    refused(tmp_path, "the weights have an unknown '")


BUFFERS = {
    "bart": ("encoder.version", torch.ones(1)),
    "mbart": ("model.decoder.version", torch.ones(1)),
    "m2m_100": ("model.encoder.embed_positions.weights", torch.ones(72, 24)),
    "t5": (
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        torch.ones(8, 3),
    ),
    "gpt2": ("transformer.h.0.attn.bias", torch.ones(1, 1, 80, 80, dtype=torch.bool)),
    "llama": ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(5)),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_unused_buffers_are_ignored(name: str, tmp_path: Path) -> None:
    model = save(name, tmp_path)
    key, value = BUFFERS[name]
    edit(tmp_path, lambda w: w.update({key: value}))
    assert difference(tmp_path, model) < 1e-4


def test_a_bias_that_m2m_100_does_not_compute_must_be_zero(tmp_path: Path) -> None:
    model = save("m2m_100", tmp_path)
    edit(tmp_path, lambda w: w.update(final_logits_bias=torch.zeros(1, 64)))
    assert difference(tmp_path, model) < 1e-4
    edit(tmp_path, lambda w: w.update(final_logits_bias=torch.ones(1, 64)))
    refused(tmp_path, "'final_logits_bias' is not zero: not supported for M2M100")


COPIES = [
    *((name, "lm_head.weight") for name in ("marian", "bart", "mbart", "m2m_100", "t5")),
    *((name, "lm_head.weight") for name in ("gpt2", "llama", "mistral", "qwen2")),
    *(
        (name, f"model.{side}.embed_tokens.weight")
        for name in ("marian", "bart", "mbart", "m2m_100")
        for side in ("encoder", "decoder")
    ),
    *(
        (name, f"{side}.embed_tokens.weight")
        for name in ("t5", "mt5")
        for side in ("encoder", "decoder")
    ),
]
TABLES = {
    "t5": "shared.weight",
    "mt5": "shared.weight",
    "gpt2": "transformer.wte.weight",
    **dict.fromkeys(TIED, "model.embed_tokens.weight"),
}


@pytest.mark.parametrize(("name", "copy"), COPIES)
def test_copies_of_a_tied_table_must_be_equal(name: str, copy: str, tmp_path: Path) -> None:
    """transformers would compute with both tables; Outrider does not choose one of them."""
    model, table = save(name, tmp_path), TABLES.get(name, "model.shared.weight")
    edit(tmp_path, lambda w: w.update({copy: w[table].clone()}))
    assert difference(tmp_path, model) < 1e-4
    edit(tmp_path, lambda w: w.update({copy: w[copy] + 0.01}))
    refused(tmp_path, f"'{re.escape(copy)}' differs from '{re.escape(table)}', but the config ties")


@pytest.mark.parametrize("name", ["marian", "bart", "t5", "gpt2", "llama"])
def test_a_tied_table_may_be_stored_under_either_name(name: str, tmp_path: Path) -> None:
    model, table = save(name, tmp_path), TABLES.get(name, "model.shared.weight")
    edit(tmp_path, lambda w: w.update({"lm_head.weight": w.pop(table)}))
    assert difference(tmp_path, model) < 1e-4
    assert difference(tmp_path, type(model).from_pretrained(tmp_path)) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_positions_that_marian_stores_must_be_the_sinusoids(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model = save("marian", tmp_path)
    name = "model.decoder.embed_positions.weight"
    table = model.state_dict()[name]
    edit(tmp_path, lambda w: w.update({name: table.to(dtype)}))
    assert difference(tmp_path, model) < 1e-4
    edit(tmp_path, lambda w: w.update({name: w[name].neg()}))
    refused(tmp_path, f"'{re.escape(name)}' is not the table of sinusoids: not supported")
    edit(tmp_path, lambda w: w.update({name: table[:-1].clone()}))
    refused(tmp_path, f"'{re.escape(name)}' is not the table of sinusoids: not supported")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_must_be_finite(value: float, dtype: torch.dtype, tmp_path: Path) -> None:
    save("llama", tmp_path)
    name = QUERIES["llama"]

    def damage(weights: dict[str, Tensor]) -> None:
        weights.update({key: one.to(dtype) for key, one in weights.items()})
        weights[name][3, 5] = value

    edit(tmp_path, damage)
    place = re.escape(str(tmp_path / "model.safetensors"))
    refused(tmp_path, f"^{place}: '{re.escape(name)}' holds NaN or infinite numbers; ")


def test_large_numbers_are_finite(tmp_path: Path) -> None:
    """Their sum exceeds float32."""
    model = tiny.seq2seq()
    torch.nn.init.constant_(model.tokens.weight, 3e38)
    model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_model(tmp_path).check_values()
        with pytest.raises(ModelError, match=r"'tokens\.weight' holds numbers beyond float16"):
            load_model(tmp_path, dtype="float16")


def test_a_number_of_float64_must_fit_into_float32(tmp_path: Path) -> None:
    tiny.seq2seq().save_pretrained(tmp_path)
    name = "encoder.blocks.0.feedforward.up.bias"
    edit(tmp_path, lambda w: w.update({name: w[name].double().fill_(1e300)}))
    refused(tmp_path, f"'{re.escape(name)}' holds NaN or infinite numbers")


def shards(folder: Path) -> dict[str, str]:
    """Save a llama in several files; return the file of each weight."""
    families.make("llama").save_pretrained(folder, max_shard_size="20KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found: dict[str, str] = index["weight_map"]
    assert len(set(found.values())) > 2
    return found


def test_the_shard_with_nan_is_named(tmp_path: Path) -> None:
    name = "model.layers.2.mlp.down_proj.weight"
    path = tmp_path / shards(tmp_path)[name]
    weights = load_file(path)
    weights[name][0, 0] = torch.nan
    save_file(weights, path)
    refused(tmp_path, f"^{re.escape(str(path))}: '{re.escape(name)}' holds NaN")


def test_a_single_file_is_preferred_to_shards(tmp_path: Path) -> None:
    """As in transformers: a folder may still hold the shards of an older model."""
    shards(tmp_path)
    other = families.make("llama", seed=7)
    save_file(other.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert difference(tmp_path, other) < 1e-4
    assert difference(tmp_path, hf.LlamaForCausalLM.from_pretrained(tmp_path)) < 1e-4


def test_a_weight_in_two_shards_is_refused(tmp_path: Path) -> None:
    files = sorted(set(shards(tmp_path).values()))
    first, last = (load_file(tmp_path / name) for name in (files[0], files[-1]))
    name = next(iter(first))
    save_file({**last, name: first[name] * 2}, tmp_path / files[-1])
    refused(tmp_path, f"{re.escape(files[-1])}: '{re.escape(name)}' is in another shard too")
