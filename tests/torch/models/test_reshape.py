"""Models with fewer layers or more tokens: the kept parts compute as before."""

import pytest
import torch
from torch import nn

from outrider.errors import ConfigError
from outrider.torch.models.reshape import add_tokens, keep_layers, rebuild
from tests.helpers import tiny

SOURCE, TARGET = torch.tensor([[5, 6, 7, 1]]), torch.tensor([[0, 8, 9]])


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    return found


def test_the_requested_layers_are_kept_in_order() -> None:
    model = tiny.seq2seq(encoder_layers=4, decoder_layers=3)
    kept = keep_layers(model, {"encoder": [3, 0], "decoder": [1]})
    assert (kept.config.encoder_layers, kept.config.decoder_layers) == (2, 1)
    by_hand = tiny.seq2seq(encoder_layers=4, decoder_layers=3)
    blocks = by_hand.encoder.blocks
    by_hand.encoder.blocks = nn.ModuleList([blocks[3], blocks[0]])
    by_hand.decoder.blocks = nn.ModuleList([by_hand.decoder.blocks[1]])
    assert torch.equal(logits(kept), logits(by_hand))
    assert not torch.equal(logits(kept), logits(model))
    assert torch.equal(logits(keep_layers(model, {})), logits(model))


def test_a_layer_keeps_its_attention_where_layers_differ() -> None:
    """Strided attention alternates: layers 0 and 2 are equal, layer 1 differs."""
    model = tiny.language_model(layers=3, attention={"kind": "strided", "stride": 4})
    kept = keep_layers(model, {"decoder": [0, 2]})
    specs = [model.config.layer_attention("attention", layer) for layer in (0, 2)]
    assert [kept.config.layer_attention("attention", layer) for layer in (0, 1)] == specs
    listed = tiny.language_model(
        layers=3,
        attention=[{"kind": "causal"}, {"kind": "sliding", "window": 3}] * 1
        + [{"kind": "local", "block": 4, "memory": 3}],
    )
    kept = keep_layers(listed, {"decoder": [2, 1]})
    assert [spec["kind"] for spec in kept.config.attention] == ["local", "sliding"]


@pytest.mark.parametrize("share", [True, False])
def test_new_tokens_start_as_the_mean_and_others_stay(share: bool) -> None:
    model = tiny.seq2seq(
        share_embeddings=share, tie_word_embeddings=share, logits_bias=True, norm="post"
    )
    assert model.logits_bias is not None
    model.logits_bias.data.normal_()
    words = tiny.VOCABULARY
    grown = add_tokens(model, words + 2, range(words, words + 2))
    assert grown.config.vocab_size == words + 2
    assert torch.equal(logits(grown)[..., :words], logits(model))
    weights, before = grown.state_dict(), model.state_dict()
    names = ["tokens.weight", "logits_bias"]
    names += [] if share else ["source_tokens.weight", "head.weight"]
    for name in names:
        mean = before[name].mean(0).expand(2, *before[name].shape[1:])
        assert torch.allclose(weights[name][words:], mean)


def test_unused_rows_are_assigned_first() -> None:
    """Some vocabularies are padded, so the model has more rows than the tokenizer has ids."""
    model = tiny.seq2seq()
    grown = add_tokens(model, tiny.VOCABULARY - 1, [tiny.VOCABULARY - 2])
    assert grown.config.vocab_size == tiny.VOCABULARY
    mean = model.tokens.weight[: tiny.VOCABULARY - 2].mean(0)
    assert torch.allclose(grown.tokens.weight[tiny.VOCABULARY - 2], mean)
    assert torch.equal(grown.tokens.weight[-1], model.tokens.weight[-1])


def test_a_rebuilt_model_can_be_trained() -> None:
    model = rebuild(tiny.seq2seq(), tiny.seq2seq().state_dict(), dropout=0.5)
    assert model.config.dropout == 0.5
    assert all(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize(
    ("options", "layers", "message"),
    [
        ({}, {"encoder": [2]}, r"keep_layers\.encoder: got \[2\], expected some of 0 to 1"),
        ({}, {"decoder": [1, 1]}, r"keep_layers\.decoder: got \[1, 1\], .* each once"),
        ({}, {"decoder": []}, r"keep_layers\.decoder: got \[\]"),
        ({"depth": "shared"}, {"decoder": [0]}, "keep_layers: this model repeats one layer"),
        ({"skip": {"below": 0.1}}, {"encoder": [0]}, r"keep_layers\.encoder: .* skip"),
    ],
)
def test_missing_layers_are_refused(options: dict, layers: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        keep_layers(tiny.seq2seq(**options), layers)
    with pytest.raises(ConfigError, match=r"keep_layers\.encoder: a language model has only"):
        keep_layers(tiny.language_model(), {"encoder": [0]})
