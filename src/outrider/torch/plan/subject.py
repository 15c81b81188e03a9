"""The input of a plan: options, the model of a config, and the shape of its batches."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from outrider.data.manifest import Manifest, read_manifest
from outrider.data.plan import LENGTH_STEP, rows_that_fit
from outrider.errors import ConfigError, DataError
from outrider.files.hub import model_folder
from outrider.run_config import RunConfig
from outrider.text.tokenizer import load_tokenizer
from outrider.torch.plan.machine import GivenMachine
from outrider.torch.plan.probe import Shape
from outrider.torch.training.kinds import kind_of
from outrider.torch.training.kinds.base import Kind
from outrider.torch.training.objective import Objective


@dataclass(frozen=True)
class PlanOptions:
    """Options of the command; sizes are per device."""

    tokens: float | None = None
    """Training tokens, as `train.batch_tokens` counts them; None for the steps of the config."""
    devices: int = 1
    device_memory: float | None = None
    """In GB of 10^9 bytes; None for this machine's."""
    length: int | None = None
    """Tokens of a sentence's longer side, including the end token."""
    vocab_size: int | None = None
    distill: float | None = None
    """Sentences to translate."""
    serve: float | None = None
    """Sentences per second."""
    rows: int = 32
    """Sentences per decoding batch."""
    busy: float = 0.7
    """Target utilisation of servers; less than 1 keeps queues short."""
    price: float | None = None
    """Per device-hour."""
    measure: bool = False
    """Time this machine."""
    given: GivenMachine | None = None
    """Or use the user's numbers."""

    def __post_init__(self) -> None:
        """Check the options."""
        for field in fields(self):
            value, name = getattr(self, field.name), _option(field.name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and not 0 < value < float("inf"):
                raise ConfigError(name, f"got {value:g}, expected more than 0; leave it out{_FIX}")
        if self.busy > 1:
            raise ConfigError("--busy", f"got {self.busy:g}, expected a share from 0 to 1")
        if self.measure and self.given is not None:
            raise ConfigError("--flops", "has no effect with --measure; give one of the two")
        if not self.measure and self.given is None:
            for field_name in ("distill", "serve", "price"):
                if getattr(self, field_name) is not None:
                    message = "needs a machine: add --measure to time this one, or --flops"
                    raise ConfigError(_option(field_name), message)
        if self.device_memory is None and (self.devices > 1 or self.given is not None):
            message = "is required: the GB of each device, such as --device-memory 80"
            raise ConfigError("--device-memory", message)


_FIX = " for the default, if there is one"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


LENGTH = 32
"""Assumed tokens of a sentence without data."""


@dataclass(frozen=True)
class Subject:
    """A run and the assumptions about its data."""

    kind: Kind[Any]
    shape: Shape
    vocabulary: str
    """Source of the vocabulary size."""
    lengths: str
    """Source of the length."""

    @property
    def config(self) -> RunConfig:
        """The config of the run."""
        return self.kind.config

    def build(self) -> Any:
        """Build the model on PyTorch's default device."""
        return self.kind.blank(self.shape.vocab_size)

    @property
    def objective(self) -> Callable[[], Objective]:
        """A factory of the run's objective."""
        return self.kind.training_objective

    def rows(self, devices: int, accumulate: int | None = None) -> int:
        """Return the rows of one pass on one device."""
        train, length = self.config.train, self.shape.length
        share = train.batch_tokens // (devices * (accumulate or train.accumulate))
        return max(1, share // length if self.shape.segment else rows_that_fit(share, length))


def find_subject(config: RunConfig, options: PlanOptions) -> Subject:
    """Check the config and determine the shape of its batches."""
    kind = kind_of(config)
    kind.check()
    if config.train.teacher is not None:
        message = (
            "is not supported by plans; pass train.teacher=null, and plan the teacher separately"
        )
        raise ConfigError("train.teacher", message)
    manifest = _manifest(config)
    vocab_size, vocabulary = _vocabulary(config, options, manifest)
    with torch.device("meta"):
        model = kind.blank(vocab_size)
    segment = kind.segment(model)
    pairs = kind.task == "translation"
    if pairs:
        length, lengths = _sentence(options, manifest)
        length = -(-length // LENGTH_STEP) * LENGTH_STEP  # as batches are padded
    elif options.length is not None:
        raise ConfigError("--length", "of running text is data.sequence_length; set that instead")
    else:
        length, lengths = segment or config.data.sequence_length + 1, "rows of running text"
    shape = Shape(length, model.config.vocab_size, pairs, segment)
    return Subject(kind, shape, vocabulary, lengths)


def _manifest(config: RunConfig) -> Manifest | None:
    try:
        return read_manifest(Path(config.data.folder))
    except DataError:
        return None


def _vocabulary(
    config: RunConfig, options: PlanOptions, manifest: Manifest | None
) -> tuple[int, str]:
    data, other = config.data, config.model.target or config.model.start
    if other is not None:
        if options.vocab_size is not None:
            raise ConfigError("--vocab-size", f"comes from {other}; leave it out")
        return 0, f"of {other}"
    if options.vocab_size is not None:
        return options.vocab_size, "given"
    if manifest is not None:
        return int(manifest.tokenizer["vocab_size"]), f"of {data.folder}"
    if data.train is None:
        message = f"is required, as {data.folder} does not exist yet, such as --vocab-size 8000"
        raise ConfigError("--vocab-size", message)
    if data.tokenizer.folder is not None:
        size = load_tokenizer(model_folder(data.tokenizer.folder)).vocab_size
        return size + len(data.tokenizer.new_tokens), f"of {data.tokenizer.folder}"
    return data.tokenizer.vocab_size, "of data.tokenizer; fewer for a small corpus"


def _sentence(options: PlanOptions, manifest: Manifest | None) -> tuple[int, str]:
    """Return the length of a pair's longer side with its end token, and the source of that."""
    if options.length is not None:
        return options.length, "given by --length"
    train = manifest.splits.get("train") if manifest is not None else None
    if train is None or not train.rows or not train.target_tokens:
        return LENGTH, "assumed without data; set --length for another"
    longer = max(train.target_tokens, train.tokens - train.target_tokens)
    return -(-longer // train.rows) + 1, "mean of data.folder"
