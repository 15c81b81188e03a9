"""Marian models compute the same as transformers' implementation, imported and exported."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from outrider.errors import ConfigError, ModelError
from outrider.formats.readers.marian import MarianValues, import_config, import_weights
from outrider.formats.readers.weights import Stored
from outrider.formats.safetensors import Weight
from outrider.torch.export import to_marian
from outrider.torch.models import Seq2Seq, load_model
from tests.helpers import tiny


@pytest.fixture
def marian() -> MarianMTModel:
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=40,
        d_model=32,
        encoder_layers=3,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=64,
        init_std=0.3,
        pad_token_id=39,
        eos_token_id=0,
        decoder_start_token_id=39,
        forced_eos_token_id=0,
    )
    model = MarianMTModel(config).eval()
    model.final_logits_bias.normal_()
    return model


def inputs() -> dict[str, torch.Tensor]:
    source = torch.randint(1, 39, (3, 9))
    mask = (torch.arange(9) < torch.tensor([[9], [4], [6]])).long()
    target = torch.randint(1, 39, (3, 7))
    return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}


def test_imported_logits_equal_those_of_transformers(marian: MarianMTModel, tmp_path: Path) -> None:
    marian.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    batch = inputs()
    with torch.no_grad():
        difference = (ours(**batch).logits - marian(**batch).logits).abs().max()
    assert difference < 1e-5


@pytest.mark.parametrize("share", [True, False])
def test_exported_logits_equal_ours(share: bool) -> None:
    ours = tiny.marian_like(share_embeddings=share, vocab_size=40)
    torch.nn.init.normal_(ours.logits_bias)
    batch = inputs()
    with torch.no_grad():
        difference = (ours(**batch).logits - to_marian(ours)(**batch).logits).abs().max()
    assert difference < 1e-5


def test_import_and_export_are_bit_identical(tmp_path: Path) -> None:
    ours = tiny.marian_like()
    to_marian(ours).save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert isinstance(again, Seq2Seq)
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "pre"}, "norm is 'pre'; a Marian model has 'post'"),
        ({"position": "rotary"}, "position is 'rotary'"),
        ({"gated": True}, "gated is True"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1; a Marian model has None or 2"),
        ({"decoder_attention": {"kind": "sliding"}}, "decoder_attention is"),
    ],
)
def test_options_that_marian_lacks_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        to_marian(tiny.seq2seq(**{"norm": "post", "logits_bias": True} | changes))


def test_unequal_halves_are_refused(marian: MarianMTModel) -> None:
    values = marian.config.to_dict() | {"decoder_ffn_dim": 64}
    with pytest.raises(ConfigError, match="decoder_ffn_dim: 64 differs from encoder_ffn_dim"):
        import_config(values)


def test_defaults_of_missing_keys_equal_those_of_transformers() -> None:
    theirs = MarianConfig()
    ours = asdict(MarianValues())
    assert ours == {key: getattr(theirs, key) for key in ours}


def test_untied_head_is_refused(marian: MarianMTModel) -> None:
    with pytest.raises(ConfigError, match="tie_word_embeddings: is false"):
        import_config(marian.config.to_dict() | {"tie_word_embeddings": False})


def test_a_missing_weight_is_named(marian: MarianMTModel) -> None:
    weights = {
        name: Weight("float32", one.numpy())
        for name, one in marian.state_dict().items()
        if name != "model.decoder.layers.1.encoder_attn.k_proj.bias"
    }
    with pytest.raises(ModelError, match=r"lack 'model\.decoder\.layers\.1\.encoder_attn\.k_proj"):
        import_weights(Stored(weights), import_config(marian.config.to_dict()), {})


def test_pickled_weights_are_never_read(marian: MarianMTModel, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(marian.config.to_dict()))
    torch.save(marian.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(
        ModelError, match=r"no model\.safetensors \(only pytorch_model\.bin; pickled"
    ):
        load_model(tmp_path)
