"""Llama and models of its shape (Mistral, Qwen2, SmolLM): the map between their names and ours."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from outrider.errors import ConfigError
from outrider.formats.readers.weights import Stored, activation, end_of, stack, take, zeros
from outrider.formats.safetensors import Weight
from outrider.formats.spec import LanguageModelSpec, build_spec

__all__ = ["LlamaValues", "describe_llama", "import_config", "import_named", "import_weights"]

PRODUCTS = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "feedforward.up": ("mlp.gate_proj", "mlp.up_proj"),
    "feedforward.down": ("mlp.down_proj",),
}
"""Our product: theirs, stacked in this order."""
SAME = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "attention_dropout", "tie_word_embeddings"),
)
"""Keys that are called alike."""
IGNORED = ("rotary_emb.inv_freq",)
"""Ends of names of frequencies that older versions saved; they follow from the config."""
NORMS = {
    "attention_residual.norm": "input_layernorm",
    "feedforward_residual.norm": "post_attention_layernorm",
}


@dataclass(kw_only=True)
class LlamaValues:
    """Keys of a Llama `config.json` that say how it computes, and what they are if left out."""

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
    """Read a Llama `config.json`."""
    return describe_llama(take(LlamaValues, values))


def describe_llama(theirs: LlamaValues, **further: Any) -> LanguageModelSpec:
    """Turn what a config says into a description; `further` is how this family computes."""
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
    """Read where rotary positions begin to differ; transformers has said it in three ways."""
    told = [one for one in (theirs.rope_scaling, theirs.rope_parameters) if one] or [{}]
    found, *others = [_read_rotary(theirs, one) for one in told]
    if others not in ([], [found]):
        message = "differs from rope_parameters; remove the wrong one"
        raise ConfigError("rope_scaling", message)
    return found


def _read_rotary(theirs: LlamaValues, told: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(told)
    theta = found.pop("rope_theta", theirs.rope_theta)
    part = found.pop("partial_rotary_factor", theirs.partial_rotary_factor)
    if part not in (None, 1):
        raise ConfigError("partial_rotary_factor", f"got {part!r}, only whole heads are turned")
    kind = found.pop("type", None)
    found.setdefault("rope_type", kind or "default")
    # What a longer text of training was cut to says nothing of how the numbers are computed.
    if found["rope_type"] in ("default", "linear"):
        found.pop("original_max_position_embeddings", None)
    elif found["rope_type"] == "llama3":
        _check_length(theirs, found)
    if theta is not None and type(theta) not in (int, float):
        raise ConfigError("rope_theta", f"got {str(theta)[:80]!r}, expected a number")
    scaling = None if found["rope_type"] == "default" else found
    return {"position": "rotary", "rope_theta": theta, "rope_scale": scaling}


def _check_length(theirs: LlamaValues, found: dict[str, Any]) -> None:
    """Complete the length of the texts before scaling; it may also stand outside of the section."""
    key, outside = "original_max_position_embeddings", theirs.original_max_position_embeddings
    default = theirs.max_position_embeddings if outside is None else outside
    if found.setdefault(key, default) != default and outside is not None:
        raise ConfigError(key, f"{outside} differs from {found[key]} of the rotary positions")


def import_weights(
    theirs: Stored, config: LanguageModelSpec, values: Mapping[str, Any]
) -> dict[str, Weight]:
    """Rename and stack a Llama model's weights into ours."""
    options = take(LlamaValues, values)
    biased = {"attention.qkv", "attention.out"} if options.attention_bias else set()
    biased |= {"feedforward.up", "feedforward.down"} if options.mlp_bias else set()
    return import_named(theirs, config, biased)


def import_named(theirs: Stored, config: LanguageModelSpec, biased: set[str]) -> dict[str, Weight]:
    """Rename and stack weights; `biased` are the products that have a bias."""
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
            found = [theirs.take(f"{their}.{part}.bias") for part in parts]
            yield f"{name}.{our}.bias", stack(found)
        else:
            yield f"{name}.{our}.bias", zeros(weight.shape[0])
