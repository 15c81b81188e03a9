"""T5, FLAN-T5 and MADLAD, and the parts that mT5 shares with them.

Factors are multiplied into weights: T5 does not divide scores by the root of the head width, so
queries are multiplied by it here; T5 1.0 divides the head's input by the root of the model width,
so the norm before the head is divided by it. Products have no bias.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from outrider.errors import ConfigError
from outrider.formats.readers.config_keys import activation, take
from outrider.formats.readers.weights import Stored, scaled, stack, zeros
from outrider.formats.safetensors import Weight
from outrider.formats.spec import Seq2SeqSpec, build_spec

SHARED = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""Names of the one table of embeddings."""
IGNORED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
"""An unused table of T5 1.0."""
BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


@dataclass(kw_only=True)
class T5Values:
    """Keys of a T5 `config.json` that affect the computation, and their defaults."""

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
    return describe_t5(take(T5Values, values), tied=_is_first(values))


def describe_t5(theirs: T5Values, *, tied: bool) -> Seq2SeqSpec:
    """Convert a config; `tied`: the head is the embedding."""
    kind, gated = theirs.feed_forward_proj, theirs.feed_forward_proj.startswith("gated-")
    function = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    for key, same in (
        ("dense_act_fn", activation(theirs.dense_act_fn or function) == activation(function)),
        ("is_gated_act", theirs.is_gated_act in (None, gated)),
    ):
        if not same:
            message = f"{getattr(theirs, key)!r} differs from feed_forward_proj {kind!r}"
            raise ConfigError(key, message)
    if theirs.pad_token_id is None:
        raise ConfigError("pad_token_id", "is null, but the decoder of a T5 model starts with it")
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
        "activation": activation(function),
        "gated": gated,
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
    """Whether this is T5 1.0, whose head is tied and has a scaled input.

    Configs of later versions untie the head; new versions of transformers write
    `scale_decoder_outputs`.
    """
    scales = values.get("scale_decoder_outputs")
    return bool(values.get("tie_word_embeddings") is not False if scales is None else scales)


def import_weights(
    theirs: Stored, config: Seq2SeqSpec, values: Mapping[str, Any]
) -> dict[str, Weight]:
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
        for part, weight in _products(theirs, their, config, cross=side == "decoder").items():
            yield f"{name}.{part}.weight", weight
            yield f"{name}.{part}.bias", zeros(weight.shape[0])
        residuals = ["attention", *(["cross"] if side == "decoder" else []), "feedforward"]
        for number, part in enumerate(residuals):
            norm = theirs.take(f"{their}.{number}.layer_norm.weight")
            yield f"{name}.{part}_residual.norm.weight", norm


def _products(theirs: Stored, layer: str, config: Seq2SeqSpec, *, cross: bool) -> dict[str, Weight]:
    def get(part: str, *names: str) -> list[Weight]:
        return [theirs.take(f"{layer}.{part}.{name}.weight") for name in names]

    root = config.head_width**0.5
    q, k, v, out = get("0.SelfAttention", "q", "k", "v", "o")
    products = {"attention.qkv": stack([scaled(q, root), k, v]), "attention.out": out}
    if cross:
        q, k, v, out = get("1.EncDecAttention", "q", "k", "v", "o")
        products |= {"cross.q": scaled(q, root), "cross.kv": stack([k, v]), "cross.out": out}
    dense = f"{2 if cross else 1}.DenseReluDense"
    products["feedforward.up"] = stack(get(dense, *(("wi_0", "wi_1") if config.gated else ("wi",))))
    (products["feedforward.down"],) = get(dense, "wo")
    return products
