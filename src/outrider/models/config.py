"""Model configs: Hugging Face strict dataclasses, checked as the untrusted input they are."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from outrider.errors import ConfigError, nearest
from outrider.nn.attention import AttentionBase, HeadShape, build_attention
from outrider.nn.feedforward import ACTIVATIONS

__all__ = ["LanguageModelConfig", "Seq2SeqConfig", "check_keys"]

POSITIONS = ("sinusoidal", "learned", "coordinate", "rotary", "relative", "alibi", "none")
EVEN_POSITIONS = ("sinusoidal", "coordinate", "rotary", "relative", "alibi")
SHIFTED_POSITIONS = ("rotary", "relative", "alibi", "none")
"""Those that only know how far apart two tokens stand, or nothing."""
BIASES = ("relative", "alibi")
"""Positions that add columns to queries and keys."""
NORMS = ("pre", "post")
LIMITS = {"vocab_size": 1 << 24, "hidden_size": 1 << 16, "intermediate_size": 1 << 18}
LAYER_LIMIT = 1 << 10
POSITION_LIMIT = 1 << 24
NEIGHBOUR_LIMIT = 1 << 8

AttentionSpec = dict[str, Any] | list[dict[str, Any]]


@strict
class _ModelConfig(PreTrainedConfig):
    """What all Outrider models share."""

    vocab_size: int = 8000
    hidden_size: int = 512
    """Model width."""
    num_attention_heads: int = 8
    """Heads of every attention; must divide the width."""
    num_key_value_heads: int | None = None
    """Key-value heads of self-attention; null for as many as there are heads."""
    intermediate_size: int = 2048
    """Feed-forward width."""
    activation: str = "relu"
    """relu, gelu or silu."""
    gated: bool = False
    """Feed-forward with a gate."""
    norm: str = "pre"
    """Norm before each part (pre) or after each sum (post)."""
    position: str = "sinusoidal"
    """sinusoidal, learned, coordinate, rotary, relative, alibi or none."""
    relative_codes: int | None = None
    """Width of the codes of `relative` positions; null for that of a head."""
    position_correlation: int = 0
    """Width of the filters that let queries and keys know their neighbours; 0 for none."""
    position_mlp: int = 0
    """Tokens back, itself included, that a token is compared with before the first layer; 0 for
    none."""
    max_positions: int = 1024
    """Size of the table of learned positions; the others have no limit."""
    dropout: float = 0.1
    """On embeddings and on what each part adds."""
    attention_dropout: float = 0.0
    """On attention weights; costs quadratic memory on long inputs."""
    activation_dropout: float = 0.0
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

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._check_sizes()
        self._check_choices()
        for key, (layers, causal) in self.attention_keys.items():
            for index in range(getattr(self, layers)):
                spec = self.layer_attention(key, index)
                attention = build_attention(spec, causal=causal, shape=self.head_shape, key=key)
                self._check_columns(key, attention)

    def layer_attention(self, key: str, layer: int) -> dict[str, Any]:
        """Return the attention of one layer: the one given for all, or its own of a list.

        Two factors that are interleaved take turns, the first one first.
        """
        specs: AttentionSpec = getattr(self, key)
        if isinstance(specs, dict):
            if specs.get("use") == "interleave" and specs.get("factor") is None:
                return {**specs, "factor": layer % 2 + 1}
            return specs
        layers = getattr(self, self.attention_keys[key][0])
        if len(specs) != layers:
            raise ConfigError(key, f"lists {len(specs)} attentions for {layers} layers")
        return specs[layer]

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def head_shape(self) -> HeadShape:
        """The heads of every self-attention."""
        heads = self.num_attention_heads
        return HeadShape(heads, self.num_key_value_heads or heads, self.head_width)

    @property
    def embedding_scale(self) -> float:
        """Factor on embeddings."""
        return math.sqrt(self.hidden_size) if self.scale_embedding else 1.0

    def _check_columns(self, key: str, attention: AttentionBase) -> None:
        if self.position not in BIASES:
            return
        for part in attention.modules():
            if isinstance(part, AttentionBase) and not part.columns_ok:
                message = f"{part.kind!r} in {key} cannot be biased by {self.position!r}"
                message += "; use rotary"
                raise ConfigError("position", message)

    def _check_sizes(self) -> None:
        limits = LIMITS | dict.fromkeys(self.layer_keys, LAYER_LIMIT)
        limits["max_positions"] = POSITION_LIMIT
        for key, limit in limits.items():
            value = getattr(self, key)
            if not 1 <= value <= limit:
                raise ConfigError(key, f"got {value}, expected 1 to {limit}")
        for key in ("position_correlation", "position_mlp"):
            if not 0 <= getattr(self, key) <= NEIGHBOUR_LIMIT:
                message = f"got {getattr(self, key)}, expected 0 to {NEIGHBOUR_LIMIT}"
                raise ConfigError(key, message)
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads < 1 or self.hidden_size % heads:
            message = f"got {heads}, which does not divide hidden_size {self.hidden_size}"
            raise ConfigError("num_attention_heads", message)
        if self.position in EVEN_POSITIONS and self.hidden_size // heads % 2:
            message = f"{self.position!r} needs an even head width, not {self.hidden_size // heads}"
            raise ConfigError("position", message)
        self._check_codes()
        if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
            message = f"got {kv_heads}, which does not divide num_attention_heads {heads}"
            raise ConfigError("num_key_value_heads", message)

    def _check_codes(self) -> None:
        codes = self.relative_codes
        if codes is None:
            return
        if self.position != "relative":
            message = f"has no effect on {self.position!r} positions; leave it out"
            raise ConfigError("relative_codes", message)
        limit = LIMITS["hidden_size"]
        if not 2 <= codes <= limit or codes % 2:
            message = f"got {codes}, expected an even number from 2 to {limit}"
            raise ConfigError("relative_codes", message)

    def _check_choices(self) -> None:
        choices = {"activation": ACTIVATIONS, "norm": NORMS, "position": POSITIONS}
        for key, accepted in choices.items():
            value = getattr(self, key)
            if value not in accepted:
                expected = ", ".join(accepted)
                hint = nearest(value, accepted)
                raise ConfigError(key, f"unknown {value!r}{hint}; expected one of {expected}")
        for key in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, key) < 1:
                raise ConfigError(key, f"got {getattr(self, key)}, expected 0 to less than 1")


@strict
class Seq2SeqConfig(_ModelConfig):
    """An encoder-decoder. Its defaults with `norm: post` and `logits_bias` are Marian's."""

    model_type = "outrider_seq2seq"
    layer_keys = ("encoder_layers", "decoder_layers")
    attention_keys = {  # noqa: RUF012 - a class variable of a Hugging Face dataclass
        "encoder_attention": ("encoder_layers", False),
        "decoder_attention": ("decoder_layers", True),
    }

    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all encoder layers, or a list with one per layer."""
    decoder_attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all decoder layers, or a list with one per layer."""
    share_embeddings: bool = True
    """Source and target use one embedding table."""
    decoder_start_token_id: int = 0
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        self.encoder_attention = self.encoder_attention or {"kind": "full"}
        self.decoder_attention = self.decoder_attention or {"kind": "causal"}
        super().__post_init__(**kwargs)

    @property
    def first_token(self) -> int:
        """What the decoder is fed first."""
        return self.decoder_start_token_id


@strict
class LanguageModelConfig(_ModelConfig):
    """A decoder-only language model."""

    model_type = "outrider_lm"
    layer_keys = ("layers",)
    attention_keys = {"attention": ("layers", True)}  # noqa: RUF012 - as above

    layers: int = 6
    attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all layers, or a list with one per layer."""
    memory: int = 0
    """Tokens remembered from one segment of a text to the next; `max_positions` is a segment."""
    bos_token_id: int = 3
    is_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        self.attention = self.attention or {"kind": "causal"}
        super().__post_init__(**kwargs)
        self._check_memory()

    def layer_attention(self, key: str, layer: int) -> dict[str, Any]:
        """Return the attention of one layer; one with memory sees that and a segment at once."""
        spec = super().layer_attention(key, layer)
        if not self.memory or spec.get("kind") != "causal":
            return spec
        return {**spec, "kind": "sliding", "window": self.memory + self.max_positions}

    def _check_memory(self) -> None:
        if not 0 <= self.memory <= POSITION_LIMIT:
            raise ConfigError("memory", f"got {self.memory}, expected 0 to {POSITION_LIMIT}")
        if not self.memory:
            return
        if self.position not in SHIFTED_POSITIONS:
            expected = ", ".join(SHIFTED_POSITIONS)
            raise ConfigError(
                "position",
                f"{self.position!r} counts from the start of a segment, which confuses a memory "
                f"with what is new; with memory use one of {expected}",
            )
        specs = self.attention if isinstance(self.attention, list) else [self.attention or {}]
        if any(spec.get("kind") != "causal" for spec in specs):
            raise ConfigError(
                "attention", "a memory is looked at whole; use {kind: causal} with it"
            )
        for key in ("position_correlation", "position_mlp"):
            if getattr(self, key):
                raise ConfigError(key, "does not reach into a memory; use one of the two")
        for spec in specs:
            usual = {"score": ("scaled_dot", "dot"), "normaliser": ("softmax",)}
            for key, known in usual.items():
                if spec.get(key, known[0]) not in known:
                    message = f"a memory is looked at with {known[0]}; leave {key} out"
                    raise ConfigError(f"attention.{key}", message)

    @property
    def first_token(self) -> int:
        """What a text begins with."""
        return self.bos_token_id

    @property
    def num_hidden_layers(self) -> int:
        """Hugging Face's name for `layers`."""
        return self.layers


def check_keys(
    config_class: type[PreTrainedConfig], values: Mapping[str, Any], *, prefix: str = ""
) -> None:
    """Refuse keys that the config class does not have; Hugging Face would take any."""
    known = {field.name for field in fields(config_class)} | {"model_type"}
    for key in values:
        if key not in known and not key.startswith("_"):
            hint = nearest(key, known)
            raise ConfigError(f"{prefix}{key}", f"unknown key of {config_class.__name__}{hint}")
