"""Names and shapes of the weights of portable models and their side decoders.

A portable model is a Transformer that every export (Marian, CTranslate2, the native core) supports:
full or causal attention with scaled dot products, residual sums, norms, a stack of layers. New
parts of the model family are listed in `PORTABLE`, so that exports refuse them by name. A test
compares the names with those of the PyTorch modules.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outrider.errors import ModelError
from outrider.formats.side_spec import CtcSpec, DrafterSpec, SideDecoderSpec
from outrider.formats.spec import ModelSpec, Seq2SeqSpec
from outrider.formats.weights import Expected

PORTABLE: dict[str, Sequence[Any]] = {
    "encoder": [None],
    "depth": ["stacked"],
    "transition": ["feedforward"],
    "residual": ["add"],
    "skip": [None],
    "pair_attention": [False],
    "cross_attention": [None],
    "position_correlation": [0],
    "position_mlp": [0],
    "memory": [0],
}
"""Supported values of keys that add weights which no layout has."""
PLAIN: dict[str, Sequence[Any]] = {
    "rms_norm": [False],
    "norm_eps": [1e-5],
    "embedding_norm": [False],
    "right_to_left": [False],
}
"""Supported values of further keys in the formats of other programs."""


def decoder_mixer(config: ModelSpec) -> str:
    """Return the mixer of decoder layers."""
    key = next(key for key, (_, causal) in config.attention_keys.items() if causal)
    return config.mixer_of(key)


def first_unsupported(
    config: ModelSpec,
    values: Mapping[str, Sequence[Any]],
    *,
    mixers: Sequence[str] = ("attention",),
) -> tuple[str, Any, Sequence[Any]] | None:
    """Return the first key that a format or a backend does not support; its value; those supported.

    Args:
        config: The model.
        values: Supported values of keys, in addition to `PORTABLE`.
        mixers: Supported mixers of layers.
    """
    for key, supported in {**PORTABLE, **values}.items():
        value = getattr(config, key, supported[0])
        if value not in supported:
            return key, value, supported
    for key, (layers, causal) in config.attention_keys.items():
        mixer = config.mixer_of(key)
        if mixer not in mixers:
            return config.mixer_keys[key], mixer, mixers
        if mixer != "attention":
            continue
        usual = {"kind": "causal" if causal else "full"}
        for layer in range(getattr(config, layers)):
            spec = config.layer_attention(key, layer)
            if spec != usual:
                return key, spec, [usual]
    return None


def check_exportable(config: ModelSpec, program: str, values: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a model that another program's format cannot hold."""
    heads = config.num_attention_heads
    widths = {"num_key_value_heads": heads, "head_dim": config.hidden_size / heads}
    plain = {**PLAIN, **{key: [None, width] for key, width in widths.items()}}
    if (unsupported := first_unsupported(config, {**plain, **values})) is not None:
        key, value, supported = unsupported
        expected = " or ".join(map(repr, supported))
        raise ModelError(f"{key} is {value!r}; a {program} model has {expected}")


Entry = tuple[str, tuple[int, ...]]


def model_layout(config: ModelSpec) -> dict[str, Expected]:
    """Return the weights of a portable model."""
    return {name: Expected(shape) for name, shape in _model(config)}


def drafter_layout(config: DrafterSpec) -> dict[str, Expected]:
    """Return the weights of a drafter with `core: transformer`."""
    layout = {name: Expected(shape) for name, shape in _drafter(config)}
    if config.shortlist:
        layout["kept_V"] = Expected((config.shortlist,), ("int64",))
    return layout


def ctc_layout(config: CtcSpec) -> dict[str, Expected]:
    """Return the weights of a CTC decoder."""
    layout = {name: Expected(shape) for name, shape in _ctc(config)}
    layout["steps"] = Expected((), ("int64",))
    return layout


def _model(config: ModelSpec) -> Iterator[Entry]:
    vocab_size, width = config.vocab_size, config.hidden_size
    yield "tokens.weight", (vocab_size, width)
    if not config.tie_word_embeddings:
        yield "head.weight", (vocab_size, width)
    if config.logits_bias:
        yield "logits_bias", (vocab_size,)
    if isinstance(config, Seq2SeqSpec):
        if not config.share_embeddings:
            yield "source_tokens.weight", (vocab_size, width)
        yield from _stack("encoder", config, config.encoder_layers, cross=False)
    cross = isinstance(config, Seq2SeqSpec)
    yield from _stack("decoder", config, config.decoder_depth, cross=cross)
    for number in range(getattr(config, "next_tokens", 1) - 1):
        yield f"next_tokens.further.{number}.weight", (width, width)


def _stack(side: str, config: ModelSpec, layers: int, *, cross: bool) -> Iterator[Entry]:
    width = config.hidden_size
    heads, rms = config.num_attention_heads, config.rms_norm
    kv_heads = config.num_key_value_heads or heads
    if config.embedding_norm:
        yield from _norm(f"{side}_embedding_norm", width, rms=rms)
    if config.position == "bucketed":
        yield f"{side}.bias.table.weight", (config.buckets[0], heads)
    if config.position == "learned":
        yield f"{side}_position.table.weight", (config.max_positions, width)
    for layer in range(layers):
        heads_width, kv_width = heads * config.head_width, kv_heads * config.head_width
        name = f"{side}.blocks.{layer}"
        ssru = side == "decoder" and decoder_mixer(config) == "ssru"
        yield from _block(name, config, heads_width, kv_width, cross=cross, rms=rms, ssru=ssru)
    if config.norm == "pre":
        yield from _norm(f"{side}.norm", width, rms=rms)


def _drafter(config: DrafterSpec) -> Iterator[Entry]:
    width, rank = config.hidden_size, config.rank
    assert config.taps is not None
    tapped = width * len(config.taps)
    yield "mask", (width,)
    yield "bias", (config.vocab_size,)
    yield "slot.weight", (config.block, width)
    for layer in range(config.layers):
        yield from _block(f"blocks.{layer}", config, width, width, cross=config.cross)
        yield from _linear(f"inject.{layer}", 2 * width, tapped)
    for number in range(len(config.taps)):
        yield from _norm(f"state_norms.{number}", width)
    yield from _linear("from_last", width, tapped)
    yield from _norm("norm", width)
    yield from _linear("confidence", 1, width + rank)
    if rank:
        yield from _linear("from_slot", rank, width)
        yield "from_token.weight", (rank, width)
        yield "from_state.weight", (rank, rank)
        yield "to_token.weight", (width, rank)


def _ctc(config: CtcSpec) -> Iterator[Entry]:
    width = config.hidden_size
    yield "copies", (config.upsample, width)
    yield "bias", (config.vocab_size,)
    yield "told.weight", (width, width)
    for layer in range(config.layers):
        yield from _block(f"decoder.blocks.{layer}", config, width, width, cross=config.cross)
    if config.norm == "pre":
        yield from _norm("decoder.norm", width)


def _block(
    name: str,
    config: ModelSpec | SideDecoderSpec,
    heads_width: int,
    kv_width: int,
    *,
    cross: bool,
    rms: bool = False,
    ssru: bool = False,
) -> Iterator[Entry]:
    width, inner = config.hidden_size, config.intermediate_size
    if ssru:
        yield from _linear(f"{name}.attention.into", 2 * width, width)
    else:
        yield from _linear(f"{name}.attention.qkv", heads_width + 2 * kv_width, width)
        yield from _linear(f"{name}.attention.out", width, heads_width)
    yield from _norm(f"{name}.attention_residual.norm", width, rms=rms)
    if cross:
        yield from _linear(f"{name}.cross.q", heads_width, width)
        yield from _linear(f"{name}.cross.kv", 2 * heads_width, width)
        yield from _linear(f"{name}.cross.out", width, heads_width)
        yield from _norm(f"{name}.cross_residual.norm", width, rms=rms)
    yield from _linear(f"{name}.feedforward.up", inner * (2 if config.gated else 1), width)
    yield from _linear(f"{name}.feedforward.down", width, inner)
    yield from _norm(f"{name}.feedforward_residual.norm", width, rms=rms)


def _linear(name: str, rows: int, columns: int) -> Iterator[Entry]:
    yield f"{name}.weight", (rows, columns)
    yield f"{name}.bias", (rows,)


def _norm(name: str, width: int, *, rms: bool = False) -> Iterator[Entry]:
    yield f"{name}.weight", (width,)
    if not rms:
        yield f"{name}.bias", (width,)
