"""The config of an encoder-decoder."""

from typing import Any

from huggingface_hub.dataclasses import strict

from outrider.config import build_config
from outrider.errors import ConfigError
from outrider.models.config.base import ModelConfig
from outrider.models.config.checks import check_model
from outrider.models.pretrained import check_encoder, longest_row
from outrider.nn.attention import kinds_with, load_attention
from outrider.nn.stack.skip import SkipConfig

__all__ = ["Seq2SeqConfig"]


@strict
class Seq2SeqConfig(ModelConfig):
    """An encoder-decoder. Its defaults with `norm: post` and `logits_bias` are Marian's."""

    model_type = "outrider_seq2seq"
    layer_keys = ("encoder_layers", "decoder_layers")
    attention_keys = {  # noqa: RUF012 - a class variable of a Hugging Face dataclass
        "encoder_attention": ("encoder_layers", False),
        "decoder_attention": ("decoder_layers", True),
    }
    core_keys = {"decoder_attention": "decoder_core"}  # noqa: RUF012 - as above

    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all encoder layers, or a list with one per layer."""
    decoder_attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all decoder layers, or a list with one per layer."""
    decoder_core: str = "attention"
    """What decoder layers know the tokens before by: attention, or gru for a state of constant
    size."""
    pair_attention: bool = False
    """Let the encoder's states meet once more behind its last layer."""
    skip: dict[str, Any] | None = None
    """`{below: RATE, layers: [...]}`: these encoder layers (all, if not listed) leave out tokens
    that the training data holds less often than RATE times the vocabulary's size."""
    encoder: dict[str, Any] | None = None
    """`{pretrained: FOLDER, freeze: true, layer: -1}` reads the source with a BERT-like encoder (a
    folder or a Hub name) instead of encoder layers; a saved model holds its config here."""
    share_embeddings: bool = True
    """Source and target use one embedding table."""
    decoder_start_token_id: int = 0
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        self.fill_attention("encoder_attention", "full")
        self.fill_attention("decoder_attention", "causal")
        super().__post_init__(**kwargs)
        check_model(self)
        self._check_skip()
        self._check_encoder()

    @property
    def longest_source(self) -> int:
        """Most source tokens, end included, that can be read at once."""
        longest = self.max_positions
        return longest if self.encoder is None else min(longest, longest_row(self.encoder))

    def _check_encoder(self) -> None:
        if self.encoder is None:
            return
        check_encoder(self.encoder)
        usual = {"encoder_layers": 6, "encoder_attention": {"kind": "full"}, "skip": None}
        for key, value in {**usual, "share_embeddings": True}.items():
            if getattr(self, key) != value:
                message = "has no effect with encoder, which has layers and embeddings of its own"
                raise ConfigError(key, f"{message}; leave it out")

    @property
    def skip_config(self) -> SkipConfig | None:
        """What `skip` says, checked; None where every token takes part."""
        if self.skip is None:
            return None
        return build_config(SkipConfig, self.skip, prefix="skip.")

    def _check_skip(self) -> None:
        skip = self.skip_config
        if skip is None:
            return
        if self.depth != "stacked" or self.residual == "reversible":
            message = "is for layers of their own; use depth: stacked and residual: add or gru"
            raise ConfigError("skip", message)
        if self.position_correlation:
            message = "needs a token's neighbours, which may be skipped; use one of the two"
            raise ConfigError("position_correlation", message)
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

    @property
    def first_token(self) -> int:
        """What the decoder is fed first."""
        return self.decoder_start_token_id
