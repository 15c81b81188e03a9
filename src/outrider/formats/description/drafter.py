"""The description of a block drafter."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

from outrider.errors import ConfigError, ModelError
from outrider.formats.description.base import ModelDescription
from outrider.formats.description.choices import LAYER_LIMIT, POSITIONS
from outrider.formats.description.seq2seq import Seq2SeqDescription
from outrider.formats.description.side_decoder import SideDecoderDescription, check_choice

__all__ = ["DrafterDescription"]

CORES = ("transformer", "lstm")
READS = ("encoder", "ctc")
WHOLE_LIMIT = 1 << 20


@dataclass(kw_only=True)
class DrafterDescription(SideDecoderDescription):
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
    def for_target(cls, target: ModelDescription, **values: Any) -> Self:
        """Take from the target what must agree with it, and its layer's shape as the default."""
        cross = isinstance(target, Seq2SeqDescription)
        theirs = {
            "target_layers": target.decoder_depth,
            "position": target.position,
            "cross": cross,
        }
        usual: dict[str, Any] = {"whole": cross}
        if values.get("core") == "lstm":
            usual["rank"] = 0  # it stands for what is guessed without looking at any guess
        return cls(**{**usual, **cls.from_target(target, values), **theirs})

    def check_target(self, target: ModelDescription) -> None:
        """Refuse a target that this was not made for."""
        expected = {
            "vocab_size": target.vocab_size,
            "hidden_size": target.hidden_size,
            "position": target.position,
            "target_layers": target.decoder_depth,
            "cross": isinstance(target, Seq2SeqDescription),
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
