"""Tiny models for tests: real parts, small sizes, float64 where equality is the point."""

from typing import Any

import torch

from outrider.torch.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig

VOCABULARY = 23
SMALL: dict[str, dict[str, Any]] = {
    "adaptive_span": {"max_span": 12, "ramp": 4},
    "fixed": {"stride": 5, "summary": 2},
    "local": {"block": 4, "memory": 3},
    "local_2d": {"columns": 5, "block_rows": 2, "block_columns": 2, "margin": 1},
    "lsh": {"chunk": 3, "rounds": 2, "buckets": 4},
    "mixed": {"parts": [{"heads": 2, "kind": "sliding", "window": 3}, {"kind": "causal"}]},
    "sliding": {"window": 3},
    "strided": {"stride": 4},
}
"""Options that make a variant's pattern visible on short test sequences; the contract tests say so
where a new variant needs some."""


def seq2seq(*, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Seq2Seq:
    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "dropout": 0.0,
    }
    return Seq2Seq(Seq2SeqConfig(**options | changes)).to(dtype).eval()


def language_model(
    *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> LanguageModel:
    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "dropout": 0.0,
    }
    return LanguageModel(LanguageModelConfig(**options | changes)).to(dtype).eval()


def marian_like(**changes: Any) -> Seq2Seq:
    return seq2seq(norm="post", logits_bias=True, **changes)
