"""Frequencies of rotary positions against those of transformers; refused scalings."""

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from outrider.errors import ConfigError
from outrider.formats.spec import LanguageModelSpec, Seq2SeqSpec, rotary_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
SCALINGS: list[dict[str, Any] | None] = [None, {"rope_type": "linear", "factor": 2.5}, LLAMA3]


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@pytest.mark.parametrize("theta", [10_000.0, 500_000])
def test_frequencies_equal_those_of_transformers(
    scaling: dict[str, Any] | None, theta: float
) -> None:
    rope = {"rope_type": "default", **(scaling or {}), "rope_theta": theta}
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(hidden_size=64, num_attention_heads=2, head_dim=48, rope_parameters=rope)
    ).inv_freq
    config = LanguageModelSpec(
        hidden_size=64,
        num_attention_heads=2,
        head_dim=48,
        position="rotary",
        rope_theta=theta,
        rope_scale=scaling,
    )
    ours = torch.tensor(rotary_frequencies(config), dtype=torch.float64)
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=0)


def test_llama3_by_the_equation() -> None:
    config = LanguageModelSpec(
        hidden_size=64, num_attention_heads=2, position="rotary", rope_scale=LLAMA3
    )
    for k, found in enumerate(rotary_frequencies(config)):
        plain = 10_000 ** (-2 * k / 32)
        wave = 2 * math.pi / plain
        if wave < 512 / 4:
            wanted = plain
        elif wave > 512:
            wanted = plain / 8
        else:
            share = (512 / wave - 1) / (4 - 1)
            wanted = (1 - share) * plain / 8 + share * plain
        assert found == pytest.approx(wanted)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rope_theta": 0}, "rope_theta: got 0, expected above 1"),
    ({"rope_theta": 1e30}, "rope_theta: got 1e[+]30"),
    ({"position": "none", "rope_theta": 5.0}, "rope_theta: has no effect with position: none"),
    ({"rope_scale": {"rope_type": "yarn"}}, "rope_type: unknown 'yarn'; expected one of default"),
    ({"rope_scale": {"rope_type": ["x"]}}, "rope_type: unknown"),
    ({"rope_scale": {"rope_type": "linear"}}, "rope_scale.factor: got None, expected a number"),
    ({"rope_scale": {"rope_type": "linear", "factor": True}}, "factor: got True"),
    ({"rope_scale": {"rope_type": "linear", "factor": 2, "x": 1}}, "x: unknown option of"),
    ({"rope_scale": LLAMA3 | {"high_freq_factor": 0.5}}, "must be above low_freq_factor"),
]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=[m for _, m in WRONG])
def test_invalid_frequencies_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LanguageModelSpec(**{"position": "rotary", **values})


FURTHER: list[tuple[dict[str, Any], str]] = [
    ({"head_dim": 0}, "head_dim: got 0, but 8 heads must be 1 to 65536 wide"),
    ({"head_dim": 1 << 14}, "head_dim: got 16384"),
    ({"head_dim": 64, "num_attention_heads": 0}, "num_attention_heads: got 0"),
    ({"head_dim": 7}, "position: 'sinusoidal' needs an even head width, not 7"),
    ({"head_dim": 8, "hidden_size": 65}, "position: 'sinusoidal' needs an even model width"),
    ({"norm_eps": 0.0}, "norm_eps: got 0.0, expected above 0"),
    ({"relative_buckets": 8}, "relative_buckets: has no effect with position: sinusoidal"),
    ({"position": "bucketed", "relative_buckets": 6}, "relative_buckets: got 6, expected a multi"),
    ({"position": "bucketed", "relative_distance": 16}, "relative_distance: got 16, expected abo"),
    ({"position": "bucketed", "residual": "reversible"}, "position: 'bucketed' does not go with"),
    (
        {"position": "bucketed", "skip": {"below": 1.0}},
        "position: 'bucketed' does not go with skip",
    ),
    (
        {"position": "bucketed", "decoder_attention": {"kind": "sliding", "window": 2}},
        "position: 'bucketed' goes with plain full and causal attention",
    ),
]


@pytest.mark.parametrize(("values", "message"), FURTHER, ids=[m for _, m in FURTHER])
def test_invalid_layers_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Seq2SeqSpec(**values)
