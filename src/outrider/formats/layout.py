"""The names and shapes of the weights that a portable model and its side decoders have.

    D width    F feed-forward width    V words    R rank of a drafter    W its taps' widths together

PyTorch names the same weights when `models` builds the modules; a test compares the two.

Portable models: the Transformer that every engine knows.

Whoever takes a model somewhere else (Marian, CTranslate2, the native core) supports these layers:
full or causal attention with the usual score, sums and norms, a stack of different layers. A new
part of the family is listed here, and all of them refuse it by name.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from outrider.formats.side_spec import CtcSpec, DrafterSpec, SideDecoderSpec
from outrider.formats.spec import ModelSpec, Seq2SeqSpec
from outrider.formats.weights import Expected

__all__ = [
    "Unsupported",
    "core_of",
    "ctc_layout",
    "drafter_layout",
    "first_unsupported",
    "model_layout",
]

PORTABLE: dict[str, Any] = {
    "encoder": None,
    "depth": "stacked",
    "transition": "feedforward",
    "residual": "add",
    "skip": None,
    "pair_attention": False,
    "cross_attention": None,
    "position_correlation": 0,
    "position_mlp": 0,
    "memory": 0,
}
PLAIN: dict[str, Any] = {
    "rms_norm": False,
    "norm_eps": 1e-5,
    "embedding_norm": False,
    "right_to_left": False,
}
"""What the exports have beside it; engines of ours know other values too."""


class Unsupported(NamedTuple):
    """A key of a config that asks for more than a portable model has."""

    key: str
    value: Any
    portable: Any
    """What a portable model has there."""


def core_of(config: ModelSpec) -> str:
    """Return what decoder layers know the tokens before by."""
    key = next(key for key, (_, causal) in config.attention_keys.items() if causal)
    return config.core_of(key)


def first_unsupported(
    config: ModelSpec, *, plain: bool = True, cores: Sequence[str] = ("attention",)
) -> Unsupported | None:
    """Return the first part of a model that is not portable; None where all are.

    Without `plain` norms and widths of other families may be there too, and `cores` may stand where
    self-attention does.
    """
    for key, portable in (PORTABLE | PLAIN if plain else PORTABLE).items():
        value = getattr(config, key, portable)
        if value != portable:
            return Unsupported(key, value, portable)
    usual_width, odd = divmod(config.hidden_size, config.num_attention_heads)
    if plain and (odd or config.head_width != usual_width):
        return Unsupported("head_dim", config.head_dim, usual_width)
    for key, (layers, causal) in config.attention_keys.items():
        core = config.core_of(key)
        if core not in cores:
            return Unsupported(config.core_keys[key], core, cores[0])
        if core != "attention":
            continue
        usual = {"kind": "causal" if causal else "full"}
        for layer in range(getattr(config, layers)):
            found = config.layer_attention(key, layer)
            if found != usual:
                return Unsupported(key, found, usual)
    return None


Entry = tuple[str, tuple[int, ...]]


def model_layout(config: ModelSpec) -> dict[str, Expected]:
    """Return what a portable model is made of."""
    return {name: Expected(shape) for name, shape in _model(config)}


def drafter_layout(config: DrafterSpec) -> dict[str, Expected]:
    """Return what a drafter with a Transformer core is made of."""
    layout = {name: Expected(shape) for name, shape in _drafter(config)}
    if config.shortlist:
        layout["kept_V"] = Expected((config.shortlist,), ("int64",))
    return layout


def ctc_layout(config: CtcSpec) -> dict[str, Expected]:
    """Return what a CTC decoder is made of."""
    layout = {name: Expected(shape) for name, shape in _ctc(config)}
    layout["steps"] = Expected((), ("int64",))
    return layout


def _model(config: ModelSpec) -> Iterator[Entry]:
    words, width = config.vocab_size, config.hidden_size
    yield "tokens.weight", (words, width)
    if not config.tie_word_embeddings:
        yield "head.weight", (words, width)
    if config.logits_bias:
        yield "logits_bias", (words,)
    encoder = isinstance(config, Seq2SeqSpec)
    if isinstance(config, Seq2SeqSpec):
        if not config.share_embeddings:
            yield "source_tokens.weight", (words, width)
        yield from _stack("encoder", config, config.encoder_layers, cross=False)
    yield from _stack("decoder", config, config.decoder_depth, cross=encoder)
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
        ssru = side == "decoder" and core_of(config) == "ssru"
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
