"""The keys that all models have, and what follows from them.

The buckets of distances that T5's positions have a bias for (`nn.position.bucketed`).

What no model may ask for, whichever it is; a config is untrusted input.

The words and sizes that descriptions of models accept.

Which keys a description has, and which values they take.

The description of an encoder-decoder.

The description of a decoder-only language model.

The description of a masked language model.

The frequencies of rotary positions, and how models stretched them to read longer texts.

    default   f_k = theta^(-2k/K)                          k = 0 ... K/2 - 1
    linear    f_k / factor
    llama3    f_k                       where a wave 2 pi / f_k is shorter than L / high
              f_k / factor              where it is longer than L / low
              between the two, with s = (L f_k / 2 pi - low) / (high - low):
              s f_k + (1 - s) f_k / factor

L is `original_max_position_embeddings`, low and high are `low_freq_factor` and `high_freq_factor`.
The names are those of Hugging Face's configs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from outrider.errors import ConfigError, nearest

__all__ = [
    "ACTIVATIONS",
    "BIASES",
    "BUCKET_LIMIT",
    "CHUNK_LIMIT",
    "CORES",
    "DEPTHS",
    "ENCODER_CORES",
    "EVEN_POSITIONS",
    "FARTHEST",
    "GATE_LIMIT",
    "IN_ATTENTION",
    "LAYER_LIMIT",
    "LIMITS",
    "NEIGHBOUR_LIMIT",
    "NEXT_LIMIT",
    "NORMS",
    "POSITIONS",
    "POSITION_LIMIT",
    "RESIDUALS",
    "SHIFTED_POSITIONS",
    "TRANSITIONS",
    "AttentionSpec",
    "LanguageModelSpec",
    "MaskedLmSpec",
    "ModelSpec",
    "Seq2SeqSpec",
    "bucket_edges",
    "build_spec",
    "check_keys",
    "check_model",
    "check_rotary",
    "check_usual_score",
    "rotary_frequencies",
]

AttentionSpec = dict[str, Any] | list[dict[str, Any]]


@dataclass(kw_only=True)
class ModelSpec:
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


def bucket_edges(buckets: int, distance: int) -> list[int]:
    """Return the distances at which the buckets of one side begin, but for the first, which is 0.

    So a distance is in the bucket of as many edges as are not above it.
    """
    exact = buckets // 2
    edges = list(range(1, exact + 1))
    for number in range(exact + 1, buckets):
        low, high = edges[-1], max(distance, edges[-1])  # the first that is far enough
        while low < high:
            middle = (low + high) // 2
            if _bucket(middle, buckets, distance) < number:
                low = middle + 1
            else:
                high = middle
        edges.append(low)
    return edges


def _bucket(far: int, buckets: int, distance: int) -> int:
    """Return the bucket of a distance beyond the exact ones.

    In float32 as the models were trained: a rounding decides where one begins.
    """
    exact = buckets // 2
    share = np.float32(math.log(np.float32(far) / np.float32(exact)))
    share = share / np.float32(math.log(distance / exact))
    return min(buckets - 1, exact + int(share * np.float32(buckets - exact)))


POSITIONS = (
    *("sinusoidal", "learned", "coordinate", "rotary", "relative", "distance", "bucketed"),
    *("alibi", "none"),
)
EVEN_POSITIONS = ("sinusoidal", "coordinate", "rotary", "relative", "alibi")
SHIFTED_POSITIONS = ("rotary", "relative", "alibi", "none")
"""Those that only know how far apart two tokens stand, or nothing."""
IN_ATTENTION = ("rotary", "relative", "distance", "bucketed", "alibi")
"""Those that say nothing to embeddings."""
BIASES = ("relative", "alibi")
"""Positions that add columns to queries and keys."""
NORMS = ("pre", "post")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
RESIDUALS = ("add", "gru", "reversible")
CORES = ("attention", "gru", "ssru")
"""Of layers that write."""
ENCODER_CORES = ("attention", "gru", "lstm")
DEPTHS = ("stacked", "shared")
TRANSITIONS = ("feedforward", "separable_conv")
LIMITS = {"vocab_size": 1 << 24, "hidden_size": 1 << 16, "intermediate_size": 1 << 18}
LAYER_LIMIT = 1 << 10
POSITION_LIMIT = 1 << 24
NEIGHBOUR_LIMIT = 1 << 8
CHUNK_LIMIT = 1 << 10
GATE_LIMIT = 100.0
BUCKET_LIMIT = 1 << 12
FARTHEST = 16
"""Distance from which `distance` positions are all alike, where nobody says another."""
NEXT_LIMIT = 1 << 6


DescriptionT = TypeVar("DescriptionT")

GENERAL = {
    *("architectures", "chunk_size_feed_forward", "dtype", "id2label", "is_decoder"),
    *("is_encoder_decoder", "label2id", "output_hidden_states", "problem_type", "return_dict"),
    "transformers_version",
}
"""Keys that Hugging Face gives every config, and that say nothing of how ours compute."""
NAMES = {
    **{bool: "true or false", dict: "a section of keys", float: "a number"},
    **{int: "a whole number", list: "a list", str: "text", type(None): "null"},
}


def build_spec(cls: type[DescriptionT], values: Mapping[str, Any]) -> DescriptionT:
    """Build a description from the values of a `config.json`, after checking every one of them."""
    # Names with an underscore are transformers' own, and one of them names code to fetch.
    own = {k: v for k, v in values.items() if k not in GENERAL and not k.startswith("_")}
    check_keys(cls, own)
    own.pop("model_type", None)
    hints = get_type_hints(cls)
    for key, value in own.items():
        if not _suits(value, hints[key]):
            raise ConfigError(key, f"got {value!r}, expected {_named(hints[key])}")
    return cls(**own)


def check_keys(cls: type[Any], values: Mapping[str, Any], *, prefix: str = "") -> None:
    """Refuse keys that the class does not have; Hugging Face would take any."""
    known = {field.name for field in fields(cls)} | {"model_type"}
    for key in values:
        if key not in known and not key.startswith("_"):
            name = cls.__name__.replace("Spec", "Config")
            raise ConfigError(f"{prefix}{key}", f"unknown key of {name}{nearest(key, known)}")


def _suits(value: Any, wanted: Any) -> bool:
    if wanted is Any:
        return True
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return any(_suits(value, one) for one in arguments)
    if origin is list:
        return isinstance(value, list) and all(_suits(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict)  # keys of JSON are text
    return type(value) is wanted  # true is no whole number


def _named(wanted: Any) -> str:
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_named(one) for one in get_args(wanted)))
    return NAMES[get_origin(wanted) or wanted]


THETA = 10_000.0
LARGEST = 1e12
OPTIONS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
}
"""The kinds of scaling that are known, and the numbers each needs."""


def check_rotary(config: ModelSpec) -> None:
    """Refuse a base or a scaling that frequencies cannot be computed from."""
    theta, scaling = config.rope_theta, config.rope_scale
    for key, value in {"rope_theta": theta, "rope_scale": scaling}.items():
        if value is not None and config.position != "rotary":
            message = f"has no effect on {config.position!r} positions; leave it out"
            raise ConfigError(key, message)
    if theta is not None and not 1 < theta <= LARGEST:
        raise ConfigError("rope_theta", f"got {theta}, expected above 1, at most {LARGEST:g}")
    if scaling is not None:
        _check_scaling(scaling)


def _check_scaling(scaling: Mapping[str, Any]) -> None:
    kind = scaling.get("rope_type")
    if not isinstance(kind, str) or kind not in OPTIONS:
        expected = ", ".join(OPTIONS)
        hint = nearest(kind, OPTIONS) if isinstance(kind, str) else ""
        message = f"unknown {repr(kind)[:80]}{hint}; expected one of {expected}"
        raise ConfigError("rope_scale.rope_type", message)
    wanted = OPTIONS[kind]
    for key in scaling:
        if key != "rope_type" and key not in wanted:
            message = f"unknown option of {kind!r}{nearest(key, wanted)}"
            raise ConfigError(f"rope_scale.{key}", message)
    for key in wanted:
        value = scaling.get(key)
        if type(value) not in (int, float) or not 0 < value <= LARGEST:  # type: ignore[operator]
            message = f"got {repr(value)[:80]}, expected a number above 0, at most {LARGEST:g}"
            raise ConfigError(f"rope_scale.{key}", message)
    if kind == "llama3" and not scaling["low_freq_factor"] < scaling["high_freq_factor"]:
        raise ConfigError("rope_scale.high_freq_factor", "must be above low_freq_factor")


def rotary_frequencies(config: ModelSpec) -> tuple[float, ...]:
    """Return by how much each pair of a head is turned from one position to the next."""
    width, theta = config.head_width, config.rope_theta or THETA
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


NEIGHBOURLESS = {
    "halting": "may have halted",
    "skip": "may be skipped",
    "memory": "it cannot find in a memory",
}
"""Keys with which a token may have no neighbours, and why."""


def check_model(config: ModelSpec) -> None:
    """Refuse sizes, words and combinations of them that no model can be built from."""
    _check_sizes(config)
    _check_choices(config)
    _check_depth(config)
    _check_transition(config)
    _check_pondering(config)
    _check_tokens(config)
    check_rotary(config)
    _check_buckets(config)
    for key, (layers, _) in config.attention_keys.items():
        if not config.is_recurrent(key) and getattr(config, layers):
            config.layer_attention(key, 0)  # as many as there are layers


def _check_sizes(config: ModelSpec) -> None:
    limits = LIMITS | dict.fromkeys(config.layer_keys, LAYER_LIMIT)
    limits["max_positions"] = POSITION_LIMIT
    for key, limit in limits.items():
        value = getattr(config, key)
        if not 1 <= value <= limit:
            raise ConfigError(key, f"got {value}, expected 1 to {limit}")
    for key in ("position_correlation", "position_mlp"):
        if not 0 <= getattr(config, key) <= NEIGHBOUR_LIMIT:
            message = f"got {getattr(config, key)}, expected 0 to {NEIGHBOUR_LIMIT}"
            raise ConfigError(key, message)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    _check_heads(config)
    if config.position in EVEN_POSITIONS:
        for part, width in (("head", config.head_width), ("model", config.hidden_size)):
            if width % 2:
                message = f"{config.position!r} needs an even {part} width, not {width}"
                raise ConfigError("position", message)
    _check_codes(config)
    if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        message = f"got {kv_heads}, which does not divide num_attention_heads {heads}"
        raise ConfigError("num_key_value_heads", message)


def _check_heads(config: ModelSpec) -> None:
    heads, width, limit = config.num_attention_heads, config.head_dim, LIMITS["hidden_size"]
    if width is None and (heads < 1 or config.hidden_size % heads):
        message = f"got {heads}, which does not divide hidden_size {config.hidden_size}"
        raise ConfigError("num_attention_heads", message)
    if heads < 1:
        raise ConfigError("num_attention_heads", f"got {heads}, expected 1 or more")
    if width is not None and not 1 <= width * heads <= limit:
        message = f"got {width}, and {heads} heads of it are not 1 to {limit} wide"
        raise ConfigError("head_dim", message)


def _check_buckets(config: ModelSpec) -> None:
    known = {"relative_buckets": ("bucketed",), "relative_distance": ("bucketed", "distance")}
    for key, positions in known.items():
        if getattr(config, key) is not None and config.position not in positions:
            message = f"has no effect on {config.position!r} positions; leave it out"
            raise ConfigError(key, message)
    if config.position == "distance":
        _check_plain_pairs(config)
        farthest = config.relative_distance
        if farthest is not None and not 1 <= farthest <= BUCKET_LIMIT:
            message = f"got {farthest}, expected 1 to {BUCKET_LIMIT}"
            raise ConfigError("relative_distance", message)
    if config.position != "bucketed":
        return
    buckets, distance = config.buckets
    if not 4 <= buckets <= BUCKET_LIMIT or buckets % 4:
        message = f"got {buckets}, expected a multiple of 4 up to {BUCKET_LIMIT}"
        raise ConfigError("relative_buckets", message)
    if not buckets // 2 < distance <= POSITION_LIMIT:
        message = f"got {distance}, expected above {buckets // 2}, at most {POSITION_LIMIT}"
        raise ConfigError("relative_distance", message)
    _check_plain_pairs(config)


def _check_plain_pairs(config: ModelSpec) -> None:
    """Refuse what computes no score for every pair, to which something could be added."""
    position = config.position
    for key in ("halting", "skip"):
        if getattr(config, key, None) is not None:
            raise ConfigError("position", f"{position!r} does not go with {key}; use rotary")
    if config.residual == "reversible":
        message = f"{position!r} does not go with residual: reversible; use rotary"
        raise ConfigError("position", message)
    for key in config.attention_keys:
        if config.is_recurrent(key):
            continue
        specs = getattr(config, key)
        for spec in specs if isinstance(specs, list) else [specs or {}]:
            if set(spec) - {"kind"} or spec.get("kind") not in ("causal", "full"):
                message = f"{position!r} goes with plain full and causal attention; use rotary"
                raise ConfigError("position", message)


def _check_codes(config: ModelSpec) -> None:
    codes = config.relative_codes
    if codes is None:
        return
    if config.position != "relative":
        message = f"has no effect on {config.position!r} positions; leave it out"
        raise ConfigError("relative_codes", message)
    limit = LIMITS["hidden_size"]
    if not 2 <= codes <= limit or codes % 2:
        message = f"got {codes}, expected an even number from 2 to {limit}"
        raise ConfigError("relative_codes", message)


def _check_choices(config: ModelSpec) -> None:
    choices = {
        "activation": ACTIVATIONS,
        "norm": NORMS,
        "residual": RESIDUALS,
        "transition": TRANSITIONS,
        "depth": DEPTHS,
        "position": POSITIONS,
    }
    for attention, key in config.core_keys.items():
        choices[key] = CORES if config.attention_keys[attention][1] else ENCODER_CORES
    for key, accepted in choices.items():
        value = getattr(config, key)
        if value not in accepted:
            expected = ", ".join(accepted)
            hint = nearest(value, accepted)
            raise ConfigError(key, f"unknown {value!r}{hint}; expected one of {expected}")
    for key in ("dropout", "attention_dropout", "activation_dropout"):
        if not 0 <= getattr(config, key) < 1:
            raise ConfigError(key, f"got {getattr(config, key)}, expected 0 to less than 1")
    if not 0 < config.norm_eps < 1:
        raise ConfigError("norm_eps", f"got {config.norm_eps}, expected above 0, less than 1")
    _check_residual(config)


def _check_residual(config: ModelSpec) -> None:
    if config.residual != "add" and config.norm != "pre":
        message = f"{config.norm!r} does not go with residual: {config.residual}; use pre"
        raise ConfigError("norm", message)
    if not 1 <= config.feedforward_chunks <= CHUNK_LIMIT:
        message = f"got {config.feedforward_chunks}, expected 1 to {CHUNK_LIMIT}"
        raise ConfigError("feedforward_chunks", message)
    if config.gate_bias is None:
        return
    if config.residual != "gru":
        message = f"has no effect on residual: {config.residual}; leave it out"
        raise ConfigError("gate_bias", message)
    if not -GATE_LIMIT <= config.gate_bias <= GATE_LIMIT:
        message = f"got {config.gate_bias}, expected {-GATE_LIMIT:g} to {GATE_LIMIT:g}"
        raise ConfigError("gate_bias", message)


def _check_depth(config: ModelSpec) -> None:
    if config.depth != "shared":
        if config.halting is not None:
            raise ConfigError("halting", "is for one layer that is repeated; add depth: shared")
        return
    if config.residual == "reversible":
        raise ConfigError("residual", "depth: shared has one layer to go back to; use add or gru")
    for key in config.attention_keys:
        spec: AttentionSpec = getattr(config, key) or {}
        if isinstance(spec, list):
            raise ConfigError(key, "depth: shared has one layer; give one attention, no list")


def _check_transition(config: ModelSpec) -> None:
    widths, key = config.transition_widths, "transition_widths"
    if config.transition == "feedforward":
        if widths is not None:
            raise ConfigError(key, "has no effect on a feedforward; add transition: separable_conv")
        return
    if widths is not None and not _are_two_widths(widths):
        message = f"got {widths}, expected two numbers from 1 to {NEIGHBOUR_LIMIT}"
        raise ConfigError(key, message)
    if config.feedforward_chunks != 1:
        message = "cuts texts where a separable_conv looks across; leave it out, or use transition:"
        raise ConfigError("feedforward_chunks", f"{message} feedforward")
    for other, neighbours in NEIGHBOURLESS.items():
        if getattr(config, other, None) not in (None, 0):
            message = f"separable_conv looks at neighbours, which {neighbours}; leave {other} out"
            raise ConfigError("transition", f"{message}, or use feedforward")


def _check_pondering(config: ModelSpec) -> None:
    if config.pondering is None:
        return
    if not {config.core_of(key) for key in config.core_keys} & {"gru", "lstm"}:
        keys = " or ".join(config.core_keys.values())
        message = f"is for cells that read their own state; set {keys} to gru, or leave it out"
        raise ConfigError("pondering", message)
    if config.depth == "shared":
        raise ConfigError("pondering", "depth: shared repeats whole layers already; use stacked")
    if config.residual == "reversible":
        message = "its cost is lost where the backward computes layers again; with residual:"
        raise ConfigError("pondering", f"{message} reversible leave it out, or use add or gru")


def _are_two_widths(widths: list[int]) -> bool:
    return len(widths) == 2 and all(1 <= width <= NEIGHBOUR_LIMIT for width in widths)


def _check_tokens(config: ModelSpec) -> None:
    """Refuse special tokens that there is no embedding for."""
    for key in ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
        value = getattr(config, key, None)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if isinstance(value, list) and not value:
            raise ConfigError(key, "is an empty list; give at least one token")
        for token in ids:
            if not 0 <= token < config.vocab_size:
                message = f"got {token}, but the vocabulary has {config.vocab_size} tokens"
                raise ConfigError(key, message)


def check_usual_score(key: str, spec: Mapping[str, Any], why: str) -> None:
    """Refuse scores and normalisers that only whole passes and caches know how to compute."""
    usual = {"score": ("scaled_dot", "dot"), "normaliser": ("softmax",)}
    for option, known in usual.items():
        if spec.get(option, known[0]) not in known:
            raise ConfigError(f"{key}.{option}", f"{why} {known[0]}; leave {option} out")


@dataclass(kw_only=True)
class Seq2SeqSpec(ModelSpec):
    """An encoder-decoder. Its defaults with `norm: post` and `logits_bias` are Marian's."""

    model_type: ClassVar[str] = "outrider_seq2seq"
    layer_keys: ClassVar[tuple[str, ...]] = ("encoder_layers", "decoder_layers")
    attention_keys: ClassVar[dict[str, tuple[str, bool]]] = {
        "encoder_attention": ("encoder_layers", False),
        "decoder_attention": ("decoder_layers", True),
    }
    core_keys: ClassVar[dict[str, str]] = {
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
    """`{score: ..., normaliser: ..., head_gate: ...}` of the decoder's look at the source; null for
    scaled dot and softmax."""
    encoder_core: str = "attention"
    """What encoder layers know other tokens by: attention, or gru or lstm, which read the source
    forwards and backwards."""
    decoder_core: str = "attention"
    """What decoder layers know the tokens before by: attention, or gru or ssru (which is
    faster) for a state of constant size."""
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
    source_end: bool = True
    """A source ends with the end token; some models of OpenNMT read it without."""
    right_to_left: bool = False
    """Write targets from their last token to their first; texts come out as usual."""

    def __post_init__(self) -> None:
        self.fill_attention("encoder_attention", "full")
        self.fill_attention("decoder_attention", "causal")
        check_model(self)
        self._check_skip()
        self._check_encoder()

    def _check_encoder(self) -> None:
        if self.encoder is None:
            return
        usual: dict[str, Any] = {
            "encoder_layers": 6,
            "encoder_attention": {"kind": "full"},
            "skip": None,
        }
        usual |= {"encoder_core": "attention", "share_embeddings": True}
        for key, value in usual.items():
            if getattr(self, key) != value:
                message = "has no effect with encoder, which has layers and embeddings of its own"
                raise ConfigError(key, f"{message}; leave it out")

    def _check_skip(self) -> None:
        if self.skip is None:
            return
        if self.encoder_core != "attention":
            raise ConfigError("skip", f"leaves out tokens that a {self.encoder_core} has to read")
        if self.depth != "stacked" or self.residual == "reversible":
            message = "is for layers of their own; use depth: stacked and residual: add or gru"
            raise ConfigError("skip", message)
        if self.position_correlation:
            message = "needs a token's neighbours, which may be skipped; use one of the two"
            raise ConfigError("position_correlation", message)

    @property
    def first_token(self) -> int:
        """What the decoder is fed first."""
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
    core_keys: ClassVar[dict[str, str]] = {"attention": "core"}

    layers: int = 6
    attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all layers, or a list with one per layer."""
    core: str = "attention"
    """What layers know the tokens before by: attention, or gru or ssru (which is faster) for a
    state of constant size."""
    memory: int = 0
    """Tokens remembered from one segment of a text to the next; `max_positions` is a segment."""
    next_tokens: int = 1
    """Tokens ahead that every position learns to predict; only the next one is used to decode."""
    bos_token_id: int = 3
    add_bos_token: bool | None = True
    """Begin every text with `bos_token_id`; null for as the tokenizer does."""

    def __post_init__(self) -> None:
        self.fill_attention("attention", "causal")
        check_model(self)
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
        if self.core == "attention":
            return
        if self.position in IN_ATTENTION:
            expected = ", ".join(one for one in POSITIONS if one not in IN_ATTENTION)
            message = f"{self.position!r} lives in an attention; with core {self.core} use one of"
            raise ConfigError("position", f"{message} {expected}")
        nothing = {"position_correlation": 0, "memory": 0, "num_key_value_heads": None}
        for key, value in {**nothing, "attention_dropout": 0.0}.items():
            if getattr(self, key) != value:
                raise ConfigError(key, f"has no effect with core {self.core}; leave it out")

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
            check_usual_score("attention", spec, "a memory is looked at with")

    @property
    def first_token(self) -> int:
        """What a text begins with."""
        return self.bos_token_id

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder."""
        return self.layers


@dataclass(kw_only=True)
class MaskedLmSpec(ModelSpec):
    """An encoder alone, which names the tokens that are hidden from it."""

    model_type: ClassVar[str] = "outrider_masked_lm"
    layer_keys: ClassVar[tuple[str, ...]] = ("layers",)
    attention_keys: ClassVar[dict[str, tuple[str, bool]]] = {"attention": ("layers", False)}

    layers: int = 6
    attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all layers, or a list with one per layer."""
    bos_token_id: int = 3
    mask_token_id: int = 4
    """Stands where a token is hidden."""

    def __post_init__(self) -> None:
        self.fill_attention("attention", "full")
        specs = self.attention if isinstance(self.attention, list) else [self.attention or {}]
        if any(spec.get("kind") == "causal" for spec in specs):
            message = "'causal' looks back only, and a masked_lm reads from both sides; use full"
            raise ConfigError("attention.kind", message)
        check_model(self)
        if not 0 <= self.mask_token_id < self.vocab_size:
            message = f"got {self.mask_token_id}, but the vocabulary has {self.vocab_size} tokens"
            raise ConfigError("mask_token_id", message)
