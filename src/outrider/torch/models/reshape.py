"""Derive models with other layers, vocabularies or positions; other weights are shared."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from outrider.errors import ConfigError
from outrider.formats.folder import OWN
from outrider.formats.spec import AttentionSpec
from outrider.torch.models.language_model import LanguageModel
from outrider.torch.models.pretrained import PretrainedEncoder
from outrider.torch.models.seq2seq import Seq2Seq
from outrider.torch.nn.attention import load_attention

Layers = Mapping[str, Sequence[int]]
"""Layers to keep of `encoder` and `decoder`, in this order; a side not named keeps all."""

TOKEN_ROWS = ("tokens.weight", "source_tokens.weight", "head.weight", "logits_bias")
"""Weights with a row per token."""

ModelT = TypeVar("ModelT", Seq2Seq, LanguageModel)


def keep_layers(model: ModelT, layers: Layers) -> ModelT:
    """Return a model with some of the layers."""
    config = model.config
    if config.depth == "shared":
        raise ConfigError("keep_layers", "this model repeats one layer; leave it out")
    changes: dict[str, Any] = {}
    weights = model.state_dict()
    for side, kept in layers.items():
        attention_key, layers_key = _keys(model, side)
        count = getattr(config, layers_key)
        _check_kept(side, kept, count)
        if side == "encoder" and getattr(config, "skip", None) is not None:
            raise ConfigError("keep_layers.encoder", "does not go with skip, which counts layers")
        changes[layers_key] = len(kept)
        if not config.is_recurrent(attention_key):
            changes[attention_key] = _kept_attention(getattr(config, attention_key), kept)
        weights = _renumbered(
            weights, f"{side}.blocks.", {old: new for new, old in enumerate(kept)}
        )
    return rebuild(model, weights, **changes)


def add_tokens(model: ModelT, rows: int, new: Sequence[int]) -> ModelT:
    """Return a model with `rows` tokens; `new` ones start as the mean of those before them."""
    if getattr(model.config, "skip", None) is not None:
        raise ConfigError("start", "has skip, which counts tokens, so none can be added")
    weights = model.state_dict()
    first = min(new)
    for name in TOKEN_ROWS:
        if name in weights:
            old = weights[name]
            grown = old.new_zeros(max(rows, len(old)), *old.shape[1:])
            grown[: len(old)] = old
            grown[list(new)] = old[:first].mean(0)
            weights[name] = grown
    return rebuild(model, weights, vocab_size=max(rows, model.config.vocab_size))


def keep_tokens(model: Seq2Seq, source: Sequence[int], target: Sequence[int]) -> Seq2Seq:
    """Return a model with some of the tokens: row n of a table is the old row `source[n]`.

    The two sides get separate tables with equally many rows.
    """
    config, width = model.config, len(target)
    if config.skip is not None or config.encoder is not None:
        key = "skip" if config.skip is not None else "encoder"
        raise ConfigError("words", f"does not go with {key}, which has its own tokens")
    weights = model.state_dict()
    assert len(source) == width, "both sides need equally many tokens"
    weights.setdefault("source_tokens.weight", weights["tokens.weight"])
    for name in TOKEN_ROWS:
        if name in weights:
            weights[name] = weights[name][list(source if name.startswith("source") else target)]
    new = {old: place for place, old in reversed([*enumerate(target)])}
    ends = [new[token] for token in config.end_tokens if token in new]
    bos = config.bos_token_id
    return rebuild(
        model,
        weights,
        vocab_size=width,
        share_embeddings=False,
        pad_token_id=new[config.pad_token_id],
        eos_token_id=ends if len(ends) > 1 else ends[0],
        bos_token_id=None if bos is None else new.get(bos),
        decoder_start_token_id=new[config.decoder_start_token_id],
    )


def keep_positions(model: ModelT, count: int) -> ModelT:
    """Return a model with `count` positions."""
    most = model.config.max_positions
    if not 1 <= count <= most:
        raise ConfigError("positions", f"got {count}, expected 1 to {most}, which are all")
    weights = model.state_dict()
    for name in weights:
        if name.endswith("_position.table.weight"):
            weights[name] = weights[name][:count]
    return rebuild(model, weights, max_positions=count)


def reverse(model: Seq2Seq) -> Seq2Seq:
    """Return a model with source and target vocabulary exchanged.

    The layers are unchanged: a starting point for training the reverse direction.
    """
    config = model.config
    if config.skip is not None or config.encoder is not None:
        key = "skip" if config.skip is not None else "encoder"
        raise ConfigError("reverse", f"does not go with {key}, which is for sources only")
    weights = model.state_dict()
    written = weights["tokens.weight"]
    read = weights.setdefault("source_tokens.weight", written)
    weights |= {"tokens.weight": read, "source_tokens.weight": written}
    if config.share_embeddings:
        del weights["source_tokens.weight"]
    if "head.weight" in weights:
        weights["head.weight"] = read.clone()
    if "logits_bias" in weights:  # reflects the frequencies of the old target side
        bias_V = torch.zeros_like(weights["logits_bias"])
        bias_V[config.pad_token_id] = weights["logits_bias"][config.pad_token_id]
        weights["logits_bias"] = bias_V
    return rebuild(model, weights)


def rebuild(model: ModelT, weights: Mapping[str, Tensor], **changes: Any) -> ModelT:
    """Return a model with these weights and config changes."""
    config = model.config
    values = {field.name: getattr(config, field.name) for field in fields(OWN[config.model_type])}
    with torch.device("meta"):
        built = type(model)(type(config)(**values | changes))
    built.load_state_dict(weights, assign=True)
    encoder: PretrainedEncoder | None = getattr(built, "pretrained", None)
    if encoder is not None:
        encoder.make_buffers(next(iter(weights.values())).device)
    return built.train(model.training)


def _keys(model: Seq2Seq | LanguageModel, side: str) -> tuple[str, str]:
    """Return the config keys of attention and layer count of a side."""
    if isinstance(model, Seq2Seq):
        if side == "encoder" and model.pretrained is not None:
            raise ConfigError("keep_layers.encoder", "a pretrained encoder keeps its layers")
        attention_key = f"{side}_attention"
    elif side == "encoder":
        raise ConfigError("keep_layers.encoder", "a language model has only a decoder")
    else:
        attention_key = "attention"
    return attention_key, model.config.attention_keys[attention_key][0]


def _check_kept(side: str, kept: Sequence[int], count: int) -> None:
    key = f"keep_layers.{side}"
    if not kept or not all(0 <= layer < count for layer in kept) or len({*kept}) < len(kept):
        message = f"got {list(kept)}, expected some of 0 to {count - 1}, each once"
        raise ConfigError(key, message)


def _kept_attention(spec: AttentionSpec, kept: Sequence[int]) -> AttentionSpec:
    """Return the attention of the kept layers, which may depend on their old index."""
    if isinstance(spec, list):
        return [spec[layer] for layer in kept]
    for_layer = load_attention(spec["kind"]).Config.for_layer
    specs = [for_layer(spec, layer) for layer in kept]
    return spec if specs == [for_layer(spec, layer) for layer in range(len(kept))] else specs


def _renumbered(
    weights: Mapping[str, Tensor], prefix: str, numbers: Mapping[int, int]
) -> dict[str, Tensor]:
    """Renumber the kept layers and drop the others."""
    renumbered = {}
    for name, weight in weights.items():
        if not name.startswith(prefix):
            renumbered[name] = weight
            continue
        layer, _, rest = name.removeprefix(prefix).partition(".")
        if int(layer) in numbers:
            renumbered[f"{prefix}{numbers[int(layer)]}.{rest}"] = weight
    return renumbered
