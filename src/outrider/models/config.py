"""Model configs: Hugging Face strict dataclasses, checked as the untrusted input they are."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from outrider.config import build_config
from outrider.errors import ConfigError, nearest
from outrider.models.pretrained import check_encoder, longest_row
from outrider.nn.attention import AttentionBase, HeadShape, build_attention
from outrider.nn.attention.adaptive_span import Config as SpanConfig
from outrider.nn.layer.feedforward import ACTIVATIONS
from outrider.nn.layer.residual import RESIDUALS
from outrider.nn.stack.halting import HALTING_KINDS, HaltingConfig
from outrider.nn.stack.skip import SKIPPING_KINDS, SkipConfig

__all__ = ["LanguageModelConfig", "Seq2SeqConfig", "check_keys"]

POSITIONS = ("sinusoidal", "learned", "coordinate", "rotary", "relative", "alibi", "none")
EVEN_POSITIONS = ("sinusoidal", "coordinate", "rotary", "relative", "alibi")
SHIFTED_POSITIONS = ("rotary", "relative", "alibi", "none")
"""Those that only know how far apart two tokens stand, or nothing."""
IN_ATTENTION = ("rotary", "relative", "alibi")
"""Those that say nothing to embeddings."""
BIASES = ("relative", "alibi")
"""Positions that add columns to queries and keys."""
NORMS = ("pre", "post")
CORES = ("attention", "gru")
DEPTHS = ("stacked", "shared")
LIMITS = {"vocab_size": 1 << 24, "hidden_size": 1 << 16, "intermediate_size": 1 << 18}
LAYER_LIMIT = 1 << 10
POSITION_LIMIT = 1 << 24
NEIGHBOUR_LIMIT = 1 << 8
CHUNK_LIMIT = 1 << 10
GATE_LIMIT = 100.0
NEXT_LIMIT = 1 << 6

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
    feedforward_chunks: int = 1
    """Compute the feed-forward of so many parts of the positions one after another, and again in
    the backward: less memory, more time."""
    norm: str = "pre"
    """Norm before each part (pre) or after each sum (post)."""
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

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._check_sizes()
        self._check_choices()
        self._check_depth()
        self._check_tokens()
        for key, (layers, causal) in self.attention_keys.items():
            checked: list[dict[str, Any]] = []  # a thousand layers have few different attentions
            for index in range(0 if self.is_recurrent(key) else getattr(self, layers)):
                spec = self.layer_attention(key, index)
                if spec in checked[-2:]:
                    continue
                checked.append(spec)
                attention = build_attention(spec, causal=causal, shape=self.head_shape, key=key)
                self._check_columns(key, attention)
                self._check_spans(key, attention)

    @property
    def halting_config(self) -> HaltingConfig | None:
        """What `halting` says, checked; None where tokens do not halt."""
        if self.halting is None:
            return None
        return build_config(HaltingConfig, self.halting, prefix="halting.")

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Tokens that end a text, each once; the first is the one that training puts there."""
        ends = self.eos_token_id
        return tuple(dict.fromkeys(ends if isinstance(ends, list) else [ends]))

    def is_recurrent(self, key: str) -> bool:
        """Whether the layers whose attention would stand under `key` have a GRU in its place."""
        return key in self.core_keys and getattr(self, self.core_keys[key]) == "gru"

    def _fill_attention(self, key: str, kind: str) -> None:
        """Give layers a plain attention where none is given; recurrent ones have none."""
        if not self.is_recurrent(key):
            setattr(self, key, getattr(self, key) or {"kind": kind})
        elif getattr(self, key) is not None:
            message = f"has no effect with {self.core_keys[key]} gru; leave it out"
            raise ConfigError(key, message)

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

    def _check_spans(self, key: str, attention: AttentionBase) -> None:
        if self.residual != "reversible":
            return
        for part in attention.modules():
            config = getattr(part, "config", None)
            if isinstance(config, SpanConfig) and config.dynamic:
                message = "the cost of dynamic spans is of a pass, and reversible layers forget it"
                raise ConfigError(f"{key}.dynamic", f"{message}; use dynamic: false")

    def _check_depth(self) -> None:
        if self.depth != "shared":
            if self.halting is not None:
                raise ConfigError("halting", "is for one layer that is repeated; add depth: shared")
            return
        if self.residual == "reversible":
            raise ConfigError(
                "residual", "depth: shared has one layer to go back to; use add or gru"
            )
        for key in self.attention_keys:
            spec: AttentionSpec = getattr(self, key) or {}
            if isinstance(spec, list):
                raise ConfigError(key, "depth: shared has one layer; give one attention, no list")
            if spec.get("use") == "interleave" and spec.get("factor") is None:
                message = "depth: shared has one layer, so factors cannot take turns; use merge"
                raise ConfigError(f"{key}.use", message)
            if self.halting_config is not None:
                self._check_halting(key, spec)

    def _check_halting(self, key: str, spec: dict[str, Any]) -> None:
        if self.is_recurrent(key):
            message = "a gru reads every token, so none can halt; leave halting out"
            raise ConfigError(self.core_keys[key], message)
        if spec.get("kind") not in HALTING_KINDS:
            expected = ", ".join(HALTING_KINDS)
            message = f"{spec.get('kind')!r} cannot leave tokens out; with halting use {expected}"
            raise ConfigError(f"{key}.kind", message)
        _check_plain(key, spec, "tokens that halt look with")
        if self.position_correlation:
            message = "needs a token's neighbours, which may have halted; use one of the two"
            raise ConfigError("position_correlation", message)

    def _check_residual(self) -> None:
        if self.residual != "add" and self.norm != "pre":
            message = f"{self.norm!r} does not go with residual: {self.residual}; use pre"
            raise ConfigError("norm", message)
        if not 1 <= self.feedforward_chunks <= CHUNK_LIMIT:
            message = f"got {self.feedforward_chunks}, expected 1 to {CHUNK_LIMIT}"
            raise ConfigError("feedforward_chunks", message)
        if self.gate_bias is None:
            return
        if self.residual != "gru":
            message = f"has no effect on residual: {self.residual}; leave it out"
            raise ConfigError("gate_bias", message)
        if not -GATE_LIMIT <= self.gate_bias <= GATE_LIMIT:
            message = f"got {self.gate_bias}, expected {-GATE_LIMIT:g} to {GATE_LIMIT:g}"
            raise ConfigError("gate_bias", message)

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

    def _check_tokens(self) -> None:
        """Refuse special tokens that there is no embedding for."""
        for key in ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
            value = getattr(self, key, None)
            ids = [] if value is None else value if isinstance(value, list) else [value]
            if isinstance(value, list) and not value:
                raise ConfigError(key, "is an empty list; give at least one token")
            for token in ids:
                if not 0 <= token < self.vocab_size:
                    message = f"got {token}, but the vocabulary has {self.vocab_size} tokens"
                    raise ConfigError(key, message)

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
        choices = {
            "activation": ACTIVATIONS,
            "norm": NORMS,
            "residual": RESIDUALS,
            "depth": DEPTHS,
            "position": POSITIONS,
        }
        choices |= dict.fromkeys(self.core_keys.values(), CORES)
        for key, accepted in choices.items():
            value = getattr(self, key)
            if value not in accepted:
                expected = ", ".join(accepted)
                hint = nearest(value, accepted)
                raise ConfigError(key, f"unknown {value!r}{hint}; expected one of {expected}")
        for key in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, key) < 1:
                raise ConfigError(key, f"got {getattr(self, key)}, expected 0 to less than 1")
        self._check_residual()


@strict
class Seq2SeqConfig(_ModelConfig):
    """An encoder-decoder. Its defaults with `norm: post` and `logits_bias` are Marian's."""

    model_type = "outrider_seq2seq"
    layer_keys = ("encoder_layers", "decoder_layers")
    attention_keys = {  # noqa: RUF012 - a class variable of a Hugging Face dataclass
        "encoder_attention": ("encoder_layers", False),
        "decoder_attention": ("decoder_layers", True),
    }
    core_keys = {"decoder_attention": "decoder_core"}  # noqa: RUF012 - as above

    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all encoder layers, or a list with one per layer."""
    decoder_attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all decoder layers, or a list with one per layer."""
    decoder_core: str = "attention"
    """What decoder layers know the tokens before by: attention, or gru for a state of constant
    size."""
    pair_attention: bool = False
    """Let the encoder's states meet once more behind its last layer."""
    skip: dict[str, Any] | None = None
    """`{below: RATE, layers: [...]}`: these encoder layers (all, if not listed) leave out tokens
    that the training data holds less often than RATE times the vocabulary's size."""
    encoder: dict[str, Any] | None = None
    """`{pretrained: FOLDER, freeze: true, layer: -1}` reads the source with a BERT-like encoder (a
    folder or a Hub name) instead of encoder layers; a saved model holds its config here."""
    share_embeddings: bool = True
    """Source and target use one embedding table."""
    decoder_start_token_id: int = 0
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        self._fill_attention("encoder_attention", "full")
        self._fill_attention("decoder_attention", "causal")
        super().__post_init__(**kwargs)
        self._check_skip()
        self._check_encoder()

    @property
    def longest_source(self) -> int:
        """Most source tokens, end included, that can be read at once."""
        longest = self.max_positions
        return longest if self.encoder is None else min(longest, longest_row(self.encoder))

    def _check_encoder(self) -> None:
        if self.encoder is None:
            return
        check_encoder(self.encoder)
        usual = {"encoder_layers": 6, "encoder_attention": {"kind": "full"}, "skip": None}
        for key, value in {**usual, "share_embeddings": True}.items():
            if getattr(self, key) != value:
                message = "has no effect with encoder, which has layers and embeddings of its own"
                raise ConfigError(key, f"{message}; leave it out")

    @property
    def skip_config(self) -> SkipConfig | None:
        """What `skip` says, checked; None where every token takes part."""
        if self.skip is None:
            return None
        return build_config(SkipConfig, self.skip, prefix="skip.")

    def _check_skip(self) -> None:
        skip = self.skip_config
        if skip is None:
            return
        if self.depth != "stacked" or self.residual == "reversible":
            message = "is for layers of their own; use depth: stacked and residual: add or gru"
            raise ConfigError("skip", message)
        if self.position_correlation:
            message = "needs a token's neighbours, which may be skipped; use one of the two"
            raise ConfigError("position_correlation", message)
        last = self.encoder_layers - 1
        if not all(0 <= layer <= last for layer in skip.layers or ()):
            message = f"got {list(skip.layers or ())}, expected layers from 0 to {last}"
            raise ConfigError("skip.layers", message)
        for layer in range(self.encoder_layers) if skip.layers is None else skip.layers:
            spec = self.layer_attention("encoder_attention", layer)
            if spec.get("kind") not in SKIPPING_KINDS or spec.get("score") == "fast":
                message = f"layer {layer} asks how far apart tokens stand, so none can be skipped"
                expected = " or ".join(SKIPPING_KINDS)
                raise ConfigError(
                    "encoder_attention", f"{message}; use kind {expected}, and not score fast"
                )

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
    core_keys = {"attention": "core"}  # noqa: RUF012 - as above

    layers: int = 6
    attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all layers, or a list with one per layer."""
    core: str = "attention"
    """What layers know the tokens before by: attention, or gru for a state of constant size."""
    memory: int = 0
    """Tokens remembered from one segment of a text to the next; `max_positions` is a segment."""
    next_tokens: int = 1
    """Tokens ahead that every position learns to predict; only the next one is used to decode."""
    bos_token_id: int = 3
    is_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        self._fill_attention("attention", "causal")
        super().__post_init__(**kwargs)
        self._check_recurrent()
        self._check_memory()
        if not 1 <= self.next_tokens <= NEXT_LIMIT:
            message = f"got {self.next_tokens}, expected 1 to {NEXT_LIMIT}"
            raise ConfigError("next_tokens", message)

    def layer_attention(self, key: str, layer: int) -> dict[str, Any]:
        """Return the attention of one layer; one with memory sees that and a segment at once."""
        spec = super().layer_attention(key, layer)
        if not self.memory or spec.get("kind") != "causal":
            return spec
        return {**spec, "kind": "sliding", "window": self.memory + self.max_positions}

    def _check_recurrent(self) -> None:
        """Refuse what lives in an attention where there is none."""
        if self.core != "gru":
            return
        if self.position in IN_ATTENTION:
            expected = ", ".join(one for one in POSITIONS if one not in IN_ATTENTION)
            message = f"{self.position!r} lives in an attention; with core gru use one of"
            raise ConfigError("position", f"{message} {expected}")
        nothing = {"position_correlation": 0, "memory": 0, "num_key_value_heads": None}
        for key, value in {**nothing, "attention_dropout": 0.0}.items():
            if getattr(self, key) != value:
                raise ConfigError(key, "has no effect with core gru; leave it out")

    def _check_memory(self) -> None:
        if not 0 <= self.memory <= POSITION_LIMIT:
            raise ConfigError("memory", f"got {self.memory}, expected 0 to {POSITION_LIMIT}")
        if not self.memory:
            return
        if self.residual == "reversible":
            raise ConfigError("residual", "reversible layers have no memory; use add or gru")
        if self.depth == "shared":
            raise ConfigError("depth", "a memory is of layers, not of steps; use stacked with it")
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
            _check_plain("attention", spec, "a memory is looked at with")

    @property
    def first_token(self) -> int:
        """What a text begins with."""
        return self.bos_token_id

    @property
    def num_hidden_layers(self) -> int:
        """Hugging Face's name for `layers`."""
        return self.layers


def _check_plain(key: str, spec: Mapping[str, Any], why: str) -> None:
    """Refuse scores and normalisers that only whole passes and caches know how to compute."""
    usual = {"score": ("scaled_dot", "dot"), "normaliser": ("softmax",)}
    for option, known in usual.items():
        if spec.get(option, known[0]) not in known:
            raise ConfigError(f"{key}.{option}", f"{why} {known[0]}; leave {option} out")


def check_keys(
    config_class: type[PreTrainedConfig], values: Mapping[str, Any], *, prefix: str = ""
) -> None:
    """Refuse keys that the config class does not have; Hugging Face would take any."""
    known = {field.name for field in fields(config_class)} | {"model_type"}
    for key in values:
        if key not in known and not key.startswith("_"):
            hint = nearest(key, known)
            raise ConfigError(f"{prefix}{key}", f"unknown key of {config_class.__name__}{hint}")
