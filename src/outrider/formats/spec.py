"""The configs of all models as plain dataclasses, checked as untrusted input.

`outrider.torch.models.configs` derives Hugging Face configs from them, which also check the options
of every attention. Frequencies of rotary positions, with K the width of a head:

    default   f_k = theta^(-2k/K)                          k = 0 ... K/2 - 1
    linear    f_k / factor
    llama3    f_k                       if 2 pi / f_k < L / high
              f_k / factor              if 2 pi / f_k > L / low
              s f_k + (1 - s) f_k / factor    otherwise, s = (L f_k / 2 pi - low) / (high - low)

L is `original_max_position_embeddings`, low and high are `low_freq_factor` and `high_freq_factor`,
as in Hugging Face's configs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from outrider.errors import ConfigError, ModelError, nearest

AttentionSpec = dict[str, Any] | list[dict[str, Any]]
SpecT = TypeVar("SpecT")

POSITIONS = (
    *("sinusoidal", "learned", "coordinate", "rotary", "relative", "distance", "bucketed"),
    *("alibi", "none"),
)
EVEN_POSITIONS = ("sinusoidal", "coordinate", "rotary", "relative", "alibi")
"""Positions that need even widths."""
SHIFT_INVARIANT_POSITIONS = ("rotary", "relative", "alibi", "none")
"""Positions that depend on distances only."""
ATTENTION_POSITIONS = ("rotary", "relative", "distance", "bucketed", "alibi")
"""Positions that change attention and not embeddings."""
BIASES = ("relative", "alibi")
"""Positions that add columns to queries and keys."""
NORMS = ("pre", "post")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
RESIDUALS = ("add", "gru", "reversible")
DECODER_MIXERS = ("attention", "gru", "ssru")
ENCODER_MIXERS = ("attention", "gru", "lstm")
DEPTHS = ("stacked", "shared")
TRANSITIONS = ("feedforward", "separable_conv")
CHOICES = {
    "activation": ACTIVATIONS,
    "norm": NORMS,
    "residual": RESIDUALS,
    "transition": TRANSITIONS,
    "depth": DEPTHS,
    "position": POSITIONS,
}

WIDTH_LIMIT = 1 << 16
LAYER_LIMIT = 1 << 10
POSITION_LIMIT = 1 << 24
NEIGHBOUR_LIMIT = 1 << 8
BUCKET_LIMIT = 1 << 12
DEFAULT_DISTANCE = 16
"""Default `relative_distance` of `distance` positions."""
SIZES = {
    "vocab_size": (1, 1 << 24),
    "hidden_size": (1, WIDTH_LIMIT),
    "intermediate_size": (1, 1 << 18),
}
"""Ranges that all models share, side decoders included."""
RANGES = {
    **SIZES,
    "feedforward_chunks": (1, 1 << 10),
    "gate_bias": (-100, 100),
    "max_positions": (1, POSITION_LIMIT),
    "memory": (0, POSITION_LIMIT),
    "next_tokens": (1, 1 << 6),
    "position_correlation": (0, NEIGHBOUR_LIMIT),
    "position_mlp": (0, NEIGHBOUR_LIMIT),
}
NEEDS = {
    "rope_theta": ("position", ("rotary",)),
    "rope_scale": ("position", ("rotary",)),
    "relative_codes": ("position", ("relative",)),
    "relative_buckets": ("position", ("bucketed",)),
    "relative_distance": ("position", ("bucketed", "distance")),
    "gate_bias": ("residual", ("gru",)),
    "transition_widths": ("transition", ("separable_conv",)),
    "halting": ("depth", ("shared",)),
}
"""Optional keys, and the values of another key that they need."""

GENERAL = {
    *("architectures", "chunk_size_feed_forward", "dtype", "id2label", "is_decoder"),
    *("is_encoder_decoder", "label2id", "output_hidden_states", "problem_type", "return_dict"),
    "transformers_version",
}
"""Keys that Hugging Face writes into every config and that do not affect our models."""
TYPE_NAMES = {
    **{bool: "true or false", dict: "a section of keys", float: "a number"},
    **{int: "a whole number", list: "a list", str: "text", type(None): "null"},
}


def build_spec(cls: type[SpecT], values: Mapping[str, Any]) -> SpecT:
    """Build a spec from the values of a `config.json`, after checking their names and types."""
    # transformers' private keys begin with an underscore; one of them names remote code.
    own = {k: v for k, v in values.items() if k not in GENERAL and not k.startswith("_")}
    check_keys(cls, own)
    own.pop("model_type", None)
    hints = get_type_hints(cls)
    for key, value in own.items():
        check_type(key, value, hints[key])
    return cls(**own)


def check_keys(cls: type[Any], values: Mapping[str, Any], *, prefix: str = "") -> None:
    """Refuse keys that the class does not have; Hugging Face accepts any."""
    known = {field.name for field in fields(cls)} | {"model_type"}
    for key in values:
        if key not in known and not key.startswith("_"):
            name = cls.__name__.replace("Spec", "Config")
            raise ConfigError(f"{prefix}{key}", f"unknown key of {name}{nearest(key, known)}")


def check_type(key: str, value: Any, hint: Any) -> None:
    """Refuse a value that does not match a type hint; an int matches float, a bool is no int."""
    if not _matches(value, hint):
        raise ConfigError(key, f"got {value!r}, expected {_describe(hint)}")


def _matches(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_matches(value, argument) for argument in arguments)
    if origin is Literal:
        return any(type(value) is type(word) and value == word for word in arguments)
    if origin is list:
        return isinstance(value, list) and all(_matches(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict)  # keys of JSON are text
    if hint is Any or origin is not None:
        return True  # an attention checks other containers itself
    if hint is float and type(value) is int:
        return abs(value) < 1 << 1023
    return type(value) is hint


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(
            _describe(a) for a in arguments if a is not int or float not in arguments
        )
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    return TYPE_NAMES[origin or hint]


def check_range(key: str, value: float, least: float, most: float) -> None:
    """Refuse a number outside of [least, most]."""
    if not least <= value <= most:
        raise ConfigError(key, f"got {value}, expected {least} to {most}")


def check_choice(key: str, value: str, accepted: Sequence[str]) -> None:
    """Refuse a word that is not among those accepted."""
    if value not in accepted:
        expected = ", ".join(accepted)
        message = f"unknown {value!r}{nearest(value, accepted)}; expected one of {expected}"
        raise ConfigError(key, message)


def check_share(key: str, value: float) -> None:
    """Refuse a number outside of [0, 1)."""
    if not 0 <= value < 1:
        raise ConfigError(key, f"got {value}, expected 0 to less than 1")


def check_unused(config: object, defaults: Mapping[str, Any], part: str) -> None:
    """Refuse keys that a part leaves without effect, unless they have their defaults."""
    for key, value in defaults.items():
        if getattr(config, key) != value:
            raise ConfigError(key, f"has no effect with {part}; leave it out")


@dataclass(kw_only=True)
class ModelSpec:
    """The keys of all models."""

    model_type: ClassVar[str] = ""

    vocab_size: int = 8000
    hidden_size: int = 512
    """Model width."""
    num_attention_heads: int = 8
    """Heads of every attention; must divide the width, unless `head_dim` is given."""
    head_dim: int | None = None
    """Width of a head; null for the model's width divided by the heads."""
    num_key_value_heads: int | None = None
    """Key-value heads of self-attention; null for the number of heads."""
    intermediate_size: int = 2048
    """Feed-forward width."""
    activation: str = "relu"
    """relu, gelu, gelu_tanh (an approximation of gelu) or silu."""
    gated: bool = False
    """Gated feed-forward."""
    feedforward_chunks: int = 1
    """Compute the feed-forward, and its backward, in this many chunks of positions: less memory,
    more time."""
    transition: str = "feedforward"
    """The part of a layer after attention: feedforward, or separable_conv, which mixes
    neighbouring tokens."""
    transition_widths: list[int] | None = None
    """Widths, in tokens, of the two filters of `separable_conv`; null for 3 and 5."""
    norm: str = "pre"
    """Norm before each part (pre) or after each sum (post)."""
    rms_norm: bool = False
    """Norms divide by the root mean square only: no mean, no bias."""
    norm_eps: float = 1e-5
    """Added to the variance in a norm."""
    embedding_norm: bool = False
    """Apply a norm to embeddings plus positions, before the first layer."""
    residual: str = "add"
    """How a part's output joins its input: add, gru (a gate), or reversible (memory does not grow
    with depth)."""
    gate_bias: float | int | None = None
    """Initial bias of the gates of `residual: gru`; a larger value closes them further; null for
    6.5."""
    depth: str = "stacked"
    """stacked: every layer has its own weights; shared: one layer is applied repeatedly."""
    halting: dict[str, Any] | None = None
    """With `depth: shared`, `{threshold: 0.99, ponder: 0.01, bias: 1.0}` (or `{}`) halts each token
    after its own number of steps; null for the same number of steps."""
    pondering: dict[str, Any] | None = None
    """With a gru or lstm in place of attention, `{steps: 8, threshold: 0.99, ponder: 0.01,
    bias: 1.0}` (or `{}`) gives each token its own number of cell steps; null for one step."""
    position: str = "sinusoidal"
    """sinusoidal, learned, coordinate, rotary, relative, distance, bucketed, alibi or none."""
    rope_theta: float | int | None = None
    """Base of `rotary` positions; null for 10000."""
    rope_scale: dict[str, Any] | None = None
    """Scaling of the frequencies of `rotary` positions: `{rope_type: linear, factor: 2.0}`, or
    `rope_type: llama3` with its numbers."""
    relative_codes: int | None = None
    """Width of the codes of `relative` positions; null for the width of a head."""
    relative_buckets: int | None = None
    """Buckets of distances with a trained bias, for `bucketed` positions; null for 32."""
    relative_distance: int | None = None
    """Distance from which all distances count as equal: null for 128 with `bucketed` positions, for
    16 with `distance` positions."""
    position_correlation: int = 0
    """Width of the filters that mix neighbouring queries and keys; 0 for none."""
    position_mlp: int = 0
    """Number of tokens, the token itself included, that an MLP compares each token with before the
    first layer; 0 for none."""
    max_positions: int = 1024
    """Size of the table of learned positions; other positions have no limit."""
    dropout: float | int = 0.1
    """Dropout on embeddings and on the output of each part."""
    attention_dropout: float | int = 0.0
    """Dropout on attention weights; needs quadratic memory on long inputs."""
    activation_dropout: float | int = 0.0
    """Dropout inside the feed-forward."""
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
    """For each key of attentions: the key of the number of layers; whether they are causal."""
    mixer_keys: ClassVar[dict[str, str]] = {}
    """For each key of attentions that a recurrent mixer can replace: the key of the mixer."""

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Tokens that end a text, without repetition; training uses the first."""
        ends = self.eos_token_id
        return tuple(dict.fromkeys(ends if isinstance(ends, list) else [ends]))

    def is_recurrent(self, key: str) -> bool:
        """Whether the layers of an attention key have a recurrent mixer instead."""
        return self.mixer_of(key) != "attention"

    def mixer_of(self, key: str) -> str:
        """Return the mixer of the layers of an attention key."""
        return str(getattr(self, self.mixer_keys[key])) if key in self.mixer_keys else "attention"

    def fill_attention(self, key: str, kind: str) -> None:
        """Set the default attention; refuse an attention of recurrent layers."""
        if not self.is_recurrent(key):
            setattr(self, key, getattr(self, key) or {"kind": kind})
        elif getattr(self, key) is not None:
            message = f"has no effect with {self.mixer_keys[key]} {self.mixer_of(key)}"
            raise ConfigError(key, f"{message}; leave it out")

    def attentions(self, key: str) -> list[dict[str, Any]]:
        """Return the entries of an attention key: one for all layers, or one per layer."""
        specs: AttentionSpec = getattr(self, key) or {}
        return specs if isinstance(specs, list) else [specs]

    def layer_attention(self, key: str, layer: int) -> dict[str, Any]:
        """Return the attention of one layer."""
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
        """Number of buckets of `bucketed` positions, and the distance at which they end."""
        return self.relative_buckets or 32, self.relative_distance or 128

    @property
    def filter_widths(self) -> list[int]:
        """Widths of the two filters of a separable convolution."""
        return self.transition_widths or [3, 5]

    @property
    def embedding_scale(self) -> float:
        """Factor of embeddings."""
        return math.sqrt(self.hidden_size) if self.scale_embedding else 1.0

    @property
    def longest_source(self) -> int:
        """Longest source that fits the encoder, in tokens, end token included."""
        return self.max_positions

    @property
    def first_token(self) -> int:
        """First token of the decoder's input."""
        raise NotImplementedError

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Seq2SeqSpec(ModelSpec):
    """An encoder-decoder. Its defaults with `norm: post` and `logits_bias` are Marian's."""

    model_type: ClassVar[str] = "outrider_seq2seq"
    layer_keys: ClassVar[tuple[str, ...]] = ("encoder_layers", "decoder_layers")
    attention_keys: ClassVar[dict[str, tuple[str, bool]]] = {
        "encoder_attention": ("encoder_layers", False),
        "decoder_attention": ("decoder_layers", True),
    }
    mixer_keys: ClassVar[dict[str, str]] = {
        "encoder_attention": "encoder_core",
        "decoder_attention": "decoder_core",
    }

    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all encoder layers, or a list with one per layer."""
    decoder_attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all decoder layers, or a list with one per layer."""
    cross_attention: dict[str, Any] | None = None
    """`{score: ..., normaliser: ..., head_gate: ...}` of attention to the source; null for scaled
    dot product and softmax."""
    encoder_core: str = "attention"
    """How encoder layers mix tokens: attention, or a gru or lstm in both directions."""
    decoder_core: str = "attention"
    """How decoder layers mix tokens: attention, or gru or ssru (faster), whose state has a constant
    size."""
    pair_attention: bool = False
    """Apply one more pair attention to the encoder's output."""
    skip: dict[str, Any] | None = None
    """`{below: RATE, layers: [...]}`: these encoder layers (null for all) skip tokens that are
    rarer in the training data than RATE times the vocabulary size."""
    encoder: dict[str, Any] | None = None
    """`{pretrained: FOLDER, freeze: true, layer: -1}` uses a BERT-like encoder (a folder or a Hub
    name) instead of encoder layers; a saved model stores the encoder's config here."""
    share_embeddings: bool = True
    """Source and target share one embedding table."""
    decoder_start_token_id: int = 0
    source_end: bool = True
    """Append the end token to sources; some OpenNMT models are trained without it."""
    right_to_left: bool = False
    """Generate targets from the last token to the first; texts come out in normal order."""

    def __post_init__(self) -> None:
        self.fill_attention("encoder_attention", "full")
        self.fill_attention("decoder_attention", "causal")
        check_model(self)
        self._check_skip()
        self._check_encoder()

    def _check_encoder(self) -> None:
        if self.encoder is None:
            return
        defaults: dict[str, Any] = {
            "encoder_layers": 6,
            "encoder_attention": {"kind": "full"},
            "skip": None,
            "encoder_core": "attention",
            "share_embeddings": True,
        }
        check_unused(self, defaults, "encoder, which has its own layers and embeddings")

    def _check_skip(self) -> None:
        if self.skip is None:
            return
        if self.encoder_core != "attention":
            raise ConfigError("skip", f"a {self.encoder_core} cannot skip tokens; leave skip out")
        if self.depth != "stacked" or self.residual == "reversible":
            raise ConfigError("skip", "needs depth: stacked and residual: add or gru")
        if self.position_correlation:
            message = "needs neighbours, which skip may remove; leave one of the two out"
            raise ConfigError("position_correlation", message)

    @property
    def first_token(self) -> int:
        """First token of the decoder's input."""
        return self.decoder_start_token_id

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder."""
        return self.decoder_layers


@dataclass(kw_only=True)
class LanguageModelSpec(ModelSpec):
    """A decoder-only language model."""

    model_type: ClassVar[str] = "outrider_lm"
    layer_keys: ClassVar[tuple[str, ...]] = ("layers",)
    attention_keys: ClassVar[dict[str, tuple[str, bool]]] = {"attention": ("layers", True)}
    mixer_keys: ClassVar[dict[str, str]] = {"attention": "core"}

    layers: int = 6
    attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all layers, or a list with one per layer."""
    core: str = "attention"
    """How layers mix tokens: attention, or gru or ssru (faster), whose state has a constant
    size."""
    memory: int = 0
    """Tokens of earlier segments that are attended to; `max_positions` is the length of a
    segment."""
    next_tokens: int = 1
    """Number of following tokens that every position is trained to predict; decoding uses the
    first."""
    bos_token_id: int = 3
    add_bos_token: bool | None = True
    """Begin every text with `bos_token_id`; null for the tokenizer's own choice."""

    def __post_init__(self) -> None:
        self.fill_attention("attention", "causal")
        check_model(self)
        self._check_recurrent()
        self._check_memory()

    def layer_attention(self, key: str, layer: int) -> dict[str, Any]:
        """Return the attention of one layer; with memory, its window covers memory and segment."""
        spec = super().layer_attention(key, layer)
        if not self.memory or spec.get("kind") != "causal":
            return spec
        return {**spec, "kind": "sliding", "window": self.memory + self.max_positions}

    def _check_recurrent(self) -> None:
        """Refuse keys of attention in a model without attention."""
        if self.core == "attention":
            return
        if self.position in ATTENTION_POSITIONS:
            expected = ", ".join(word for word in POSITIONS if word not in ATTENTION_POSITIONS)
            message = f"{self.position!r} needs attention; with core {self.core} use one of"
            raise ConfigError("position", f"{message} {expected}")
        defaults = {"position_correlation": 0, "memory": 0, "num_key_value_heads": None}
        check_unused(self, {**defaults, "attention_dropout": 0.0}, f"core {self.core}")

    def _check_memory(self) -> None:
        if not self.memory:
            return
        if self.residual == "reversible":
            raise ConfigError("residual", "reversible layers have no memory; use add or gru")
        if self.depth == "shared":
            raise ConfigError("depth", "shared layers have no memory; use stacked")
        if self.position not in SHIFT_INVARIANT_POSITIONS:
            expected = ", ".join(SHIFT_INVARIANT_POSITIONS)
            message = (
                f"{self.position!r} counts from the start of a segment; with memory use one of"
            )
            raise ConfigError("position", f"{message} {expected}")
        for key in ("position_correlation", "position_mlp"):
            if getattr(self, key):
                raise ConfigError(key, "does not cover a memory; leave one of the two out")
        for spec in self.attentions("attention"):
            if spec.get("kind") != "causal":
                raise ConfigError("attention", "memory needs {kind: causal}")
            check_usual_score("attention", spec, "memory needs")

    @property
    def first_token(self) -> int:
        """First token of the decoder's input."""
        return self.bos_token_id

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder."""
        return self.layers


@dataclass(kw_only=True)
class MaskedLmSpec(ModelSpec):
    """A masked language model: an encoder that predicts masked tokens."""

    model_type: ClassVar[str] = "outrider_masked_lm"
    layer_keys: ClassVar[tuple[str, ...]] = ("layers",)
    attention_keys: ClassVar[dict[str, tuple[str, bool]]] = {"attention": ("layers", False)}

    layers: int = 6
    attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all layers, or a list with one per layer."""
    bos_token_id: int = 3
    mask_token_id: int = 4
    """Replaces masked tokens."""

    def __post_init__(self) -> None:
        self.fill_attention("attention", "full")
        if any(spec.get("kind") == "causal" for spec in self.attentions("attention")):
            message = "'causal' attends to earlier tokens only, a masked_lm to both sides; use full"
            raise ConfigError("attention.kind", message)
        check_model(self)


def check_model(config: ModelSpec) -> None:
    """Refuse values and combinations that no model can be built from."""
    choices: dict[str, tuple[str, ...]] = dict(CHOICES)
    for attention, mixer in config.mixer_keys.items():
        causal = config.attention_keys[attention][1]
        choices[mixer] = DECODER_MIXERS if causal else ENCODER_MIXERS
    for key, accepted in choices.items():
        check_choice(key, getattr(config, key), accepted)
    for key, (least, most) in {
        **RANGES,
        **dict.fromkeys(config.layer_keys, (1, LAYER_LIMIT)),
    }.items():
        if (value := getattr(config, key, None)) is not None:
            check_range(key, value, least, most)
    for key in ("dropout", "attention_dropout", "activation_dropout"):
        check_share(key, getattr(config, key))
    if not 0 < config.norm_eps < 1:
        raise ConfigError("norm_eps", f"got {config.norm_eps}, expected above 0, less than 1")
    for key, (other, values) in NEEDS.items():
        if getattr(config, key) is not None and getattr(config, other) not in values:
            message = f"has no effect with {other}: {getattr(config, other)}; leave it out, or use"
            raise ConfigError(key, f"{message} {other}: {' or '.join(values)}")
    _check_heads(config)
    _check_positions(config)
    _check_layers(config)
    _check_transition(config)
    _check_pondering(config)
    _check_tokens(config)
    for key, (layers, _) in config.attention_keys.items():
        if not config.is_recurrent(key) and getattr(config, layers):
            config.layer_attention(key, 0)  # checks the length of a list


def _check_heads(config: ModelSpec) -> None:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    width = config.head_dim
    if heads < 1:
        raise ConfigError("num_attention_heads", f"got {heads}, expected 1 or more")
    if width is None and config.hidden_size % heads:
        message = f"got {heads}, which does not divide hidden_size {config.hidden_size}"
        raise ConfigError("num_attention_heads", message)
    if width is not None and not 1 <= width * heads <= WIDTH_LIMIT:
        message = f"got {width}, but {heads} heads must be 1 to {WIDTH_LIMIT} wide together"
        raise ConfigError("head_dim", message)
    if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        message = f"got {kv_heads}, which does not divide num_attention_heads {heads}"
        raise ConfigError("num_key_value_heads", message)


def _check_positions(config: ModelSpec) -> None:
    position = config.position
    if position in EVEN_POSITIONS:
        for part, width in (("head", config.head_width), ("model", config.hidden_size)):
            if width % 2:
                message = f"{position!r} needs an even {part} width, not {width}"
                raise ConfigError("position", message)
    codes = config.relative_codes
    if codes is not None and (not 2 <= codes <= WIDTH_LIMIT or codes % 2):
        message = f"got {codes}, expected an even number from 2 to {WIDTH_LIMIT}"
        raise ConfigError("relative_codes", message)
    theta = config.rope_theta
    if theta is not None and not 1 < theta <= ROTARY_LIMIT:
        message = f"got {theta}, expected above 1, at most {ROTARY_LIMIT:g}"
        raise ConfigError("rope_theta", message)
    if config.rope_scale is not None:
        _check_scaling(config.rope_scale)
    if position == "distance" and config.relative_distance is not None:
        check_range("relative_distance", config.relative_distance, 1, BUCKET_LIMIT)
    if position == "bucketed":
        buckets, distance = config.buckets
        if not 4 <= buckets <= BUCKET_LIMIT or buckets % 4:
            message = f"got {buckets}, expected a multiple of 4 up to {BUCKET_LIMIT}"
            raise ConfigError("relative_buckets", message)
        if not buckets // 2 < distance <= POSITION_LIMIT:
            message = f"got {distance}, expected above {buckets // 2}, at most {POSITION_LIMIT}"
            raise ConfigError("relative_distance", message)
    if position in ("distance", "bucketed"):
        _check_pair_bias(config)


def _check_pair_bias(config: ModelSpec) -> None:
    """Refuse parts that do not compute the score of every pair, to which a bias is added."""
    position = config.position
    for key in ("halting", "skip"):
        if getattr(config, key, None) is not None:
            raise ConfigError("position", f"{position!r} does not go with {key}; use rotary")
    if config.residual == "reversible":
        message = f"{position!r} does not go with residual: reversible; use rotary"
        raise ConfigError("position", message)
    for key in config.attention_keys:
        for spec in [] if config.is_recurrent(key) else config.attentions(key):
            if set(spec) - {"kind"} or spec.get("kind") not in ("causal", "full"):
                message = f"{position!r} goes with plain full and causal attention; use rotary"
                raise ConfigError("position", message)


def _check_layers(config: ModelSpec) -> None:
    if config.residual != "add" and config.norm != "pre":
        message = f"{config.norm!r} does not go with residual: {config.residual}; use pre"
        raise ConfigError("norm", message)
    if config.depth != "shared":
        return
    if config.residual == "reversible":
        raise ConfigError("residual", "depth: shared has no reversible layers; use add or gru")
    for key in config.attention_keys:
        if isinstance(getattr(config, key), list):
            raise ConfigError(key, "depth: shared has one layer; give one attention, not a list")


def _check_transition(config: ModelSpec) -> None:
    if config.transition == "feedforward":
        return
    widths = config.filter_widths
    if len(widths) != 2 or not all(1 <= width <= NEIGHBOUR_LIMIT for width in widths):
        message = f"got {widths}, expected two numbers from 1 to {NEIGHBOUR_LIMIT}"
        raise ConfigError("transition_widths", message)
    if config.feedforward_chunks != 1:
        message = "cuts texts into chunks, which a separable_conv mixes; leave it out, or use"
        raise ConfigError("feedforward_chunks", f"{message} transition: feedforward")
    for key in ("halting", "skip", "memory"):
        if getattr(config, key, None) not in (None, 0):
            message = f"separable_conv needs neighbours, which {key} may remove; leave {key} out"
            raise ConfigError("transition", f"{message}, or use feedforward")


def _check_pondering(config: ModelSpec) -> None:
    if config.pondering is None:
        return
    if not {config.mixer_of(key) for key in config.mixer_keys} & {"gru", "lstm"}:
        keys = " or ".join(config.mixer_keys.values())
        message = f"needs a cell that reads its own state; set {keys} to gru, or leave it out"
        raise ConfigError("pondering", message)
    if config.depth == "shared":
        raise ConfigError("pondering", "depth: shared repeats whole layers already; use stacked")
    if config.residual == "reversible":
        message = "does not go with residual: reversible, whose backward loses its cost; leave it"
        raise ConfigError("pondering", f"{message} out, or use add or gru")


def _check_tokens(config: ModelSpec) -> None:
    """Refuse special tokens outside of the vocabulary."""
    for name in ("pad", "eos", "bos", "decoder_start", "mask"):
        key = f"{name}_token_id"
        value = getattr(config, key, None)
        if value == []:
            raise ConfigError(key, "is an empty list; give at least one token")
        for token in value if isinstance(value, list) else [value]:
            if token is not None and not 0 <= token < config.vocab_size:
                message = f"got {token}, but the vocabulary has {config.vocab_size} tokens"
                raise ConfigError(key, message)


def check_usual_score(key: str, spec: Mapping[str, Any], why: str) -> None:
    """Refuse scores and normalisers other than the dot product and softmax."""
    usual = {"score": ("scaled_dot", "dot"), "normaliser": ("softmax",)}
    for option, known in usual.items():
        if spec.get(option, known[0]) not in known:
            raise ConfigError(f"{key}.{option}", f"{why} {known[0]}; leave {option} out")


DEFAULT_THETA = 10_000.0
ROTARY_LIMIT = 1e12
ROPE_OPTIONS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
}
"""Kinds of scaling, and the numbers that each needs."""


def _check_scaling(scaling: Mapping[str, Any]) -> None:
    kind = scaling.get("rope_type")
    if not isinstance(kind, str) or kind not in ROPE_OPTIONS:
        hint = nearest(kind, ROPE_OPTIONS) if isinstance(kind, str) else ""
        message = f"unknown {repr(kind)[:80]}{hint}; expected one of {', '.join(ROPE_OPTIONS)}"
        raise ConfigError("rope_scale.rope_type", message)
    options = ROPE_OPTIONS[kind]
    for key in scaling:
        if key != "rope_type" and key not in options:
            message = f"unknown option of {kind!r}{nearest(key, options)}"
            raise ConfigError(f"rope_scale.{key}", message)
    for key in options:
        value = scaling.get(key)
        if type(value) not in (int, float) or not 0 < value <= ROTARY_LIMIT:  # type: ignore[operator]
            message = f"got {repr(value)[:80]}, expected a number above 0, at most {ROTARY_LIMIT:g}"
            raise ConfigError(f"rope_scale.{key}", message)
    if kind == "llama3" and not scaling["low_freq_factor"] < scaling["high_freq_factor"]:
        raise ConfigError("rope_scale.high_freq_factor", "must be above low_freq_factor")


def rotary_frequencies(config: ModelSpec) -> tuple[float, ...]:
    """Return the angle between neighbouring positions for each pair of a head's dimensions."""
    width, theta = config.head_width, config.rope_theta or DEFAULT_THETA
    scaling = config.rope_scale or {"rope_type": "default"}
    plain = [float(theta) ** (-2 * k / width) for k in range(width // 2)]
    return tuple(_scale(frequency, scaling) for frequency in plain)


def _scale(frequency: float, scaling: Mapping[str, Any]) -> float:
    if scaling["rope_type"] == "default":
        return frequency
    slow: float = frequency / scaling["factor"]
    if scaling["rope_type"] == "linear":
        return slow
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    share: float = min(max((waves - low) / (high - low), 0.0), 1.0)
    return share * frequency + (1 - share) * slow


def bucket_edges(buckets: int, distance: int) -> list[int]:
    """Return the first distance of each bucket of T5's positions but the first, for one side."""
    exact = buckets // 2
    edges = list(range(1, exact + 1))
    for number in range(exact + 1, buckets):
        low, high = edges[-1], max(distance, edges[-1])
        while low < high:
            middle = (low + high) // 2
            if _bucket(middle, buckets, distance) < number:
                low = middle + 1
            else:
                high = middle
        edges.append(low)
    return edges


def _bucket(far: int, buckets: int, distance: int) -> int:
    """Return the bucket of a distance beyond the exact ones, in float32 as in T5's training."""
    exact = buckets // 2
    share = np.float32(math.log(np.float32(far) / np.float32(exact)))
    share = share / np.float32(math.log(distance / exact))
    return min(buckets - 1, exact + int(share * np.float32(buckets - exact)))


def special_tokens(
    config: ModelSpec, more_ends: Sequence[int] = ()
) -> tuple[int, tuple[int, ...], int]:
    """Return the start token, the end tokens and padding of a model, checked.

    `more_ends` are the end tokens of `generation_config.json`.
    """
    if not config.end_tokens:
        raise ModelError("eos_token_id in config.json is an empty list; it must name an end token")
    start, pad = config.first_token, config.pad_token_id
    ids = [("eos_token_id in config.json", end) for end in config.end_tokens]
    ids += [("eos_token_id in generation_config.json", end) for end in more_ends]
    ids += [("pad_token_id in config.json", pad), ("first token in config.json", start)]
    for name, value in ids:
        if not 0 <= value < config.vocab_size:
            raise ModelError(f"{name} is {value}, not a token of this model")
    return start, tuple(dict.fromkeys([*config.end_tokens, *more_ends])), pad
