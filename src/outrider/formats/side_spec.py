"""Configs of the small decoders beside a target: drafters and CTC decoders.

A side decoder has its own layers and uses the target's embeddings, so that widths and vocabulary
are the target's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, ClassVar, Self

from outrider.errors import ConfigError, ModelError
from outrider.formats.spec import (
    ACTIVATIONS,
    LAYER_LIMIT,
    NORMS,
    POSITIONS,
    SIZES,
    ModelSpec,
    Seq2SeqSpec,
    check_choice,
    check_range,
    check_share,
)


@dataclass(kw_only=True)
class SideDecoderSpec:
    """The keys of all side decoders."""

    model_type: ClassVar[str] = ""

    title: ClassVar[str] = ""
    given: ClassVar[dict[str, Callable[[ModelSpec], Any]]] = {
        "vocab_size": attrgetter("vocab_size"),
        "hidden_size": attrgetter("hidden_size"),
    }
    """Keys whose values come from the target."""
    ranges: ClassVar[dict[str, tuple[int, int]]] = {}
    """Ranges of further whole numbers."""

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
        own = {"layers": (1, 64), "num_attention_heads": (1, 1 << 10)}
        for key, (least, most) in (SIZES | own | self.ranges).items():
            check_range(key, getattr(self, key), least, most)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("norm", self.norm, NORMS)
        for key in ("dropout", "attention_dropout", "activation_dropout"):
            check_share(key, getattr(self, key))
        if self.hidden_size % self.num_attention_heads:
            message = f"got {self.num_attention_heads}, which does not divide {self.hidden_size}"
            raise ConfigError("num_attention_heads", message)

    @classmethod
    def for_target(cls, target: ModelSpec, **values: Any) -> Self:
        """Take from the target the keys that must agree, and the shape of its layers as default."""
        for key in values.keys() & cls.given:
            raise ConfigError(key, "comes from the target; leave it out")
        keys = ("intermediate_size", "activation", "gated", "norm")
        shape = {key: getattr(target, key) for key in keys}
        width = target.hidden_size
        heads = next(n for n in range(target.num_attention_heads, 0, -1) if width % n == 0)
        given = {key: value_of(target) for key, value_of in cls.given.items()}
        return cls(**{**shape, "num_attention_heads": heads, **values, **given})

    def check_target(self, target: ModelSpec) -> None:
        """Refuse a target that this was not made for."""
        for key, value_of in self.given.items():
            if getattr(self, key) != value_of(target):
                raise ModelError(
                    f"the {self.title} was made for another model: its {key} is "
                    f"{getattr(self, key)}, the target's {value_of(target)}"
                )


@dataclass(kw_only=True)
class CtcSpec(SideDecoderSpec):
    """A parallel decoder, and how it is trained."""

    model_type: ClassVar[str] = "outrider_ctc"
    title: ClassVar[str] = "parallel decoder"
    given: ClassVar[dict[str, Callable[[ModelSpec], Any]]] = {
        **SideDecoderSpec.given,
        "blank": attrgetter("pad_token_id"),
    }
    ranges: ClassVar[dict[str, tuple[int, int]]] = {
        "upsample": (1, 16),
        "reveal_steps": (1, 1 << 40),
        "ar_weight": (0, 1_000_000),
    }

    blank: int = 0
    """The target's padding token, which never occurs in a text."""
    upsample: int = 2
    """Slots for every source token; a text cannot be longer than its slots."""
    layers: int = 4
    cross: bool = False
    """Every layer also attends to the encoder's output."""
    joint: bool = False
    """Training: train the target as well, so that its encoder serves both decoders."""
    ar_weight: float | int = 1.0
    """Training: weight of the target's own loss if `joint`."""
    reveal_start: float | int = 0.5
    """Training: initial number of slots that are given their token, as a share of the model's
    wrong slots."""
    reveal_end: float | int = 0.3
    """Training: the final share."""
    reveal_steps: int = 10_000
    """Training: batches over which the share changes from the first to the second."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("reveal_start", self.reveal_start)
        check_share("reveal_end", self.reveal_end)
        if not 0 <= self.blank < self.vocab_size:
            message = f"got {self.blank}, but the vocabulary has {self.vocab_size} tokens"
            raise ConfigError("blank", message)

    @classmethod
    def for_target(cls, target: ModelSpec, **values: Any) -> Self:
        """Refuse a language model; the target's dropout is the default."""
        if not isinstance(target, Seq2SeqSpec):
            raise ConfigError("target", "is a language model; CTC needs a source")
        return super().for_target(target, **{"dropout": target.dropout, **values})


@dataclass(kw_only=True)
class DrafterSpec(SideDecoderSpec):
    """A block drafter, and how it is trained."""

    model_type: ClassVar[str] = "outrider_drafter"
    title: ClassVar[str] = "drafter"
    given: ClassVar[dict[str, Callable[[ModelSpec], Any]]] = {
        **SideDecoderSpec.given,
        "position": attrgetter("position"),
        "target_layers": attrgetter("decoder_depth"),
        "cross": lambda target: isinstance(target, Seq2SeqSpec),
    }
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
    """Attends to the source: the target is an encoder-decoder."""
    core: str = "transformer"
    """How slots see the text: `transformer` attends to the target's states of all tokens, `lstm`
    runs along the block from the last token."""
    reads: str = "encoder"
    """Source states: `encoder`, or `ctc` for the states of the target's CTC decoder as well."""
    layers: int = 1
    """One is best on a CPU, two to four on a GPU."""
    taps: list[int] | None = None
    """Layers of the target whose states are injected; null for a middle one and the last."""
    block: int = 16
    """Longest draft."""
    rank: int = 128
    """Width of the state that runs along the drafted tokens; 0 for independent slots, the default
    with `core: lstm`."""
    candidates: int = 16
    """Tokens of a slot that are rescored; all other tokens have draft probability 0."""
    shortlist: int = 0
    """Draft only from this many of the most frequent tokens (the text stays exact); 0 for all."""
    copy_layers: bool = False
    """Training: initialise layers from the target's last ones, whose shape they must have."""
    anchors: int = 4
    """Training: blocks cut from every row."""
    train_block: int = 8
    """Training: slots of each of these blocks."""
    decay: float | int = 0.9
    """Training: weight of slot i + 1 over that of slot i."""
    soft_labels: bool = False
    """Training: learn the target's probability of each token, not only its choice; labels are not
    smoothed then."""
    whole: bool = True
    """Training: one more block over the whole target with random tokens given (mask-predict)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("position", self.position, POSITIONS)
        check_choice("core", self.core, ("transformer", "lstm"))
        check_choice("reads", self.reads, ("encoder", "ctc"))
        if self.reads == "ctc" and self.core == "lstm":
            raise ConfigError("reads", "an lstm reads the encoder only; leave it out")
        if self.reads == "ctc" and not self.cross:
            raise ConfigError("reads", "a language model has no CTC decoder; leave it out")
        if self.copy_layers and self.core == "lstm":
            raise ConfigError("copy_layers", "an lstm has no layer of the target; leave it out")
        check_range("train_block", self.train_block, 1, self.block)
        check_range("shortlist", self.shortlist, 0, self.vocab_size)
        if not 0 < self.decay <= 1:
            raise ConfigError("decay", f"got {self.decay}, expected above 0, at most 1")
        last = self.target_layers - 1
        if self.taps is None:
            self.taps = sorted({max(0, last // 2), last})
        if not self.taps or not all(0 <= tap <= last for tap in self.taps):
            raise ConfigError("taps", f"got {self.taps}, expected layers from 0 to {last}")

    @property
    def longest_text(self) -> int:
        """Most tokens that one block can have; practically no limit if trained on whole texts."""
        return 1 << 20 if self.whole else self.block

    @classmethod
    def for_target(cls, target: ModelSpec, **values: Any) -> Self:
        """Adapt the defaults to the kind of target, and of drafter."""
        defaults: dict[str, Any] = {"whole": isinstance(target, Seq2SeqSpec)}
        if values.get("core") == "lstm":
            defaults["rank"] = 0
        return super().for_target(target, **{**defaults, **values})

    def check_shortlist(self, tokens: Sequence[int]) -> None:
        """Refuse a shortlist that is not an ascending list of token ids."""
        size = self.vocab_size
        ascending = all(low < high for low, high in pairwise(tokens))
        if tokens and (not ascending or tokens[0] < 0 or tokens[-1] >= size):
            raise ModelError(
                f"kept_V, the drafter's shortlist, must hold token ids from 0 to {size - 1}, in "
                "order and each once"
            )
