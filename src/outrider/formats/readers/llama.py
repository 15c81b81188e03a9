"""Llama, and the parts that Mistral, Qwen2 and SmolLM share with it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from outrider.errors import ConfigError
from outrider.formats.readers.config_keys import activation, end_of, take
from outrider.formats.readers.weights import Stored, stack, zeros
from outrider.formats.safetensors import Weight
from outrider.formats.spec import LanguageModelSpec, build_spec

PRODUCTS = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "feedforward.up": ("mlp.gate_proj", "mlp.up_proj"),
    "feedforward.down": ("mlp.down_proj",),
}
"""Our product: their products, stacked in this order."""
SAME = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "attention_dropout", "tie_word_embeddings"),
)
"""Keys with the same name."""
IGNORED = ("rotary_emb.inv_freq",)
"""Frequencies that older versions saved; they follow from the config."""
NORMS = {
    "attention_residual.norm": "input_layernorm",
    "feedforward_residual.norm": "post_attention_layernorm",
}


@dataclass(kw_only=True)
class LlamaValues:
    """Keys of a Llama `config.json` that affect the computation, and their defaults."""

    ALIASES: ClassVar[Mapping[str, str]] = {}

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    attention_dropout: float | int = 0.0
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    rope_theta: float | int | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | int | None = None
    original_max_position_embeddings: float | int | None = None
    layer_types: list[str] | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2


def import_config(values: Mapping[str, Any]) -> LanguageModelSpec:
    return describe_llama(take(LlamaValues, values))


def describe_llama(theirs: LlamaValues, **further: Any) -> LanguageModelSpec:
    """Convert a config; `further` are keys of the family."""
    windows = {*(theirs.layer_types or [])} - {"full_attention"}
    if windows and further.get("attention", {}).get("kind") != "sliding":
        message = f"got {theirs.layer_types}, only full_attention is supported"
        raise ConfigError("layer_types", message)
    end, pad = end_of(theirs.eos_token_id), theirs.pad_token_id
    ours = {
        **{key: getattr(theirs, key) for key in SAME},
        **_rotary(theirs),
        "layers": theirs.num_hidden_layers,
        "max_positions": theirs.max_position_embeddings,
        "activation": activation(theirs.hidden_act),
        "gated": True,
        "norm": "pre",
        "rms_norm": True,
        "norm_eps": theirs.rms_norm_eps,
        "dropout": 0.0,
        "scale_embedding": False,
        "eos_token_id": end if theirs.eos_token_id is None else theirs.eos_token_id,
        "bos_token_id": end if theirs.bos_token_id is None else theirs.bos_token_id,
        "pad_token_id": pad if pad is not None and pad >= 0 else end,
        "add_bos_token": None,
    }
    return build_spec(LanguageModelSpec, {**ours, **further})


def _rotary(theirs: LlamaValues) -> dict[str, Any]:
    """Read the keys of rotary positions, of which transformers has had two sections."""
    sections = [s for s in (theirs.rope_scaling, theirs.rope_parameters) if s] or [{}]
    ours, *others = [_read_rotary(theirs, section) for section in sections]
    if others not in ([], [ours]):
        message = "differs from rope_parameters; remove the wrong one"
        raise ConfigError("rope_scaling", message)
    return ours


def _read_rotary(theirs: LlamaValues, section: Mapping[str, Any]) -> dict[str, Any]:
    scaling = dict(section)
    theta = scaling.pop("rope_theta", theirs.rope_theta)
    part = scaling.pop("partial_rotary_factor", theirs.partial_rotary_factor)
    if part not in (None, 1):
        raise ConfigError("partial_rotary_factor", f"got {part!r}, only 1 is supported")
    kind = scaling.pop("type", None)
    kind = scaling.setdefault("rope_type", kind or "default")
    if kind in ("default", "linear"):  # the length has no effect on them
        scaling.pop("original_max_position_embeddings", None)
    elif kind == "llama3":
        _check_length(theirs, scaling)
    if theta is not None and type(theta) not in (int, float):
        raise ConfigError("rope_theta", f"got {str(theta)[:80]!r}, expected a number")
    rope_scale = None if scaling == {"rope_type": "default"} else scaling
    return {"position": "rotary", "rope_theta": theta, "rope_scale": rope_scale}


def _check_length(theirs: LlamaValues, scaling: dict[str, Any]) -> None:
    """Add the length before scaling, which some configs have outside of the section."""
    key, outside = "original_max_position_embeddings", theirs.original_max_position_embeddings
    default = theirs.max_position_embeddings if outside is None else outside
    if scaling.setdefault(key, default) != default and outside is not None:
        raise ConfigError(key, f"{outside} differs from {scaling[key]} of the rotary positions")


def import_weights(
    theirs: Stored, config: LanguageModelSpec, values: Mapping[str, Any]
) -> dict[str, Weight]:
    options = take(LlamaValues, values)
    biased = {"attention.qkv", "attention.out"} if options.attention_bias else set()
    biased |= {"feedforward.up", "feedforward.down"} if options.mlp_bias else set()
    return import_named(theirs, config, biased)


def import_named(theirs: Stored, config: LanguageModelSpec, biased: set[str]) -> dict[str, Weight]:
    """Rename and stack weights; `biased` are the products with a bias."""
    theirs.expect_prefix("model.")
    if config.tie_word_embeddings:
        theirs.tie("model.embed_tokens.weight", "lm_head.weight")
    ours = {
        "tokens.weight": theirs.take("model.embed_tokens.weight"),
        "decoder.norm.weight": theirs.take("model.norm.weight"),
    }
    if not config.tie_word_embeddings:
        ours["head.weight"] = theirs.take("lm_head.weight")
    for layer in range(config.layers):
        ours |= dict(_layer(theirs, layer, biased))
    theirs.check_left(IGNORED)
    return ours


def _layer(theirs: Stored, layer: int, biased: set[str]) -> Iterator[tuple[str, Weight]]:
    name, their = f"decoder.blocks.{layer}", f"model.layers.{layer}"
    for our, norm in NORMS.items():
        yield f"{name}.{our}.weight", theirs.take(f"{their}.{norm}.weight")
    for our, parts in PRODUCTS.items():
        weight = stack([theirs.take(f"{their}.{part}.weight") for part in parts])
        yield f"{name}.{our}.weight", weight
        if our in biased:
            biases = [theirs.take(f"{their}.{part}.bias") for part in parts]
            yield f"{name}.{our}.bias", stack(biases)
        else:
            yield f"{name}.{our}.bias", zeros(weight.shape[0])
