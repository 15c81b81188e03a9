"""The keys that all models have, and what follows from them."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from outrider.errors import ConfigError

__all__ = ["AttentionSpec", "ModelDescription"]

AttentionSpec = dict[str, Any] | list[dict[str, Any]]


@dataclass(kw_only=True)
class ModelDescription:
    """What all Outrider models share. Each of them checks it (`checks.py`) with its own keys."""

    model_type: ClassVar[str] = ""

    vocab_size: int = 8000
    hidden_size: int = 512
    """Model width."""
    num_attention_heads: int = 8
    """Heads of every attention; must divide the width, unless `head_dim` is given."""
    head_dim: int | None = None
    """Width of a head; null for the model's width divided by the heads."""
    num_key_value_heads: int | None = None
    """Key-value heads of self-attention; null for as many as there are heads."""
    intermediate_size: int = 2048
    """Feed-forward width."""
    activation: str = "relu"
    """relu, gelu, gelu_tanh (an approximation of gelu) or silu."""
    gated: bool = False
    """Feed-forward with a gate."""
    feedforward_chunks: int = 1
    """Compute the feed-forward of so many parts of the positions one after another, and again in
    the backward: less memory, more time."""
    transition: str = "feedforward"
    """What follows the attention of a layer: feedforward, or separable_conv, which sees a few
    neighbours."""
    transition_widths: list[int] | None = None
    """Tokens that the two filters of `separable_conv` reach over; null for 3 and 5."""
    norm: str = "pre"
    """Norm before each part (pre) or after each sum (post)."""
    rms_norm: bool = False
    """Norms divide by the root mean square alone: no mean, no bias."""
    norm_eps: float = 1e-5
    """Added to what a norm takes the root of."""
    embedding_norm: bool = False
    """Norm the embeddings, positions added, before the first layer."""
    residual: str = "add"
    """How a part joins the rest: add, gru (a gate), or reversible (memory does not grow with
    depth)."""
    gate_bias: float | int | None = None
    """How far the gates of `residual: gru` are closed at first; null for 6.5."""
    depth: str = "stacked"
    """stacked: every layer has weights of its own; shared: one layer is applied as many times."""
    halting: dict[str, Any] | None = None
    """With `depth: shared`, `{threshold: 0.99, ponder: 0.01, bias: 1.0}` (or `{}`) lets every token
    decide how often it goes through the layer; null for all the same."""
    pondering: dict[str, Any] | None = None
    """With a gru or lstm in the place of attention, `{steps: 8, threshold: 0.99, ponder: 0.01,
    bias: 1.0}` (or `{}`) lets its cell think about each token as often as it needs; null for
    once."""
    position: str = "sinusoidal"
    """sinusoidal, learned, coordinate, rotary, relative, distance, bucketed, alibi or none."""
    rope_theta: float | int | None = None
    """Base of `rotary` positions; null for 10000."""
    rope_scale: dict[str, Any] | None = None
    """How the frequencies of `rotary` positions were stretched: `{rope_type: linear, factor: 2.0}`,
    or `rope_type: llama3` with its numbers."""
    relative_codes: int | None = None
    """Width of the codes of `relative` positions; null for that of a head."""
    relative_buckets: int | None = None
    """Buckets of distances that `bucketed` positions have a trained bias for; null for 32."""
    relative_distance: int | None = None
    """Distance from which all are in the last bucket of `bucketed` positions (null for 128), or are
    alike to `distance` positions (null for 16)."""
    position_correlation: int = 0
    """Width of the filters that let queries and keys know their neighbours; 0 for none."""
    position_mlp: int = 0
    """Tokens back, itself included, that a token is compared with before the first layer; 0 for
    none."""
    max_positions: int = 1024
    """Size of the table of learned positions; the others have no limit."""
    dropout: float | int = 0.1
    """On embeddings and on what each part adds."""
    attention_dropout: float | int = 0.0
    """On attention weights; costs quadratic memory on long inputs."""
    activation_dropout: float | int = 0.0
    """Inside the feed-forward."""
    scale_embedding: bool = True
    """Multiply embeddings by the square root of the width."""
    tie_word_embeddings: bool = True
    """The output head is the target embedding."""
    logits_bias: bool = False
    """Add a trained bias to the logits."""
    pad_token_id: int = 0
    eos_token_id: int | list[int] = 1
    bos_token_id: int | None = None

    layer_keys: ClassVar[tuple[str, ...]] = ()
    attention_keys: ClassVar[dict[str, tuple[str, bool]]] = {}
    core_keys: ClassVar[dict[str, str]] = {}
    """For the attention of layers that may be recurrent instead: the key that says so."""

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Tokens that end a text, each once; the first is the one that training puts there."""
        ends = self.eos_token_id
        return tuple(dict.fromkeys(ends if isinstance(ends, list) else [ends]))

    def is_recurrent(self, key: str) -> bool:
        """Whether the layers whose attention would stand under `key` have a state in its place."""
        return self.core_of(key) != "attention"

    def core_of(self, key: str) -> str:
        """Return what the layers whose attention would stand under `key` have there."""
        return str(getattr(self, self.core_keys[key])) if key in self.core_keys else "attention"

    def fill_attention(self, key: str, kind: str) -> None:
        """Give layers the usual attention where none is given; recurrent ones have none."""
        if not self.is_recurrent(key):
            setattr(self, key, getattr(self, key) or {"kind": kind})
        elif getattr(self, key) is not None:
            message = f"has no effect with {self.core_keys[key]} {self.core_of(key)}; leave it out"
            raise ConfigError(key, message)

    def layer_attention(self, key: str, layer: int) -> dict[str, Any]:
        """Return the attention of one layer: the one given for all, or its own of a list."""
        specs: AttentionSpec = getattr(self, key)
        if isinstance(specs, dict):
            return specs
        layers = getattr(self, self.attention_keys[key][0])
        if len(specs) != layers:
            raise ConfigError(key, f"lists {len(specs)} attentions for {layers} layers")
        return specs[layer]

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def buckets(self) -> tuple[int, int]:
        """Buckets of `bucketed` positions, and the distance at which they end."""
        return self.relative_buckets or 32, self.relative_distance or 128

    @property
    def filter_widths(self) -> list[int]:
        """Tokens that the two filters of a separable convolution reach over."""
        return self.transition_widths or [3, 5]

    @property
    def embedding_scale(self) -> float:
        """Factor on embeddings."""
        return math.sqrt(self.hidden_size) if self.scale_embedding else 1.0

    @property
    def longest_source(self) -> int:
        """Most source tokens, end included, that can be read at once."""
        return self.max_positions

    @property
    def first_token(self) -> int:
        """What a text begins with."""
        raise NotImplementedError

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder."""
        raise NotImplementedError
