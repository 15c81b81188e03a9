"""Text: the characters of a file, `--data FILE`.

The last twentieth is the test set, the twentieth before it the validation set. The score is bits
per character: the mean of -log2 p(character | all characters before it).
"""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from outrider.data.lines import open_file
from outrider.errors import ConfigError, DataError
from outrider.files import working_folder
from outrider_lab.tasks.base import TaskBase, TaskConfig

SHARE = 20
"""One part in this many is the test set, another one the validation set."""


class Config(TaskConfig):
    """How the text is read."""

    sequence_length: int = Field(default=256, ge=2)
    """Context of a model in characters."""
    vocab_size: int = Field(default=256, ge=8)
    """Maximum characters with their own token."""


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
        """Split the file in three."""
        if folder.exists():
            return
        assert self.corpus is not None
        with open_file(self.corpus) as file:
            try:
                text = file.read().decode("utf-8")
            except UnicodeDecodeError as error:
                message = f"{self.corpus}: is not UTF-8 text; convert the file"
                raise DataError(message) from error
        part = len(text) // SHARE
        if not part:
            raise DataError(f"{self.corpus}: {len(text)} characters are too few to hold out some")
        first, second = len(text) - 2 * part, len(text) - part
        with working_folder(folder) as work:
            cuts = {"train": text[:first], "valid": text[first:second], "test": text[second:]}
            for split, share in cuts.items():
                (work / f"{split}.txt").write_text(share, encoding="utf-8", newline="")

    def section(self, folder: Path, model_type: str) -> dict[str, Any]:
        """Return the `data` section, with a token per character."""
        return {
            "root": str(folder),
            "train": {"target": "train.txt"},
            "valid": {"target": "valid.txt"},
            "sequence_length": self.config.sequence_length,
            "tokenizer": {"kind": "char", "vocab_size": self.config.vocab_size},
        }

    def test_file(self, folder: Path) -> Path:
        """Return the file of the test set."""
        return folder / "test.txt"
