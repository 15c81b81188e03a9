"""A pretrained model in place of encoder layers: BERT and its variants, GPT-2, or our own.

    h_s      = hidden state of source token s after layer l of the pretrained encoder
    memory_s = norm(W h_s + b)              from its width to the decoder's

A frozen encoder runs without dropout and gradients; only W, b and the norm are trained. Otherwise
all of it is trained.

Elsewhere a source ends with the model's end token and is padded with its padding token. Both have
other ids in the encoder's vocabulary, so they are replaced here.

The encoder's config is untrusted input: it can select one of the families below and their sizes.
All other keys are dropped (when imported) or refused (in a model folder).
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModel, PreTrainedConfig

from outrider.errors import ConfigError, InputError, ModelError, nearest
from outrider.torch.nn.dropout import dropout
from outrider.torch.nn.linear import Linear
from outrider.torch.nn.stack import Stack

ENCODERS: dict[str, tuple[str, ...]] = {
    "albert": (),
    "bert": (),
    "camembert": (),
    "deberta-v2": (
        *("attention_head_size", "conv_act", "conv_groups", "conv_kernel_size", "embedding_size"),
        *("norm_rel_ebd", "position_buckets", "share_att_key"),
    ),
    "distilbert": (),
    "electra": (),
    "gpt2": (),
    "modernbert": (),
    "mpnet": (),
    "outrider_masked_lm": (),
    "roberta": (),
    "xlm-roberta": (),
}
"""Supported model types, with keys that their layers read but their config does not declare."""
OLD_KEYS = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "rope_scaling")
"""Keys of older configs that transformers converts."""
POOLED = ("albert", "bert", "camembert", "mpnet", "roberta", "xlm-roberta")
"""Families with a pooling layer, which is left out."""
AFTER_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")
"""Families that count positions from the padding token's id on."""

NUMBER_LIMIT = 1 << 24
LAYER_LIMIT = 1 << 10
LAYERS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_hidden_groups", "inner_group_num"),
    "layers",
)
KEYS = {"config": dict, "end": int, "freeze": bool, "layer": int}


class PretrainedEncoder(nn.Module):
    """Encodes a source with a pretrained encoder, and projects to the decoder's width."""

    def __init__(self, spec: Mapping[str, Any], *, width: int, dropout: float) -> None:
        super().__init__()
        config = _build_config(spec["config"])
        self.model = _build_model(config)
        self.join = Linear(config.hidden_size, width)
        self.dropout = dropout
        self.freeze, self.end = bool(spec["freeze"]), int(spec["end"])
        self.pad = config.pad_token_id or 0
        self.layer, self.last = int(spec["layer"]), config.num_hidden_layers
        self.longest = _positions(config)
        if self.freeze:
            self.model.requires_grad_(False)
            self.model.eval()

    def forward(self, source_BS: Tensor, keep_BS: Tensor | None = None) -> Tensor:
        """Encode right-padded rows; the model applies the norm."""
        features_BSE = self.features(source_BS, keep_BS)
        return self.join(dropout(features_BSE, self.dropout, self.training))

    def features(self, source_BS: Tensor, keep_BS: Tensor | None = None) -> Tensor:
        """Return the hidden states of the selected layer, in the encoder's width."""
        if source_BS.shape[1] > self.longest:
            raise InputError(
                f"a source of {source_BS.shape[1]} tokens is too long: the pretrained encoder has "
                f"{self.longest} positions; give shorter sentences"
            )
        top = self.layer in (-1, self.last)
        # Not by requires_grad alone: a joint run enables it for all weights of a model.
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze):
            output = self.model(
                input_ids=self._renumber(source_BS, keep_BS),
                attention_mask=None if keep_BS is None else keep_BS.long(),
                output_hidden_states=not top,
            )
        return output.last_hidden_state if top else output.hidden_states[self.layer]

    @property
    def stack(self) -> Stack | None:
        """The layers of an encoder of our own."""
        layers = getattr(self.model, "encoder", None)
        return layers if isinstance(layers, Stack) else None

    def attentions(self, source_BS: Tensor) -> list[Tensor]:
        """Return the attention weights up to the selected layer, [B, H, S, S] each.

        For encoders of other libraries.
        """
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation("eager")  # others do not return weights
        try:
            ids_BS = self._renumber(source_BS, None)
            weights = self.model(input_ids=ids_BS, output_attentions=True).attentions
        finally:
            self.model.set_attn_implementation(before)
        return self.read_from(list(weights))

    def read_from(self, layers: list[Tensor]) -> list[Tensor]:
        """Return the items up to the selected layer."""
        return layers if self.layer == -1 else layers[: self.layer % (self.last + 1)]

    def train(self, mode: bool = True) -> Self:
        """Set the mode; a frozen encoder stays in eval mode."""
        super().train(mode)
        if self.freeze:
            self.model.eval()
        return self

    def make_buffers(self, device: str | torch.device) -> None:
        """Compute buffers that are not stored, after building on the meta device."""
        for module in self.model.modules():
            lost = {name: x for name, x in module.named_buffers(recurse=False) if x.is_meta}
            for name, buffer in lost.items():
                setattr(module, name, torch.empty_like(buffer, device=device))
            for weight in module.parameters(recurse=False):
                weight._is_hf_initialized = True
            if lost:
                self.model._init_weights(module)

    def _renumber(self, source_BS: Tensor, keep_BS: Tensor | None) -> Tensor:
        """Replace end token and padding of every row by the encoder's own."""
        if keep_BS is None:
            last_B1 = source_BS.new_full((source_BS.shape[0], 1), source_BS.shape[1] - 1)
        else:
            source_BS = source_BS.masked_fill(~keep_BS, self.pad)
            last_B1 = keep_BS.sum(1, keepdim=True).clamp(min=1) - 1
        return source_BS.scatter(1, last_B1, self.end)


def import_encoder(values: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce a foreign `config.json` to the keys that affect the computation."""
    kind = _kind(values)
    positions = values.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        raise ConfigError(
            "position_embedding_type", f"got {positions!r}; transformers supports only 'absolute'"
        )
    wanted = {*_keys(kind), *OLD_KEYS, "model_type"}
    config = _build_config({key: values[key] for key in values.keys() & wanted}, old=True)
    own = {key: getattr(config, key, None) for key in _keys(kind)}
    return {"model_type": kind, **{key: value for key, value in own.items() if value is not None}}


def check_encoder(spec: Mapping[str, Any]) -> None:
    """Check the section of an encoder: config, end, freeze and layer."""
    for key, value in spec.items():
        if key not in KEYS:
            raise ConfigError(f"encoder.{key}", f"unknown key{nearest(key, KEYS)}")
        if type(value) is not KEYS[key]:
            message = f"got {value!r}, expected a value of type {KEYS[key].__name__}"
            raise ConfigError(f"encoder.{key}", message)
    for key in KEYS.keys() - spec.keys():
        raise ConfigError(f"encoder.{key}", "is missing")
    config = _build_config(spec["config"])
    layers, layer, end = config.num_hidden_layers, spec["layer"], spec["end"]
    if not -layers - 1 <= layer <= layers:
        message = f"got {layer}, expected 0 (the embeddings) to {layers}, or -1 for the last"
        raise ConfigError("encoder.layer", message)
    if not 0 <= end < config.vocab_size:
        raise ConfigError("encoder.end", f"got {end}, not a token of {config.vocab_size}")


def longest_row(spec: Mapping[str, Any]) -> int:
    """Return the maximum source tokens, end token included, of the encoder."""
    return _positions(_build_config(spec["config"]))


def _positions(config: PreTrainedConfig) -> int:
    first = config.pad_token_id + 1 if config.model_type in AFTER_PADDING else 0
    return int(config.max_position_embeddings - first)


def _build_model(config: PreTrainedConfig) -> Any:
    options = {"add_pooling_layer": False} if config.model_type in POOLED else {}
    try:
        return AutoModel.from_config(config, trust_remote_code=False, **options)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise ModelError(f"encoder.config: cannot build the encoder ({reason})") from error


def _build_config(values: Mapping[str, Any], *, old: bool = False) -> Any:
    """Return the config of transformers; `old` accepts keys of older versions."""
    kind = _kind(values)
    known = {*_keys(kind), *(OLD_KEYS if old else ()), "model_type"}
    for key in values:
        if key not in known:
            message = f"unknown key of {kind}{nearest(key, known)}"
            raise ConfigError(f"encoder.config.{key}", message)
    for key, number in _numbers(values):
        least, limit = (1, LAYER_LIMIT) if key in LAYERS else (-NUMBER_LIMIT, NUMBER_LIMIT)
        if not least <= number <= limit:
            message = f"got {number}, expected {least} to {limit}"
            raise ConfigError(f"encoder.config.{key}", message)
    config = CONFIG_MAPPING[kind].from_dict(dict(values))
    config.use_cache = False  # GPT-2 would return a KV cache
    _check_sizes(config)
    return config


def _check_sizes(config: PreTrainedConfig) -> None:
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"):
        if getattr(config, key) < 1:
            raise ConfigError(f"encoder.config.{key}", f"got {getattr(config, key)}, expected 1 up")
    for key in ("is_decoder", "add_cross_attention"):
        if getattr(config, key, False):
            raise ConfigError(f"encoder.config.{key}", "is true; expected an encoder")
    pad = config.pad_token_id
    if pad is None and config.model_type in AFTER_PADDING:
        message = "is missing; positions are counted from it"
        raise ConfigError("encoder.config.pad_token_id", message)
    if pad is not None and not 0 <= pad < config.vocab_size:
        raise ConfigError("encoder.config.pad_token_id", f"got {pad}, not a token of the encoder")
    if _positions(config) < 1:
        message = f"got {config.max_position_embeddings}, which leaves no position for a token"
        raise ConfigError("encoder.config.max_position_embeddings", message)


def _kind(values: Mapping[str, Any]) -> str:
    kind = values.get("model_type")
    if kind not in ENCODERS:
        hint = nearest(str(kind), ENCODERS)
        message = f"got {kind!r}{hint}; a pretrained encoder is one of {', '.join(ENCODERS)}"
        raise ConfigError("model_type", message)
    return str(kind)


def _keys(kind: str) -> list[str]:
    """Return the keys that a family's config declares, and those its layers read."""
    general = {field.name for field in fields(PreTrainedConfig)} - {"tie_word_embeddings"}
    declared = {field.name for field in fields(CONFIG_MAPPING[kind])} - general
    return sorted(declared | set(ENCODERS[kind]))


def _numbers(values: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """Yield every integer in a JSON value with its key."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _numbers(value, str(name))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _numbers(value, key)
    elif isinstance(values, int) and not isinstance(values, bool):
        yield key, values
