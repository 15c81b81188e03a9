"""The config of a block drafter."""

from typing import Any

from huggingface_hub.dataclasses import strict

from outrider.errors import ConfigError
from outrider.models.config import LanguageModelConfig, Seq2SeqConfig
from outrider.models.config.choices import LAYER_LIMIT, POSITIONS
from outrider.models.side_decoder import SideDecoderConfig, check_choice

__all__ = ["DrafterConfig", "decoder_layers"]

CORES = ("transformer", "lstm")
READS = ("encoder", "ctc")
WHOLE_LIMIT = 1 << 20


@strict
class DrafterConfig(SideDecoderConfig):
    """A drafter: its own layer, and how it is trained."""

    model_type = "outrider_drafter"
    given = ("vocab_size", "hidden_size", "position", "cross", "target_layers")
    ranges = {  # noqa: RUF012 - a class variable of a Hugging Face dataclass
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
    anchors: int = 4
    """Training: blocks cut from every row."""
    train_block: int = 8
    """Training: slots of each of these blocks."""
    decay: float | int = 0.9
    """Training: weight of slot i + 1 over that of slot i."""
    whole: bool = True
    """Training: one more block over the whole target with random tokens known (mask-predict)."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_choice("position", self.position, POSITIONS)
        check_choice("core", self.core, CORES)
        check_choice("reads", self.reads, READS)
        if self.reads == "ctc" and self.core == "lstm":
            raise ConfigError("reads", "an lstm reads the encoder alone; leave it out")
        if self.reads == "ctc" and not self.cross:
            raise ConfigError("reads", "a language model has no CTC decoder; leave it out")
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
    def for_target(
        cls, target: Seq2SeqConfig | LanguageModelConfig, **values: Any
    ) -> "DrafterConfig":
        """Take from the target what must agree with it, and its layer's shape as the default."""
        cross = isinstance(target, Seq2SeqConfig)
        theirs = {
            "target_layers": decoder_layers(target),
            "position": target.position,
            "cross": cross,
        }
        usual: dict[str, Any] = {"whole": cross}
        if values.get("core") == "lstm":
            usual["rank"] = 0  # it stands for what is guessed without looking at any guess
        return cls(**{**usual, **cls.from_target(target, values), **theirs})


def decoder_layers(config: Seq2SeqConfig | LanguageModelConfig) -> int:
    """Layers of a target's decoder."""
    return config.decoder_layers if isinstance(config, Seq2SeqConfig) else config.layers
