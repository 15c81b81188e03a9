"""What drafters and CTC decoders share: layers of their own, and a target whose words they use.

Their `config.json` is untrusted input like any other, so everything a layer is made of is checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from outrider.errors import ConfigError, ModelError, nearest
from outrider.formats.description.base import ModelDescription
from outrider.formats.description.choices import ACTIVATIONS, LIMITS, NORMS

__all__ = ["SideDecoderDescription", "check_choice", "check_share"]

DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
SHAPE = ("num_attention_heads", "intermediate_size", "activation", "gated", "norm")


@dataclass(kw_only=True)
class SideDecoderDescription:
    """The layers of a small decoder beside a target. Widths and words are the target's."""

    model_type: ClassVar[str] = ""

    given: ClassVar[tuple[str, ...]] = ("vocab_size", "hidden_size")
    """Keys that the target decides."""
    ranges: ClassVar[dict[str, tuple[int, int]]] = {}
    """Least and greatest value of further whole numbers."""

    vocab_size: int = 8000
    hidden_size: int = 512
    layers: int = 1
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    """Feed-forward width."""
    activation: str = "relu"
    gated: bool = False
    norm: str = "pre"
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0

    def __post_init__(self) -> None:
        sizes = {key: (1, limit) for key, limit in LIMITS.items()}
        sizes |= {"layers": (1, 64), "num_attention_heads": (1, 1 << 10)} | self.ranges
        for key, (least, most) in sizes.items():
            if not least <= getattr(self, key) <= most:
                raise ConfigError(key, f"got {getattr(self, key)}, expected {least} to {most}")
        for key, accepted in {"activation": ACTIVATIONS, "norm": NORMS}.items():
            check_choice(key, getattr(self, key), accepted)
        for key in DROPOUTS:
            check_share(key, getattr(self, key))
        if self.hidden_size % self.num_attention_heads:
            message = f"got {self.num_attention_heads}, which does not divide {self.hidden_size}"
            raise ConfigError("num_attention_heads", message)

    @classmethod
    def from_target(cls, target: ModelDescription, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the target decides, its layer's shape, and on top the `values` asked for."""
        for key in values.keys() & set(cls.given):
            raise ConfigError(key, "comes from the target; leave it out")
        shape = {key: getattr(target, key) for key in SHAPE}
        shape["num_attention_heads"] = _dividing(target.hidden_size, target.num_attention_heads)
        words = {"vocab_size": target.vocab_size, "hidden_size": target.hidden_size}
        return {**words, **shape, **values}

    def _check_fits(self, name: str, expected: Mapping[str, Any]) -> None:
        for key, value in expected.items():
            if getattr(self, key) != value:
                raise ModelError(
                    f"the {name} was made for another model: its {key} is {getattr(self, key)}, "
                    f"the target's {value}"
                )


def _dividing(width: int, heads: int) -> int:
    """Return so many heads, or the next fewer that the width can be cut into."""
    return next(n for n in range(heads, 0, -1) if width % n == 0)


def check_choice(key: str, value: str, accepted: tuple[str, ...]) -> None:
    """Refuse a word that is none of those accepted."""
    if value not in accepted:
        expected = ", ".join(accepted)
        message = f"unknown {value!r}{nearest(value, accepted)}; expected one of {expected}"
        raise ConfigError(key, message)


def check_share(key: str, value: float) -> None:
    """Refuse what is no share of a whole."""
    if not 0 <= value < 1:
        raise ConfigError(key, f"got {value}, expected 0 to less than 1")
