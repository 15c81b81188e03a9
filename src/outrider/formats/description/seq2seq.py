"""The description of an encoder-decoder."""

from dataclasses import dataclass
from typing import Any, ClassVar

from outrider.errors import ConfigError
from outrider.formats.description.base import ModelDescription
from outrider.formats.description.checks import check_model

__all__ = ["Seq2SeqDescription"]


@dataclass(kw_only=True)
class Seq2SeqDescription(ModelDescription):
    """An encoder-decoder. Its defaults with `norm: post` and `logits_bias` are Marian's."""

    model_type: ClassVar[str] = "outrider_seq2seq"
    layer_keys: ClassVar[tuple[str, ...]] = ("encoder_layers", "decoder_layers")
    attention_keys: ClassVar[dict[str, tuple[str, bool]]] = {
        "encoder_attention": ("encoder_layers", False),
        "decoder_attention": ("decoder_layers", True),
    }
    core_keys: ClassVar[dict[str, str]] = {
        "encoder_attention": "encoder_core",
        "decoder_attention": "decoder_core",
    }

    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all encoder layers, or a list with one per layer."""
    decoder_attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all decoder layers, or a list with one per layer."""
    cross_attention: dict[str, Any] | None = None
    """`{score: ..., normaliser: ..., head_gate: ...}` of the decoder's look at the source; null for
    scaled dot and softmax."""
    encoder_core: str = "attention"
    """What encoder layers know other tokens by: attention, or gru or lstm, which read the source
    forwards and backwards."""
    decoder_core: str = "attention"
    """What decoder layers know the tokens before by: attention, or gru or ssru (which is
    faster) for a state of constant size."""
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
    source_end: bool = True
    """A source ends with the end token; some models of OpenNMT read it without."""
    right_to_left: bool = False
    """Write targets from their last token to their first; texts come out as usual."""

    def __post_init__(self) -> None:
        self.fill_attention("encoder_attention", "full")
        self.fill_attention("decoder_attention", "causal")
        check_model(self)
        self._check_skip()
        self._check_encoder()

    def _check_encoder(self) -> None:
        if self.encoder is None:
            return
        usual: dict[str, Any] = {
            "encoder_layers": 6,
            "encoder_attention": {"kind": "full"},
            "skip": None,
        }
        usual |= {"encoder_core": "attention", "share_embeddings": True}
        for key, value in usual.items():
            if getattr(self, key) != value:
                message = "has no effect with encoder, which has layers and embeddings of its own"
                raise ConfigError(key, f"{message}; leave it out")

    def _check_skip(self) -> None:
        if self.skip is None:
            return
        if self.encoder_core != "attention":
            raise ConfigError("skip", f"leaves out tokens that a {self.encoder_core} has to read")
        if self.depth != "stacked" or self.residual == "reversible":
            message = "is for layers of their own; use depth: stacked and residual: add or gru"
            raise ConfigError("skip", message)
        if self.position_correlation:
            message = "needs a token's neighbours, which may be skipped; use one of the two"
            raise ConfigError("position_correlation", message)

    @property
    def first_token(self) -> int:
        """What the decoder is fed first."""
        return self.decoder_start_token_id

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder."""
        return self.decoder_layers
