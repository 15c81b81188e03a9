"""The config of an encoder-decoder."""

from typing import Any

from huggingface_hub.dataclasses import strict

from outrider.config import build_config
from outrider.errors import ConfigError
from outrider.formats.description import Seq2SeqDescription
from outrider.torch.models.config.base import ModelConfig
from outrider.torch.models.config.checks import check_attentions
from outrider.torch.models.pretrained import check_encoder, longest_row
from outrider.torch.nn.attention import AttentionConfig, cross_options, kinds_with, load_attention
from outrider.torch.nn.family.skip import SkipConfig

__all__ = ["Seq2SeqConfig"]


@strict
class Seq2SeqConfig(Seq2SeqDescription, ModelConfig):
    """An encoder-decoder."""

    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        ModelConfig.__post_init__(self, **kwargs)
        Seq2SeqDescription.__post_init__(self)
        check_attentions(self)
        self._check_skipped()
        self._check_cross()
        if self.encoder is not None:
            check_encoder(self.encoder)

    @property
    def longest_source(self) -> int:
        """Most source tokens, end included, that can be read at once."""
        longest = self.max_positions
        return longest if self.encoder is None else min(longest, longest_row(self.encoder))

    @property
    def skip_config(self) -> SkipConfig | None:
        """What `skip` says, checked; None where every token takes part."""
        if self.skip is None:
            return None
        return build_config(SkipConfig, self.skip, prefix="skip.")

    @property
    def cross_config(self) -> AttentionConfig | None:
        """What `cross_attention` says, checked; None for the usual."""
        return None if self.cross_attention is None else cross_options(self.cross_attention)

    def _check_cross(self) -> None:
        cross = self.cross_config
        if cross is not None and cross.score == "fast" and self.halting is not None:
            message = "counts positions, and tokens that halt are taken out; use another score"
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
                message = f"layer {layer} asks how far apart tokens stand, so none can be skipped"
                expected = " or ".join(kinds_with("skipping_ok"))
                raise ConfigError(
                    "encoder_attention", f"{message}; use kind {expected}, and not score fast"
                )
