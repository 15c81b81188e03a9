"""What every task can do, and what tasks of drawn examples share.

A sequence task draws an example for a length:

    seq2seq           a file of inputs and one of outputs, line by line
    language_model    one text of lines `input=output`; rows are cut from it anywhere

Both learn the outputs alone: inputs are random, and nobody can predict them.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from outrider.config import Config
from outrider.errors import ConfigError
from outrider.files import working_folder

__all__ = ["Example", "SequenceConfig", "SequenceTask", "TaskBase", "TaskConfig", "TestSet"]

HELD_OUT_FROM = 12
"""Shorter test inputs may also be trained on: there are too few of them to keep some back."""
PATIENCE = 20
"""Draws for one example that is not a test example."""
DIGITS = "0123456789"


class TaskConfig(Config):
    """Settings of a task, given as `--set task.key=value`."""

    seed: int = Field(default=0, ge=0)
    """Of the examples; the seeds of a comparison are those of the models."""


class Example(NamedTuple):
    """An input and the only right output."""

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
    """Types of models it can be given to."""

    def __init__(self, config: TaskConfig, data: Path | None = None) -> None:
        self.config = config
        self.corpus = data
        if data is not None:
            raise ConfigError("--data", f"has no effect on {self.name}, which is drawn; remove it")

    @property
    def name(self) -> str:
        """The name of the task: that of its file."""
        return type(self).__module__.rpartition(".")[2]

    def write(self, folder: Path) -> None:
        """Write what models learn from, unless it is there."""
        raise NotImplementedError

    def section(self, folder: Path, model_type: str) -> dict[str, Any]:
        """Return the `data` section of a run, apart from where the prepared shards go."""
        raise NotImplementedError

    def completions(self) -> dict[str, str] | None:
        """Return `train.completions` of a language model; null where it learns the whole text."""
        return None


class SequenceConfig(TaskConfig):
    """Sizes of a task of drawn examples."""

    examples: int = Field(default=50_000, ge=1)
    """Examples to train on, of all lengths alike."""
    valid_examples: int = Field(default=500, ge=1)
    """Examples of the same lengths on which the loss is watched."""
    test_examples: int = Field(default=100, ge=1)
    """Examples of every test length."""
    train_length: int = Field(default=40, ge=1)
    """Symbols of the longest input to train on."""
    test_lengths: tuple[int, ...] = (40, 100, 200, 400)
    """Symbols of the inputs to test on; longer ones than trained on show what generalises."""
    sequence_length: int | None = Field(default=None, ge=2)
    """Symbols a language model sees at once; null for three of the longest lines."""


class SequenceTask(TaskBase):
    """A task whose examples are drawn for a length."""

    config_class: ClassVar[type[TaskConfig]] = SequenceConfig
    model_types: ClassVar[tuple[str, ...]] = ("seq2seq", "language_model")
    separator: ClassVar[str] = "="
    """Stands between input and output where both are on one line."""
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
        """The shortest input there is."""
        return self.shortest

    def draw(self, random: Random, length: int) -> Example:
        """Draw an example whose input has this many symbols."""
        raise NotImplementedError

    def train_lengths(self) -> list[int]:
        """Lengths of inputs to train on."""
        return list(range(self.least, self.config.train_length + 1))

    def tests(self) -> list[TestSet]:
        """Test examples by length."""
        sets = []
        for length in self.config.test_lengths:
            random = self._random(f"test {length}")
            drawn = (self.draw(random, length) for _ in range(self.config.test_examples))
            sets.append(TestSet(length, tuple(drawn)))
        return sets

    def examples(self, split: str) -> Iterator[Example]:
        """Examples of `train` or `valid`; none of them is a test example, unless it is short."""
        tested = {example.source for test in self.tests() for example in test.examples}
        random, lengths = self._random(split), self.train_lengths()
        count = self.config.examples if split == "train" else self.config.valid_examples
        for _ in range(PATIENCE * count):
            example = self.draw(random, pick(random, lengths))
            if len(example.source) < HELD_OUT_FROM or example.source not in tested:
                yield example
                count -= 1
            if not count:
                return
        raise ConfigError("task.test_examples", "leaves too few examples to train on; lower it")

    def line(self, example: Example) -> str:
        """An example as a language model reads it."""
        return f"{example.source}{self.separator}{example.target}\n"

    def prompt(self, source: str) -> str:
        """What a language model has to continue; a line begins after the end of another."""
        return f"\n{source}{self.separator}"

    def completions(self) -> dict[str, str]:
        """From the separator to the end of a line."""
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
        """One token a symbol; nothing is cleaned away."""
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
    """Draw a number from 0 to stop - 1, the same in every version of Python."""
    return int(random.random() * stop)


def pick(random: Random, choices: Any) -> Any:
    """Draw one of some choices."""
    return choices[below(random, len(choices))]


def word(random: Random, symbols: str, length: int) -> str:
    """Draw symbols with replacement."""
    return "".join(pick(random, symbols) for _ in range(length))
