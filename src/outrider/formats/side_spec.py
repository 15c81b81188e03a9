"""What drafters and CTC decoders share: layers of their own, and a target whose words they use.

Their `config.json` is untrusted input like any other, so everything a layer is made of is checked.

The description of a parallel decoder.

The description of a block drafter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

from outrider.errors import ConfigError, ModelError, nearest
from outrider.formats.spec import (
    ACTIVATIONS,
    LAYER_LIMIT,
    LIMITS,
    NORMS,
    POSITIONS,
    ModelSpec,
    Seq2SeqSpec,
)

__all__ = [
    "CtcSpec",
    "DrafterSpec",
    "SideDecoderSpec",
    "check_choice",
    "check_share",
]

DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
SHAPE = ("num_attention_heads", "intermediate_size", "activation", "gated", "norm")


@dataclass(kw_only=True)
class SideDecoderSpec:
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
    def from_target(cls, target: ModelSpec, values: Mapping[str, Any]) -> dict[str, Any]:
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


WEIGHT_LIMIT = 1e6


@dataclass(kw_only=True)
class CtcSpec(SideDecoderSpec):
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
    def for_target(cls, target: ModelSpec, **values: Any) -> Self:
        """Take from the target what must agree with it, and its layer's shape as the default."""
        if not isinstance(target, Seq2SeqSpec):
            raise ConfigError("target", "is a language model; CTC needs a source to read")
        values = {"dropout": target.dropout, **values}
        return cls(**cls.from_target(target, values), blank=target.pad_token_id)

    def check_target(self, target: ModelSpec) -> None:
        """Refuse a target that this was not made for."""
        expected = {
            "vocab_size": target.vocab_size,
            "hidden_size": target.hidden_size,
            "blank": target.pad_token_id,
        }
        self._check_fits("parallel decoder", expected)


CORES = ("transformer", "lstm")
READS = ("encoder", "ctc")
WHOLE_LIMIT = 1 << 20


@dataclass(kw_only=True)
class DrafterSpec(SideDecoderSpec):
    """A drafter: its own layer, and how it is trained."""

    model_type: ClassVar[str] = "outrider_drafter"
    given: ClassVar[tuple[str, ...]] = (
        "vocab_size",
        "hidden_size",
        "position",
        "cross",
        "target_layers",
    )
    ranges: ClassVar[dict[str, tuple[int, int]]] = {
        "block": (1, 1024),
        "rank": (0, 1 << 14),
        "candidates": (1, 1 << 14),
        "anchors": (1, 1 << 14),
        "target_layers": (1, LAYER_LIMIT),
    }

    target_layers: int = 6
    """Layers of the target's decoder."""
    position: str = "sinusoidal"
    """The target's kind of positions."""
    cross: bool = True
    """Reads the source: the target is an encoder-decoder."""
    core: str = "transformer"
    """What a slot knows of the text: `transformer` sees the target's states of all tokens, `lstm`
    runs along the block from the newest one."""
    reads: str = "encoder"
    """What it reads of the source: `encoder`, or `ctc` for the target's CTC decoder as well."""
    layers: int = 1
    """One is best on a CPU, two to four on a GPU."""
    taps: list[int] | None = None
    """Layers of the target whose states are injected; by default one in the middle and the last."""
    block: int = 16
    """Longest draft."""
    rank: int = 128
    """Width of the state that runs along the drafted tokens; 0 for independent slots, which is the
    default with `core: lstm`."""
    candidates: int = 16
    """Tokens of a slot that are rescored, and all that q can give."""
    shortlist: int = 0
    """Draft from so many of the commonest tokens only (the text stays exact); 0 for all."""
    copy_layers: bool = False
    """Training: layers begin as copies of the target's last ones, whose shape they must have."""
    anchors: int = 4
    """Training: blocks cut from every row."""
    train_block: int = 8
    """Training: slots of each of these blocks."""
    decay: float | int = 0.9
    """Training: weight of slot i + 1 over that of slot i."""
    soft_labels: bool = False
    """Training: slots learn how likely each token is to the target, not only which it chose; labels
    are not smoothed then."""
    whole: bool = True
    """Training: one more block over the whole target with random tokens known (mask-predict)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("position", self.position, POSITIONS)
        check_choice("core", self.core, CORES)
        check_choice("reads", self.reads, READS)
        if self.reads == "ctc" and self.core == "lstm":
            raise ConfigError("reads", "an lstm reads the encoder alone; leave it out")
        if self.reads == "ctc" and not self.cross:
            raise ConfigError("reads", "a language model has no CTC decoder; leave it out")
        if self.copy_layers and self.core == "lstm":
            raise ConfigError(
                "copy_layers", "an lstm is unlike any layer of a target; leave it out"
            )
        if not 1 <= self.train_block <= self.block:
            raise ConfigError("train_block", f"got {self.train_block}, expected 1 to {self.block}")
        if not 0 < self.decay <= 1:
            raise ConfigError("decay", f"got {self.decay}, expected above 0, at most 1")
        if not 0 <= self.shortlist <= self.vocab_size:
            raise ConfigError("shortlist", f"got {self.shortlist}, expected 0 to {self.vocab_size}")
        last = self.target_layers - 1
        if self.taps is None:
            self.taps = sorted({max(0, last // 2), last})
        if not self.taps or not all(0 <= tap <= last for tap in self.taps):
            raise ConfigError("taps", f"got {self.taps}, expected layers from 0 to {last}")

    @property
    def longest_text(self) -> int:
        """Most tokens that it can write as one block: any number if trained on whole texts."""
        return WHOLE_LIMIT if self.whole else self.block

    @classmethod
    def for_target(cls, target: ModelSpec, **values: Any) -> Self:
        """Take from the target what must agree with it, and its layer's shape as the default."""
        cross = isinstance(target, Seq2SeqSpec)
        theirs = {
            "target_layers": target.decoder_depth,
            "position": target.position,
            "cross": cross,
        }
        usual: dict[str, Any] = {"whole": cross}
        if values.get("core") == "lstm":
            usual["rank"] = 0  # it stands for what is guessed without looking at any guess
        return cls(**{**usual, **cls.from_target(target, values), **theirs})

    def check_target(self, target: ModelSpec) -> None:
        """Refuse a target that this was not made for."""
        expected = {
            "vocab_size": target.vocab_size,
            "hidden_size": target.hidden_size,
            "position": target.position,
            "target_layers": target.decoder_depth,
            "cross": isinstance(target, Seq2SeqSpec),
        }
        self._check_fits("drafter", expected)

    def check_shortlist(self, kept: Sequence[int]) -> None:
        """Refuse a shortlist that is no list of tokens in order."""
        words = self.vocab_size
        in_order = all(low < high for low, high in pairwise(kept))
        if kept and (not in_order or kept[0] < 0 or kept[-1] >= words):
            raise ModelError(
                f"kept_V, the drafter's shortlist, must hold token ids from 0 to {words - 1}, in "
                "order and each once"
            )
