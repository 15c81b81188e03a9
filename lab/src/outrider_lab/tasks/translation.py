"""Translation: a parallel corpus, `--data FOLDER` or `--data RUN.yaml`.

A folder contains `train`, `valid` and `test` with the suffixes of the two languages, plain or .gz:
`train.en`, `train.de` and so on. From a run config the sections `data` and `evaluate` are used. The
score is BLEU of greedy output.
"""

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from outrider.config import build_config, read_yaml
from outrider.data.config import PrepareConfig
from outrider.errors import ConfigError, DataError
from outrider_lab.tasks.base import TaskBase, TaskConfig


class Config(TaskConfig):
    """How a folder is read; does not apply to a run config."""

    source: str = "en"
    """Suffix of the source files."""
    target: str = "de"
    """Suffix of the target files."""
    vocab_size: int = Field(default=8000, ge=8)
    """Size of the shared vocabulary."""
    max_tokens: int = Field(default=128, ge=1)
    """Maximum tokens of a training sentence."""
    root: str | None = None
    """Base folder of the paths of a run config, instead of its `data.root`."""


class HeldOut(NamedTuple):
    """Test sentences and their reference translations."""

    source: Path
    reference: Path
    tokenize: str


class Task(TaskBase):
    """Sentences and their translations."""

    config_class: ClassVar[type[TaskConfig]] = Config
    model_types = ("seq2seq",)
    config: Config

    def __init__(self, config: TaskConfig, data: Path | None = None) -> None:
        super().__init__(config)
        if data is None:
            message = "is required for the task translation: a folder of pairs, or a run config"
            raise ConfigError("--data", message)
        self.corpus = data
        from_folder = data.is_dir()
        self._section, self._test = (self._from_folder if from_folder else self._from_run)(data)

    def write(self, folder: Path) -> None:
        """Write nothing: the corpus is read in place."""

    def section(self, folder: Path, model_type: str) -> dict[str, Any]:
        """Return the `data` section of the corpus."""
        return self._section

    def test_pair(self) -> HeldOut:
        """Return the test set."""
        return self._test

    def _from_folder(self, folder: Path) -> tuple[dict[str, Any], HeldOut]:
        endings = (self.config.source, self.config.target)
        files = {
            split: [_find(folder, split, ending) for ending in endings]
            for split in ("train", "valid", "test")
        }
        section: dict[str, Any] = {
            "root": str(folder),
            "tokenizer": {"kind": "unigram", "vocab_size": self.config.vocab_size},
            "clean": {"max_tokens": self.config.max_tokens},
        }
        for split in ("train", "valid"):
            source, target = files[split]
            section[split] = {"source": source, "target": target}
        test, reference = (folder / name for name in files["test"])
        return section, HeldOut(test, reference, "auto")

    def _from_run(self, path: Path) -> tuple[dict[str, Any], HeldOut]:
        values = read_yaml(path)
        section, test = values.get("data"), values.get("evaluate")
        if not isinstance(section, dict) or not isinstance(test, dict) or "source" not in test:
            message = f"{path} must have a section data, and evaluate with source and reference"
            raise ConfigError("--data", message)
        section |= {"root": self.config.root} if self.config.root else {}
        config = build_config(PrepareConfig, section, prefix="data.")
        pair = HeldOut(
            config.path(str(test["source"])),
            config.path(str(test.get("reference"))),
            str(test.get("tokenize", "auto")),
        )
        return {key: value for key, value in section.items() if key != "folder"}, pair


def _find(folder: Path, split: str, ending: str) -> str:
    """Return a split's file: `test.en`, or the first of others such as `test_2016_flickr.en`."""
    exact = [f"{split}.{ending}", f"{split}.{ending}.gz"]
    others = sorted(path.name for path in folder.glob(f"{split}[._-]*"))
    for name in [*exact, *others]:
        if name.removesuffix(".gz").endswith(f".{ending}") and (folder / name).is_file():
            return name
    raise DataError(f"{folder}: has no file {split}.{ending} or {split}.{ending}.gz")
