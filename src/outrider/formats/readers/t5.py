"""T5, FLAN-T5, mT5 and MADLAD: the map between their names and ours.

What only multiplies is multiplied into weights: their scores are not divided by the root of a
head's width, so queries are multiplied by it here; and the first T5 divides what its head reads by
the root of the width, which the norm before the head does as well. Their products have no bias.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from outrider.errors import ConfigError
from outrider.formats.readers.weights import Stored, activation, scaled, stack, take, zeros
from outrider.formats.safetensors import Weight
from outrider.formats.spec import Seq2SeqSpec, build_spec

__all__ = ["T5Values", "import_config", "import_weights"]

SHARED = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""Names of the one table of embeddings."""
IGNORED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
"""A table of the first T5 that no computation reads."""
BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


@dataclass(kw_only=True)
class T5Values:
    """Keys of a T5 `config.json` that say how a model computes, and what they are if left out."""

    ALIASES: ClassVar[Mapping[str, str]] = {
        "head_dim": "d_kv",
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
    }

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int | None = None
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float | int = 0.1
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    dense_act_fn: str | None = None
    is_gated_act: bool | None = None
    n_positions: int = 512
    tie_word_embeddings: bool | None = None
    scale_decoder_outputs: bool | None = None
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = None


def import_config(values: Mapping[str, Any]) -> Seq2SeqSpec:
    """Read a T5 `config.json`."""
    return describe_t5(take(T5Values, values), tied=_is_first(values))


def describe_t5(theirs: T5Values, *, tied: bool) -> Seq2SeqSpec:
    """Turn what a config says into a description; `tied`: the head is the embedding."""
    kind, gate = theirs.feed_forward_proj, theirs.feed_forward_proj.startswith("gated-")
    bent = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    for key, same in (
        ("dense_act_fn", activation(theirs.dense_act_fn or bent) == activation(bent)),
        ("is_gated_act", theirs.is_gated_act in (None, gate)),
    ):
        if not same:
            message = f"{getattr(theirs, key)!r} differs from feed_forward_proj {kind!r}"
            raise ConfigError(key, message)
    if theirs.pad_token_id is None:
        raise ConfigError("pad_token_id", "is null, but a T5 model begins with it")
    start = theirs.decoder_start_token_id
    layers, decoder_layers = theirs.num_layers, theirs.num_decoder_layers
    ours = {
        "vocab_size": theirs.vocab_size,
        "hidden_size": theirs.d_model,
        "head_dim": theirs.d_kv,
        "num_attention_heads": theirs.num_heads,
        "intermediate_size": theirs.d_ff,
        "encoder_layers": layers,
        "decoder_layers": layers if decoder_layers is None else decoder_layers,
        "activation": activation(bent),
        "gated": gate,
        "norm": "pre",
        "rms_norm": True,
        "norm_eps": theirs.layer_norm_epsilon,
        "position": "bucketed",
        "relative_buckets": theirs.relative_attention_num_buckets,
        "relative_distance": theirs.relative_attention_max_distance,
        "max_positions": theirs.n_positions,
        "dropout": theirs.dropout_rate,
        "attention_dropout": theirs.dropout_rate,
        "activation_dropout": theirs.dropout_rate,
        "scale_embedding": False,
        "tie_word_embeddings": tied,
        "pad_token_id": theirs.pad_token_id,
        "eos_token_id": theirs.eos_token_id,
        "bos_token_id": theirs.bos_token_id,
        "decoder_start_token_id": theirs.pad_token_id if start is None else start,
    }
    return build_spec(Seq2SeqSpec, ours)


def _is_first(values: Mapping[str, Any]) -> bool:
    """Whether this is the first T5, which scales what its head reads and ties that.

    Later ones say that they do not tie; transformers now writes what it means instead.
    """
    scales = values.get("scale_decoder_outputs")
    return bool(values.get("tie_word_embeddings") is not False if scales is None else scales)


def import_weights(
    theirs: Stored, config: Seq2SeqSpec, values: Mapping[str, Any]
) -> dict[str, Weight]:
    """Rename and stack a T5 model's weights into ours."""
    tied = config.tie_word_embeddings
    theirs.tie(*SHARED, *(["lm_head.weight"] if tied else []))
    ours = {"tokens.weight": theirs.take(SHARED[0])}
    if not tied:
        ours["head.weight"] = theirs.get("lm_head.weight", ours["tokens.weight"])
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        ours |= dict(_stack(theirs, config, side, layers))
    if values.get("model_type") == "t5" and _is_first(values):
        norm = ours["decoder.norm.weight"]
        ours["decoder.norm.weight"] = scaled(norm, config.hidden_size**-0.5)
    theirs.check_left(IGNORED)
    return ours


def _stack(
    theirs: Stored, config: Seq2SeqSpec, side: str, layers: int
) -> Iterator[tuple[str, Weight]]:
    yield f"{side}.bias.table.weight", theirs.take(f"{side}.{BIAS}")
    yield f"{side}.norm.weight", theirs.take(f"{side}.final_layer_norm.weight")
    for layer in range(layers):
        name, their = f"{side}.blocks.{layer}", f"{side}.block.{layer}.layer"
        found = _parts(theirs, their, side, config.gated)
        root = config.head_width**0.5
        q, *kv = found["attention"]
        products = {"attention.qkv": stack([scaled(q, root), *kv]), "attention.out": found["out"]}
        if side == "decoder":
            q, *kv = found["cross"]
            products |= {"cross.q": scaled(q, root), "cross.kv": stack(kv)}
            products["cross.out"] = found["cross_out"]
        products |= {"feedforward.up": stack(found["up"]), "feedforward.down": found["down"]}
        for part, weight in products.items():
            yield f"{name}.{part}.weight", weight
            yield f"{name}.{part}.bias", zeros(weight.shape[0])
        residuals = ["attention", *(["cross"] if side == "decoder" else []), "feedforward"]
        for number, part in enumerate(residuals):
            norm = theirs.take(f"{their}.{number}.layer_norm.weight")
            yield f"{name}.{part}_residual.norm.weight", norm


def _parts(theirs: Stored, layer: str, side: str, gated: bool) -> dict[str, Any]:
    def get(number: int, part: str, *names: str) -> list[Weight]:
        return [theirs.take(f"{layer}.{number}.{part}.{name}.weight") for name in names]

    found: dict[str, Any] = {"attention": get(0, "SelfAttention", "q", "k", "v")}
    found["out"] = get(0, "SelfAttention", "o")[0]
    if side == "decoder":
        found["cross"] = get(1, "EncDecAttention", "q", "k", "v")
        found["cross_out"] = get(1, "EncDecAttention", "o")[0]
    last = 2 if side == "decoder" else 1
    found["up"] = get(last, "DenseReluDense", *(("wi_0", "wi_1") if gated else ("wi",)))
    found["down"] = get(last, "DenseReluDense", "wo")[0]
    return found
