"""Tiny models for tests of the native core: all parts that it computes, in odd sizes.

Initial weights have zero biases and unit norms, which would hide mistakes; these have neither.
"""

from typing import Any, TypeVar

import torch
from torch import nn

from outrider.torch.models import Drafter, DrafterConfig, LanguageModel, Seq2Seq
from outrider.torch.models.configs import CtcConfig
from outrider.torch.models.ctc import Ctc
from tests.helpers import tiny

ODD: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "intermediate_size": 40,
}
SEQ2SEQ: dict[str, dict[str, Any]] = {
    "plain": {},
    "marian": {"norm": "post", "logits_bias": True, **ODD},
    "gelu": {"activation": "gelu", "position": "none", "tie_word_embeddings": False},
    "silu": {"activation": "silu", "gated": True, "position": "rotary", "norm": "post"},
    "learned": {"position": "learned", "max_positions": 40, "share_embeddings": False, **ODD},
    "grouped": {"num_key_value_heads": 2, "num_attention_heads": 4, "position": "rotary"},
    "wide": {"hidden_size": 72, "intermediate_size": 130, "num_attention_heads": 1},
    "ssru": {"decoder_core": "ssru", "norm": "post", "logits_bias": True, **ODD},
    "unscaled": {"scale_embedding": False, "gated": True, "encoder_layers": 1, **ODD},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bart": {"norm": "post", "embedding_norm": True, "position": "learned", "norm_eps": 0.01},
    "t5": {
        "position": "bucketed",
        "relative_buckets": 8,
        "relative_distance": 6,
        "rms_norm": True,
        "norm_eps": 0.02,
        "head_dim": 10,
        "gated": True,
        "activation": "gelu_tanh",
        "scale_embedding": False,
        "tie_word_embeddings": False,
    },
    "t5 grouped": {"position": "bucketed", "num_key_value_heads": 1, "embedding_norm": True, **ODD},
}
SEQ2SEQ |= FAMILIES
LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "text": {},
    "text rotary": {"position": "rotary", "num_key_value_heads": 1, "gated": True},
    "text learned": {"position": "learned", "max_positions": 40, "norm": "post", **ODD},
    "text ssru": {"core": "ssru", "activation": "gelu"},
    "text llama": {
        "position": "rotary",
        "head_dim": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm": True,
        "norm_eps": 0.01,
        "gated": True,
        "activation": "silu",
        "rope_theta": 50.0,
        "rope_scale": {"rope_type": "linear", "factor": 2.0},
        "embedding_norm": True,
    },
    "text bucketed": {"position": "bucketed", "head_dim": 6},
    "text many": {"next_tokens": 2, "activation": "gelu", "tie_word_embeddings": False},
}
KINDS = [*SEQ2SEQ, *LANGUAGE_MODELS]
DRAFTERS: dict[str, dict[str, Any]] = {
    "rank": {"rank": 4, "candidates": 5, "block": 8},
    "independent": {"rank": 0, "candidates": 3, "norm": "post"},
    "shortlist": {"rank": 7, "candidates": 40, "shortlist": 19, "layers": 2, "taps": [0]},
    "shortlist alone": {"rank": 0, "shortlist": 9, "taps": [1, 0], "gated": True},
}

Part = TypeVar("Part", bound=nn.Module)


def build(kind: str, *, seed: int = 0) -> Seq2Seq | LanguageModel:
    if kind in SEQ2SEQ:
        return rough(tiny.seq2seq(seed=seed, **SEQ2SEQ[kind]), seed)
    return rough(tiny.language_model(seed=seed, **LANGUAGE_MODELS[kind]), seed)


def build_drafter(model: Any, *, seed: int = 0, ahead: Ctc | None = None, **values: Any) -> Drafter:
    torch.manual_seed(seed)
    config = DrafterConfig.for_target(model.config, **DRAFTERS["rank"] | values)
    drafter = rough(Drafter(config), seed)
    if config.shortlist:
        ids_N = torch.randperm(config.vocab_size)[: config.shortlist]
        drafter.set_shortlist(ids_N)
    return drafter.bind(model, ahead).eval()


def build_ctc(model: Seq2Seq, *, seed: int = 0, **values: Any) -> Ctc:
    torch.manual_seed(seed)
    config = CtcConfig.for_target(model.config, **{"layers": 2} | values)
    return rough(Ctc(config), seed).bind(model).eval()


def rough(part: Part, seed: int) -> Part:
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in part.parameters():
            if weight.dim() == 1:
                weight.add_(0.3 * torch.randn(weight.shape, generator=dice))
    return part


def rows(model: Any, lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Return sources of these lengths; empty ones for a language model."""
    dice = torch.Generator().manual_seed(seed)
    words = model.config.vocab_size
    if isinstance(model, LanguageModel):
        return [[] for _ in lengths]
    return [torch.randint(words, (length,), generator=dice).tolist() for length in lengths]
