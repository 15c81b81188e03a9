"""A plain encoder-decoder written out in numpy, float64: what the native core must compute.

    norm(x)       = (x - mean) / sqrt(variance + 1e-5) * g + b
    attend(q,k,v) = softmax(q k' / sqrt(K)) v                           per head
    layer(x)      = x + attend(norm(x)); with a source x + attend(norm(x), source); x + F(norm(x))
    F(x)          = W2 relu(W1 x + b1) + b2
    logits        = norm(layers(scale e(y) + position)) H' + bias

One text at a time, no cache, sines and cosines for positions: to be read, not to be fast.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.formats.description import Seq2SeqDescription

__all__ = ["plain_logits"]

Array = NDArray[np.float64]
Weights = Mapping[str, NDArray[np.float32]]


def plain_logits(
    config: Seq2SeqDescription, weights: Weights, source: Sequence[int], tokens: Sequence[int]
) -> Array:
    """Return the logits after each token, [T, V], of a model with the usual parts."""
    usual = Seq2SeqDescription(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        tie_word_embeddings=False,
        logits_bias=True,
    )
    assert config == usual, "only the usual parts are written out here"
    memory_SD = _embed(config, weights, source)
    for layer in range(config.encoder_layers):
        memory_SD = _layer(config, weights, f"encoder.blocks.{layer}", memory_SD, None)
    memory_SD = _norm(weights, "encoder.norm", memory_SD)
    x_TD = _embed(config, weights, tokens)
    for layer in range(config.decoder_layers):
        x_TD = _layer(config, weights, f"decoder.blocks.{layer}", x_TD, memory_SD)
    x_TD = _norm(weights, "decoder.norm", x_TD)
    logits_TV: Array = x_TD @ weights["head.weight"].T.astype(np.float64)
    return logits_TV + weights["logits_bias"]


def _embed(config: Seq2SeqDescription, weights: Weights, tokens: Sequence[int]) -> Array:
    x_TD = weights["tokens.weight"][list(tokens)].astype(np.float64) * config.embedding_scale
    half = config.hidden_size // 2
    angle_TE = np.arange(len(tokens))[:, None] * 10_000.0 ** (-np.arange(half) / half)
    return x_TD + np.concatenate([np.sin(angle_TE), np.cos(angle_TE)], axis=1)


def _layer(
    config: Seq2SeqDescription, weights: Weights, name: str, x_TD: Array, memory_SD: Array | None
) -> Array:
    heads = config.num_attention_heads
    inner_TD = _norm(weights, f"{name}.attention_residual.norm", x_TD)
    q, k, v = np.split(_linear(weights, f"{name}.attention.qkv", inner_TD), 3, axis=1)
    out_TD = _attend(q, k, v, heads, causal=memory_SD is not None)
    x_TD = x_TD + _linear(weights, f"{name}.attention.out", out_TD)
    if memory_SD is not None:
        inner_TD = _norm(weights, f"{name}.cross_residual.norm", x_TD)
        q = _linear(weights, f"{name}.cross.q", inner_TD)
        k, v = np.split(_linear(weights, f"{name}.cross.kv", memory_SD), 2, axis=1)
        out_TD = _attend(q, k, v, heads, causal=False)
        x_TD = x_TD + _linear(weights, f"{name}.cross.out", out_TD)
    inner_TD = _norm(weights, f"{name}.feedforward_residual.norm", x_TD)
    up_TF = np.maximum(_linear(weights, f"{name}.feedforward.up", inner_TD), 0)
    return x_TD + _linear(weights, f"{name}.feedforward.down", up_TF)


def _attend(q_TD: Array, k_SD: Array, v_SD: Array, heads: int, *, causal: bool) -> Array:
    out = []
    for q_TK, k_SK, v_SK in zip(
        *(np.split(x, heads, axis=1) for x in (q_TD, k_SD, v_SD)), strict=True
    ):
        score_TS = q_TK @ k_SK.T / np.sqrt(q_TK.shape[1])
        if causal:
            score_TS[np.triu_indices(len(score_TS), 1)] = -np.inf
        mass_TS = np.exp(score_TS - score_TS.max(1, keepdims=True))
        out.append(mass_TS / mass_TS.sum(1, keepdims=True) @ v_SK)
    return np.concatenate(out, axis=1)


def _linear(weights: Weights, name: str, x: Array) -> Array:
    return x @ weights[f"{name}.weight"].T.astype(np.float64) + weights[f"{name}.bias"]


def _norm(weights: Weights, name: str, x: Array) -> Array:
    centred = x - x.mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
