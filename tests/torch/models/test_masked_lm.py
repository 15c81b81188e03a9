"""The masked language model: equation, padding, folder, and use as a translator's encoder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.errors import ConfigError, InputError, ModelError
from outrider.torch.models import (
    MaskedLm,
    MaskedLmConfig,
    Seq2Seq,
    Seq2SeqConfig,
    load_masked_lm,
    load_model,
)
from outrider.torch.models.folder import load_encoder, read_encoder
from outrider.torch.nn.loss import IGNORED
from tests.helpers import tiny

PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {"position": "rotary", "activation": "gelu"},
    "learned": {"position": "learned", "embedding_norm": True, "max_positions": 16},
    "alibi": {"position": "alibi"},
    "bucketed": {"position": "bucketed"},
    "sliding": {"attention": {"kind": "sliding", "window": 2}},
    "shared": {"depth": "shared", "halting": {}, "position": "coordinate"},
    "post": {"norm": "post", "logits_bias": True},
    "untied": {"tie_word_embeddings": False, "position_mlp": 2},
}


def build(*, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> MaskedLm:
    torch.manual_seed(seed)
    size = {"hidden_size": 16, "layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    options = {"vocab_size": tiny.VOCABULARY, "dropout": 0.0, **size, **changes}
    return MaskedLm(MaskedLmConfig(**options)).to(dtype).eval()


def rows(*lengths: int) -> tuple[Tensor, Tensor]:
    """Right-padded rows and their mask."""
    torch.manual_seed(1)
    ids = torch.randint(5, tiny.VOCABULARY, (len(lengths), max(lengths)))
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~keep, 0), keep.long()


def norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean()
    scaled = centred / (centred.square().mean() + 1e-5).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def transcribed(weights: dict[str, Tensor], ids: list[int], labels: list[int]) -> Tensor:
    """The summed loss of one row, token by token: pre-norm, two heads, sinusoids, tied head."""
    width, heads = 16, 2
    half = width // 2
    x = []
    for place, token in enumerate(ids):
        angle = place * 10000 ** (-torch.arange(half, dtype=torch.float64) / half)
        code = torch.cat([angle.sin(), angle.cos()])
        x.append(weights["tokens.weight"][token] * width**0.5 + code)
    for layer in range(2):
        at = f"encoder.blocks.{layer}"
        seen = [norm(one, weights, f"{at}.attention_residual.norm") for one in x]
        qkv = [
            weights[f"{at}.attention.qkv.weight"] @ one + weights[f"{at}.attention.qkv.bias"]
            for one in seen
        ]
        q, k, v = ([one.split(width)[part] for one in qkv] for part in range(3))
        for place in range(len(ids)):
            found = []
            for head in range(heads):
                part = slice(head * half, (head + 1) * half)
                scores = torch.stack([q[place][part] @ key[part] for key in k]) / half**0.5
                share = scores.exp() / scores.exp().sum()
                found.append(sum(p * value[part] for p, value in zip(share, v, strict=True)))
            out = weights[f"{at}.attention.out.weight"] @ torch.cat(found)
            x[place] = x[place] + out + weights[f"{at}.attention.out.bias"]
        for place, one in enumerate(x):
            inner = norm(one, weights, f"{at}.feedforward_residual.norm")
            inner = weights[f"{at}.feedforward.up.weight"] @ inner
            inner = (inner + weights[f"{at}.feedforward.up.bias"]).clamp(min=0)
            down = weights[f"{at}.feedforward.down.weight"] @ inner
            x[place] = one + down + weights[f"{at}.feedforward.down.bias"]
    loss = torch.zeros((), dtype=torch.float64)
    for one, label in zip(x, labels, strict=True):
        if label != IGNORED:
            scores = weights["tokens.weight"] @ norm(one, weights, "encoder.norm")
            loss = loss - (scores[label] - scores.exp().sum().log())
    return loss


def test_loss_and_gradient_equal_the_equation() -> None:
    model = build(dtype=torch.float64).train()
    ids, labels = [3, 4, 9, 7, 4, 1], [IGNORED, 11, IGNORED, 8, 6, IGNORED]
    weights = {
        name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()
    }
    wanted = transcribed(weights, ids, labels)
    wanted.backward()  # type: ignore[no-untyped-call]
    given = {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels])}
    found = model(**given, num_items_in_batch=1.0).loss
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(**given).loss, wanted / 3, rtol=1e-6, atol=0)
    found.backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, weights[name].grad, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("name", PARTS)
def test_rows_are_independent(name: str) -> None:
    model = build(dtype=torch.float64, **PARTS[name])
    ids, keep = rows(9, 4, 6)
    together = model(input_ids=ids, attention_mask=keep).logits
    for row, length in enumerate(keep.sum(1).tolist()):
        alone = model(input_ids=ids[row : row + 1, :length]).logits
        torch.testing.assert_close(together[row : row + 1, :length], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted(PARTS.keys() - {"sliding"}))
def test_a_token_attends_to_both_sides(name: str) -> None:
    model = build(dtype=torch.float64, **PARTS[name])
    ids, _ = rows(7)
    before = model(input_ids=ids).logits
    for changed, looked_at in ((6, 0), (0, 6)):
        other = ids.clone()
        other[0, changed] = 5 + (int(ids[0, changed]) - 4) % (tiny.VOCABULARY - 5)
        moved = (model(input_ids=other).logits - before)[0, looked_at].abs().max()
        assert moved > 1e-6


@pytest.mark.parametrize("name", PARTS)
def test_an_encoder_reproduces_the_trained_hidden_states(name: str, tmp_path: Path) -> None:
    model = build(**PARTS[name])
    model.save_pretrained(tmp_path)
    again = load_masked_lm(tmp_path)
    assert again is not None
    ids, keep = rows(8, 5)
    ids[0, 7] = ids[1, 4] = 1
    seen: list[Tensor] = []
    with torch.no_grad():
        wanted = model.hidden(ids, keep.bool(), seen)
        torch.testing.assert_close(again.hidden(ids, keep.bool()), wanted, rtol=0, atol=0)
        for layer, states in ((-1, wanted), (2, wanted), (0, seen[0]), (1, seen[1])):
            spec = {"config": read_encoder(tmp_path), "end": 1, "freeze": True, "layer": layer}
            size = {"hidden_size": 12, "num_attention_heads": 2, "decoder_layers": 1}
            reader = Seq2Seq(Seq2SeqConfig(vocab_size=30, encoder=spec, **size)).eval()
            assert reader.pretrained is not None
            load_encoder(reader.pretrained, tmp_path)
            assert not {"head", "logits_bias"} & set(dict(reader.pretrained.model.named_children()))
            found = reader.pretrained.features(ids, keep.bool())
            real = keep.bool()
            torch.testing.assert_close(found[real], states[real], rtol=0, atol=1e-6)


def test_other_folders_are_not_loaded(tmp_path: Path) -> None:
    tiny.language_model().save_pretrained(tmp_path)
    assert load_masked_lm(tmp_path) is None


def test_invalid_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mask_token_id: got 23"):
        build(mask_token_id=tiny.VOCABULARY)
    with pytest.raises(ConfigError, match=r"attention\.kind"):
        build(attention={"kind": "causal"})
    with pytest.raises(InputError, match="input_ids"):
        build()()
    build().save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"layers": 2', '"layers": 900'))
    with pytest.raises(ModelError, match="only 27 weights"):
        load_masked_lm(tmp_path)
    with pytest.raises(ModelError, match="cannot generate"):
        load_model(tmp_path)
