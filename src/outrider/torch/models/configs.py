"""Model configs for Hugging Face: the specs of `formats`, with checks that need PyTorch."""

from typing import Any, TypeVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from outrider.config import Config, build_config
from outrider.errors import ConfigError
from outrider.formats.side_spec import CtcSpec, DrafterSpec
from outrider.formats.spec import (
    BIASES,
    LanguageModelSpec,
    MaskedLmSpec,
    ModelSpec,
    Seq2SeqSpec,
    check_usual_score,
)
from outrider.torch.models.pretrained import check_encoder, longest_row
from outrider.torch.nn.attention import (
    AttentionBase,
    AttentionConfig,
    HeadShape,
    build_attention,
    cross_options,
    kinds_with,
    load_attention,
)
from outrider.torch.nn.family.halting import HaltingConfig, PonderingConfig
from outrider.torch.nn.family.skip import SkipConfig

_Section = TypeVar("_Section", bound=Config)


@strict
class ModelConfig(ModelSpec, PreTrainedConfig):
    """The parts of a model that its spec names."""

    def __post_init__(self, **kwargs: Any) -> None:
        PreTrainedConfig.__post_init__(self, **kwargs)

    @property
    def halting_config(self) -> HaltingConfig | None:
        """The checked `halting` section, if any."""
        return self._section("halting", HaltingConfig)

    @property
    def pondering_config(self) -> PonderingConfig | None:
        """The checked `pondering` section, if any."""
        return self._section("pondering", PonderingConfig)

    def _section(self, key: str, cls: type[_Section]) -> _Section | None:
        values = getattr(self, key)
        return None if values is None else build_config(cls, values, prefix=f"{key}.")

    def layer_attention(self, key: str, layer: int) -> dict[str, Any]:
        """Return the attention options of one layer."""
        spec = super().layer_attention(key, layer)
        if isinstance(getattr(self, key), list):
            return spec
        variant = load_attention(spec.get("kind", ""), key=f"{key}.kind")
        options: dict[str, Any] = variant.Config.for_layer(spec, layer)
        return options

    @property
    def head_shape(self) -> HeadShape:
        """The heads of every self-attention."""
        heads = self.num_attention_heads
        return HeadShape(heads, self.num_key_value_heads or heads, self.head_width)


def check_attentions(config: ModelConfig) -> None:
    """Check the attentions, and the combinations of other keys with them."""
    _check_shared(config)
    for key, (layers, causal) in config.attention_keys.items():
        checked: list[dict[str, Any]] = []  # many layers have few different attentions
        for index in range(0 if config.is_recurrent(key) else getattr(config, layers)):
            spec = config.layer_attention(key, index)
            if spec in checked[-2:]:
                continue
            checked.append(spec)
            attention = build_attention(spec, causal=causal, shape=config.head_shape, key=key)
            for part in attention.modules():
                if isinstance(part, AttentionBase):
                    _check_part(config, key, part)


def _check_shared(config: ModelConfig) -> None:
    if config.depth != "shared":
        return
    for key in config.attention_keys:
        spec: dict[str, Any] = getattr(config, key) or {}
        if not config.is_recurrent(key):
            kind = spec.get("kind", "")
            load_attention(kind, key=f"{key}.kind").Config.check_shared(spec, key)
        if config.halting_config is not None:
            _check_halting(config, key, spec)


def _check_halting(config: ModelConfig, key: str, spec: dict[str, Any]) -> None:
    if config.is_recurrent(key):
        message = f"a {config.mixer_of(key)} reads every token, so none can halt; leave halting out"
        raise ConfigError(config.mixer_keys[key], message)
    kind = spec.get("kind", "")
    if not load_attention(kind, key=f"{key}.kind").Attention.halting_ok:
        expected = ", ".join(kinds_with("halting_ok"))
        message = f"{kind!r} cannot leave tokens out; with halting use {expected}"
        raise ConfigError(f"{key}.kind", message)
    check_usual_score(key, spec, "halting needs")
    if config.position_correlation:
        message = "needs a token's neighbours, which may have halted; use one of the two"
        raise ConfigError("position_correlation", message)


def _check_part(config: ModelConfig, key: str, part: AttentionBase) -> None:
    if config.position in BIASES and not part.columns_ok:
        message = f"{part.kind!r} in {key} cannot be biased by {config.position!r}; use rotary"
        raise ConfigError("position", message)
    if config.residual == "reversible":
        part.check_reversible(key)


@strict
class LanguageModelConfig(LanguageModelSpec, ModelConfig):
    """A decoder-only language model."""

    is_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        ModelConfig.__post_init__(self, **kwargs)
        LanguageModelSpec.__post_init__(self)
        check_attentions(self)

    @property
    def num_hidden_layers(self) -> int:
        """Hugging Face's name of `layers`."""
        return self.layers


@strict
class MaskedLmConfig(MaskedLmSpec, ModelConfig):
    """An encoder with a head that predicts masked tokens."""

    def __post_init__(self, **kwargs: Any) -> None:
        ModelConfig.__post_init__(self, **kwargs)
        MaskedLmSpec.__post_init__(self)
        check_attentions(self)

    @property
    def num_hidden_layers(self) -> int:
        """Hugging Face's name of `layers`."""
        return self.layers

    @property
    def max_position_embeddings(self) -> int:
        """Hugging Face's name of `max_positions`."""
        return self.max_positions


@strict
class Seq2SeqConfig(Seq2SeqSpec, ModelConfig):
    """An encoder-decoder."""

    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        ModelConfig.__post_init__(self, **kwargs)
        Seq2SeqSpec.__post_init__(self)
        check_attentions(self)
        self._check_skipped()
        self._check_cross()
        if self.encoder is not None:
            check_encoder(self.encoder)

    @property
    def longest_source(self) -> int:
        """Maximum source tokens, end token included."""
        longest = self.max_positions
        return longest if self.encoder is None else min(longest, longest_row(self.encoder))

    @property
    def skip_config(self) -> SkipConfig | None:
        """The checked `skip` section, if any."""
        return self._section("skip", SkipConfig)

    @property
    def cross_config(self) -> AttentionConfig | None:
        """The checked `cross_attention` section, if any."""
        return None if self.cross_attention is None else cross_options(self.cross_attention)

    def _check_cross(self) -> None:
        cross = self.cross_config
        if cross is not None and cross.score == "fast" and self.halting is not None:
            message = "needs positions, which halting removes; use another score"
            raise ConfigError("cross_attention.score", message)

    def _check_skipped(self) -> None:
        skip = self.skip_config
        if skip is None:
            return
        last = self.encoder_layers - 1
        if not all(0 <= layer <= last for layer in skip.layers or ()):
            message = f"got {list(skip.layers or ())}, expected layers from 0 to {last}"
            raise ConfigError("skip.layers", message)
        for layer in range(self.encoder_layers) if skip.layers is None else skip.layers:
            spec = self.layer_attention("encoder_attention", layer)
            variant = load_attention(spec.get("kind", ""), key="encoder_attention.kind")
            if not variant.Attention.skipping_ok or spec.get("score") == "fast":
                message = f"layer {layer} depends on distances, so no token can be skipped"
                expected = " or ".join(kinds_with("skipping_ok"))
                raise ConfigError(
                    "encoder_attention", f"{message}; use kind {expected}, and not score fast"
                )


@strict
class DrafterConfig(DrafterSpec, PreTrainedConfig):
    """A drafter and its training options."""

    def __post_init__(self, **kwargs: Any) -> None:
        PreTrainedConfig.__post_init__(self, **kwargs)
        DrafterSpec.__post_init__(self)


@strict
class CtcConfig(CtcSpec, PreTrainedConfig):
    """A parallel decoder and its training options."""

    def __post_init__(self, **kwargs: Any) -> None:
        PreTrainedConfig.__post_init__(self, **kwargs)
        CtcSpec.__post_init__(self)
