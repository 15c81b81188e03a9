"""The interface of tasks, and the base of tasks with random examples.

A sequence task draws an example of a given length:

    seq2seq           a file of inputs and one of outputs, line by line
    language_model    one text of lines `input=output`; rows are cut from it anywhere

Models are trained on the outputs only, since the inputs are random.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from outrider.config import Config
from outrider.errors import ConfigError
from outrider.files import working_folder

HELD_OUT_FROM = 12
"""Shorter test inputs may occur in training, as there are too few different ones."""
MAX_DRAWS = 20
"""Draws per example that is not in the test set."""
DIGITS = "0123456789"


class TaskConfig(Config):
    """Settings of a task, given as `--set task.key=value`."""

    seed: int = Field(default=0, ge=0)
    """Seed of the examples; the seeds of a comparison are those of the models."""


class Example(NamedTuple):
    """An input and its only correct output."""

    source: str
    target: str


class TestSet(NamedTuple):
    """Test examples of one length."""

    length: int
    examples: tuple[Example, ...]


class TaskBase:
    """A task: its files, and the `data` section that reads them."""

    config_class: ClassVar[type[TaskConfig]] = TaskConfig
    model_types: ClassVar[tuple[str, ...]] = ()
    """Supported types of models."""

    def __init__(self, config: TaskConfig, data: Path | None = None) -> None:
        self.config = config
        self.corpus = data
        if data is not None:
            raise ConfigError(
                "--data", f"has no effect on {self.name}, whose examples are random; remove it"
            )

    @property
    def name(self) -> str:
        """The name of the task's file."""
        return type(self).__module__.rpartition(".")[2]

    def write(self, folder: Path) -> None:
        """Write the training text, unless it exists."""
        raise NotImplementedError

    def section(self, folder: Path, model_type: str) -> dict[str, Any]:
        """Return the `data` section of a run, without the folder of the shards."""
        raise NotImplementedError

    def completions(self) -> dict[str, str] | None:
        """Return `train.completions` of a language model; None to train on the whole text."""
        return None


class SequenceConfig(TaskConfig):
    """Sizes of a task with random examples."""

    examples: int = Field(default=50_000, ge=1)
    """Training examples, evenly over all lengths."""
    valid_examples: int = Field(default=500, ge=1)
    """Validation examples of the same lengths."""
    test_examples: int = Field(default=100, ge=1)
    """Examples per test length."""
    train_length: int = Field(default=40, ge=1)
    """Maximum symbols of a training input."""
    test_lengths: tuple[int, ...] = (40, 100, 200, 400)
    """Symbols of the test inputs; longer ones than in training test generalisation."""
    sequence_length: int | None = Field(default=None, ge=2)
    """Context of a language model in symbols; null for three of the longest lines."""


class SequenceTask(TaskBase):
    """A task with random examples of a given length."""

    config_class: ClassVar[type[TaskConfig]] = SequenceConfig
    model_types: ClassVar[tuple[str, ...]] = ("seq2seq", "language_model")
    separator: ClassVar[str] = "="
    """Between input and output on one line."""
    shortest: ClassVar[int] = 1
    config: SequenceConfig

    def __init__(self, config: TaskConfig, data: Path | None = None) -> None:
        super().__init__(config, data)
        for key, lengths in (
            ("train_length", (self.config.train_length,)),
            ("test_lengths", self.config.test_lengths),
        ):
            if not lengths or min(lengths) < self.least:
                message = f"got {min(lengths, default=None)}, expected {self.least} or more"
                raise ConfigError(f"task.{key}", message)

    @property
    def least(self) -> int:
        """The minimum length of an input."""
        return self.shortest

    def draw(self, random: Random, length: int) -> Example:
        """Draw an example whose input has this many symbols."""
        raise NotImplementedError

    def train_lengths(self) -> list[int]:
        """Return the lengths of training inputs."""
        return list(range(self.least, self.config.train_length + 1))

    def tests(self) -> list[TestSet]:
        """Return test examples by length."""
        sets = []
        for length in self.config.test_lengths:
            random = self._random(f"test {length}")
            drawn = (self.draw(random, length) for _ in range(self.config.test_examples))
            sets.append(TestSet(length, tuple(drawn)))
        return sets

    def examples(self, split: str) -> Iterator[Example]:
        """Yield examples of `train` or `valid`; only short ones may be test examples too."""
        tested = {example.source for test in self.tests() for example in test.examples}
        random, lengths = self._random(split), self.train_lengths()
        count = self.config.examples if split == "train" else self.config.valid_examples
        for _ in range(MAX_DRAWS * count):
            example = self.draw(random, pick(random, lengths))
            if len(example.source) < HELD_OUT_FROM or example.source not in tested:
                yield example
                count -= 1
            if not count:
                return
        raise ConfigError("task.test_examples", "leaves too few examples to train on; lower it")

    def line(self, example: Example) -> str:
        """Format an example for a language model."""
        return f"{example.source}{self.separator}{example.target}\n"

    def prompt(self, source: str) -> str:
        """Return the prompt of a language model, which starts after a line end."""
        return f"\n{source}{self.separator}"

    def completions(self) -> dict[str, str]:
        """Train on the text from the separator to the end of the line."""
        return {"after": self.separator, "until": "\n"}

    def write(self, folder: Path) -> None:
        """Write the pairs and the lines of both splits."""
        if folder.exists():
            return
        with working_folder(folder) as work:
            for split in ("train", "valid"):
                examples = list(self.examples(split))
                columns = {
                    "source": (f"{example.source}\n" for example in examples),
                    "target": (f"{example.target}\n" for example in examples),
                    "txt": map(self.line, examples),
                }
                for suffix, lines in columns.items():
                    (work / f"{split}.{suffix}").write_text("".join(lines), encoding="utf-8")

    def section(self, folder: Path, model_type: str) -> dict[str, Any]:
        """Return the `data` section: a token per symbol, no cleaning."""
        section: dict[str, Any] = {
            "root": str(folder),
            "tokenizer": {"kind": "char", "vocab_size": 128, "normalization": "none"},
        }
        if model_type == "language_model":
            section |= {split: {"target": f"{split}.txt"} for split in ("train", "valid")}
            return section | {"sequence_length": self._sequence_length()}
        for split in ("train", "valid"):
            section[split] = {"source": f"{split}.source", "target": f"{split}.target"}
        longest = 2 * max(map(len, self._longest()))
        section["clean"] = {
            "max_ratio": None,
            "drop_duplicates": False,
            "max_tokens": longest,
            "max_characters": longest,
        }
        return section

    def _sequence_length(self) -> int:
        if self.config.sequence_length is not None:
            return self.config.sequence_length
        return 3 * len(self.line(self._longest()))

    def _longest(self) -> Example:
        return self.draw(self._random("longest"), self.train_lengths()[-1])

    def _random(self, purpose: str) -> Random:
        return Random(f"{self.name} {self.config.seed} {purpose}")


def below(random: Random, stop: int) -> int:
    """Draw a number from 0 to stop - 1, identically in every version of Python."""
    return int(random.random() * stop)


def pick(random: Random, choices: Any) -> Any:
    """Draw one of the choices."""
    return choices[below(random, len(choices))]


def word(random: Random, symbols: str, length: int) -> str:
    """Draw symbols with replacement."""
    return "".join(pick(random, symbols) for _ in range(length))
