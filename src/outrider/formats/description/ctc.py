"""The description of a parallel decoder."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from outrider.errors import ConfigError
from outrider.formats.description.base import ModelDescription
from outrider.formats.description.seq2seq import Seq2SeqDescription
from outrider.formats.description.side_decoder import SideDecoderDescription, check_share

__all__ = ["CtcDescription"]

WEIGHT_LIMIT = 1e6


@dataclass(kw_only=True)
class CtcDescription(SideDecoderDescription):
    """A parallel decoder and how it is trained."""

    model_type: ClassVar[str] = "outrider_ctc"
    given: ClassVar[tuple[str, ...]] = ("vocab_size", "hidden_size", "blank")
    ranges: ClassVar[dict[str, tuple[int, int]]] = {
        "upsample": (1, 16),
        "reveal_steps": (1, 1 << 40),
    }

    blank: int = 0
    """The target's padding token: it never stands in a text."""
    upsample: int = 2
    """Slots for every source token; a text can be no longer than its slots."""
    layers: int = 4
    cross: bool = False
    """Every layer also attends to the encoder's output."""
    joint: bool = False
    """Training: go on training the target too, so that its encoder serves both decoders."""
    ar_weight: float | int = 1.0
    """Training: weight of the target's own loss in a joint one."""
    reveal_start: float | int = 0.5
    """Training: slots given their token at first, as a share of those the model gets wrong."""
    reveal_end: float | int = 0.3
    """Training: the same share at the end."""
    reveal_steps: int = 10_000
    """Training: batches over which the share goes from one to the other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("reveal_start", "reveal_end"):
            check_share(key, getattr(self, key))
        if not 0 <= self.ar_weight <= WEIGHT_LIMIT:
            message = f"got {self.ar_weight}, expected 0 to {WEIGHT_LIMIT:g}"
            raise ConfigError("ar_weight", message)
        if not 0 <= self.blank < self.vocab_size:
            raise ConfigError("blank", f"got {self.blank}, not a token of {self.vocab_size}")

    @classmethod
    def for_target(cls, target: ModelDescription, **values: Any) -> Self:
        """Take from the target what must agree with it, and its layer's shape as the default."""
        if not isinstance(target, Seq2SeqDescription):
            raise ConfigError("target", "is a language model; CTC needs a source to read")
        values = {"dropout": target.dropout, **values}
        return cls(**cls.from_target(target, values), blank=target.pad_token_id)

    def check_target(self, target: ModelDescription) -> None:
        """Refuse a target that this was not made for."""
        expected = {
            "vocab_size": target.vocab_size,
            "hidden_size": target.hidden_size,
            "blank": target.pad_token_id,
        }
        self._check_fits("parallel decoder", expected)
