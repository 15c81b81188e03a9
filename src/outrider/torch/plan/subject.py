"""What is planned: the model of a config, and the batches it will see, as far as both are known.

What is asked of a plan, beside its config.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import torch

from outrider.data.manifest import Manifest, read_manifest
from outrider.data.plan import LENGTH_STEP, rows_that_fit
from outrider.errors import ConfigError, DataError
from outrider.files.hub import model_folder
from outrider.run_config import RunConfig
from outrider.text.tokenizer import load_tokenizer
from outrider.torch.plan.machine import GivenMachine
from outrider.torch.plan.probe import Shape
from outrider.torch.training.build import Trained, blank_model, check_model, run_task
from outrider.torch.training.objectives import Objective
from outrider.torch.training.run import segment_length, training_objective

__all__ = ["PlanOptions", "Subject", "find_subject"]


@dataclass(frozen=True)
class PlanOptions:
    """Names are those of the command's options; sizes are of one device."""

    tokens: float | None = None
    """To train on, as `train.batch_tokens` counts them; None for the steps of the config."""
    devices: int = 1
    device_memory: float | None = None
    """In GB of 10^9 bytes; None for this machine's."""
    length: int | None = None
    """Tokens of a sentence, of its longer side and with its end."""
    vocab_size: int | None = None
    distill: float | None = None
    """Sentences to translate."""
    serve: float | None = None
    """Sentences a second."""
    rows: int = 32
    """Sentences decoded together."""
    busy: float = 0.7
    """Share of the time that servers may be busy, so that queues stay short."""
    price: float | None = None
    """Of an hour of a device."""
    measure: bool = False
    """Time this machine."""
    given: GivenMachine | None = None
    """Or take a machine from what is said of it."""

    def __post_init__(self) -> None:
        """Refuse what cannot be planned."""
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
            message = "is unknown: say how many GB each device has, such as --device-memory 80"
            raise ConfigError("--device-memory", message)


_FIX = " for the default, where it has one"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


LENGTH = 32
"""Tokens of a sentence where nothing is known of the data."""


@dataclass(frozen=True)
class Subject:
    """A run, and what is assumed of its data."""

    config: RunConfig
    shape: Shape
    words: str
    """Where the size of the vocabulary comes from."""
    lengths: str
    """Where the length comes from."""

    def build(self) -> Trained:
        """Build the model, on whatever device is PyTorch's own now."""
        return blank_model(self.config, self.shape.vocab_size)

    @property
    def objective(self) -> Callable[[], Objective]:
        """Makes what the run minimises."""
        return partial(training_objective, self.config, self.shape.segment, None)

    def rows(self, devices: int, accumulate: int | None = None) -> int:
        """Return the rows of one pass on one device, as the batch plan counts them."""
        train, length = self.config.train, self.shape.length
        share = train.batch_tokens // (devices * (accumulate or train.accumulate))
        return max(1, share // length if self.shape.segment else rows_that_fit(share, length))

    @property
    def decodes(self) -> bool:
        """Whether it is a model that decodes by itself."""
        return self.config.model.type in ("seq2seq", "language_model")


def find_subject(config: RunConfig, options: PlanOptions) -> Subject:
    """Check the config, and find out what the plan needs to know of its data."""
    check_model(config)
    if config.train.teacher is not None:
        message = "is not planned for; pass train.teacher=null, and plan the teacher by itself"
        raise ConfigError("train.teacher", message)
    manifest = _manifest(config)
    words, said = _vocabulary(config, options, manifest)
    with torch.device("meta"):
        model = blank_model(config, words)
    segment = segment_length(model)
    pairs = run_task(config) == "translation"
    if pairs:
        length, lengths = _sentence(options, manifest)
        length = -(-length // LENGTH_STEP) * LENGTH_STEP  # as batches are padded
    elif options.length is not None:
        raise ConfigError("--length", "of running text is data.sequence_length; set that instead")
    else:
        length, lengths = segment or config.data.sequence_length + 1, "rows of running text"
    shape = Shape(length, model.config.vocab_size, pairs, segment)
    return Subject(config, shape, said, lengths)


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
        message = f"is unknown, as {data.folder} is not there yet; give it, such as 8000"
        raise ConfigError("--vocab-size", message)
    if data.tokenizer.folder is not None:
        known = load_tokenizer(model_folder(data.tokenizer.folder)).vocab_size
        return known + len(data.tokenizer.new_tokens), f"of {data.tokenizer.folder}"
    return data.tokenizer.vocab_size, "of data.tokenizer; a small corpus may yield fewer"


def _sentence(options: PlanOptions, manifest: Manifest | None) -> tuple[int, str]:
    """Return the positions of a pair's longer side, with its end."""
    if options.length is not None:
        return options.length, "given by --length"
    train = manifest.splits.get("train") if manifest is not None else None
    if train is None or not train.rows or not train.target_tokens:
        return LENGTH, "assumed, as no data is there yet; --length says another"
    longer = max(train.target_tokens, train.tokens - train.target_tokens)
    return -(-longer // train.rows) + 1, "mean of data.folder"
