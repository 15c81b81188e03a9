"""Text: the characters of a file, `--data FILE`.

The last twentieth is the test, the twentieth before it is watched while training. The score is bits
per character: the mean of -log2 p(character | what came before).
"""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from outrider.data.lines import open_file
from outrider.errors import ConfigError, DataError
from outrider.files import working_folder
from outrider_lab.tasks.base import TaskBase, TaskConfig

__all__ = ["Config", "Task"]

SHARE = 20
"""One part in so many is the test, another one is watched."""


class Config(TaskConfig):
    """How the text is read."""

    sequence_length: int = Field(default=256, ge=2)
    """Characters a model sees at once."""
    vocab_size: int = Field(default=256, ge=8)
    """Most characters with a token of their own."""


class Task(TaskBase):
    """Running text, predicted character by character."""

    config_class: ClassVar[type[TaskConfig]] = Config
    model_types = ("language_model",)
    config: Config

    def __init__(self, config: TaskConfig, data: Path | None = None) -> None:
        super().__init__(config)
        if data is None:
            raise ConfigError("--data", "is required for the task text: a text file")
        self.corpus = data

    def write(self, folder: Path) -> None:
        """Divide the file in three."""
        if folder.exists():
            return
        assert self.corpus is not None
        with open_file(self.corpus) as file:
            try:
                text = file.read().decode("utf-8")
            except UnicodeDecodeError:
                message = f"{self.corpus}: is not UTF-8 text; convert the file"
                raise DataError(message) from None
        part = len(text) // SHARE
        if not part:
            raise DataError(f"{self.corpus}: {len(text)} characters are too few to test on some")
        first, second = len(text) - 2 * part, len(text) - part
        with working_folder(folder) as work:
            cuts = {"train": text[:first], "valid": text[first:second], "test": text[second:]}
            for split, share in cuts.items():
                (work / f"{split}.txt").write_text(share, encoding="utf-8", newline="")

    def section(self, folder: Path, model_type: str) -> dict[str, Any]:
        """One token a character."""
        return {
            "root": str(folder),
            "train": {"target": "train.txt"},
            "valid": {"target": "valid.txt"},
            "sequence_length": self.config.sequence_length,
            "tokenizer": {"kind": "char", "vocab_size": self.config.vocab_size},
        }

    def test_file(self, folder: Path) -> Path:
        """The text that nobody has seen."""
        return folder / "test.txt"
