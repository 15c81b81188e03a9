"""The interface of a kind of trained model, and the kinds with a model folder of their own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from transformers import PreTrainedModel

from outrider.data.config import Task
from outrider.data.plan import Cursor
from outrider.data.prepared import Prepared
from outrider.errors import ConfigError
from outrider.files import read_json, write_json
from outrider.formats.spec import check_keys
from outrider.run_config import RunConfig
from outrider.text.tokenizer import Tokenizer
from outrider.torch.backend import TorchBackend
from outrider.torch.training.batches import (
    BatchStream,
    Deal,
    PlannedBatch,
    Tensors,
    context_length,
    valid_batches,
)
from outrider.torch.training.card import write_card
from outrider.torch.training.log import Log
from outrider.torch.training.memory import recompute_layers
from outrider.torch.training.objective import Inputs, Objective
from outrider.torch.training.start import (
    blank_started,
    build_started,
    check_start,
    model_keys,
    started_config,
)

M = TypeVar("M", bound=PreTrainedModel)
Batches = Callable[[int | None], Iterator[Inputs]]
"""Yields the first batches of the validation set, or all."""


class Kind(ABC, Generic[M]):
    """Data, model, objective, validation and files of a run."""

    task: Task
    """The task of the data."""
    metric: ClassVar[str]
    """The stop metric besides the loss."""
    decodes: ClassVar[bool] = False
    """Whether the model decodes alone."""
    decode_options: ClassVar[Mapping[str, Any]] = {}
    """Decode options of the validation's BLEU."""
    default_positions: ClassVar[int | None] = None
    """Learned positions if the config gives no number; None for those of the longest row."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @abstractmethod
    def check(self) -> None:
        """Check the `model` section before data is prepared."""

    def longest_row(self, data: Mapping[str, Any]) -> tuple[str, int]:
        """Return the key of `data` that limits a row, and the most positions of a row."""
        return "sequence_length", int(data["sequence_length"])

    def notes(self, prepared: Prepared) -> list[str]:
        """Return notes about the data for the user."""
        return []

    def build(self, prepared: Prepared) -> M:
        """Build the model; fresh weights are drawn from the global random state."""
        return self._recomputed(self._build(prepared))

    def blank(self, vocab_size: int) -> M:
        """Build the model with fresh weights and without data, for cost estimates.

        `vocab_size` is the tokenizer's; a run with `start` or `target` uses that of the other
        model.
        """
        return self._recomputed(self._blank(vocab_size))

    def _recomputed(self, model: M) -> M:
        if self.config.train.gradient_checkpointing:
            recompute_layers(model)
        return model

    @abstractmethod
    def _build(self, prepared: Prepared) -> M: ...

    @abstractmethod
    def _blank(self, vocab_size: int) -> M: ...

    def load_others(self, model: M, prepared: Prepared, device: torch.device) -> None:
        """Load or move the frozen models that training needs besides the trained one."""

    def segment(self, model: M) -> int | None:
        """Return the tokens of a segment for a model with memory, else None."""
        return None

    def row_options(self, model: M, prepared: Prepared, *, train: bool) -> dict[str, Any]:
        """Return the options of batches in training or validation."""
        return {"max_length": context_length(prepared)}

    def stream(
        self,
        model: M,
        prepared: Prepared,
        deal: Deal,
        cursor: Cursor | None = None,
    ) -> Iterable[PlannedBatch]:
        """Return the training batches of a process."""
        return BatchStream(
            prepared,
            tokens=self.batch_tokens(deal.planned),
            seed=self.config.seed,
            deal=deal,
            cursor=cursor,
            **self.row_options(model, prepared, train=True),
        )

    def batch_tokens(self, processes: int) -> int:
        """Return the tokens of a batch of each process."""
        train = self.config.train
        return max(1, train.batch_tokens // (train.accumulate * processes))

    def valid_batches(
        self,
        model: M,
        prepared: Prepared,
        deal: Deal,
        count: int | None = None,
    ) -> Iterator[Tensors]:
        """Yield a process's share of the first `count` batches of the validation set."""
        tokens = self.batch_tokens(deal.world_size)
        options = self.row_options(model, prepared, train=False)
        batches = valid_batches(prepared, tokens=tokens, **options)
        return islice(batches, deal.rank, count, deal.world_size)

    def objective(self) -> Objective:
        """Build an objective; training and validation need one each, as each has its own state."""
        return Objective()

    def training_objective(self) -> Objective:
        """Build the objective of training, which may have further predictions."""
        return self.objective()

    def ratios(self, model: M, batches: Batches) -> dict[str, tuple[int, int]]:
        """Return counts of this process; their ratios over all processes are further metrics."""
        return {}

    def backend(self, model: Any) -> TorchBackend:
        """Return the backend that decodes for the validation's BLEU."""
        return TorchBackend(model)

    def provenance(self, prepared: Prepared, log: Log) -> dict[str, Any]:
        """Return further parts of the model's provenance."""
        return {}

    @abstractmethod
    def write(self, model: M, prepared: Prepared, folder: Path) -> str:
        """Write the model folder; return a note for the user, or ""."""

    @abstractmethod
    def write_card(self, folder: Path, **parts: Any) -> None:
        """Write the model card from the number of parameters, the provenance and the scores."""


class OwnFolderKind(Kind[M]):
    """A model with a folder of its own."""

    config_class: ClassVar[Any]
    model_class: type[M]
    given: ClassVar[dict[str, str]] = {
        "vocab_size": "vocab_size",
        "pad_token_id": "pad_id",
        "eos_token_id": "eos_id",
    }
    """Config keys that the tokenizer sets, and the tokenizer's attributes."""
    pipeline: ClassVar[str]
    """The task of the model on the Hub."""
    description: ClassVar[str]
    example: ClassVar[str]
    """How the model is used, for its card; `{name}` is replaced."""

    def check(self) -> None:
        check_start(self.config)
        model = self.config.model
        if model.target is not None:
            message = f"has no effect on {model.type}; only a drafter or a ctc decoder has one"
            raise ConfigError("model.target", message)
        started = model.start is not None
        self.check_config(started_config(self.config) if started else self.blank_config(2))

    def check_config(self, built: Any) -> None:
        """Check the other sections against the model's config."""
        if self.config.data.source_tokenizer is not None:
            message = "has no effect without model.encoder; leave it out"
            raise ConfigError("data.source_tokenizer", message)

    def tokenizer(self, prepared: Prepared) -> Tokenizer:
        """Return the tokenizer of the model."""
        return prepared.tokenizer

    def model_values(self, longest: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
        """Return the keys of the `model` section, completed from the data."""
        return {"max_positions": longest, **self.config.model.values}

    def blank_config(self, vocab_size: int) -> Any:
        """Build the model's config before the tokenizer exists."""
        given = {**dict.fromkeys(self.given, 1), "vocab_size": vocab_size}
        return self._make_config(given, self.config.data.sequence_length + 1, None)

    def _make_config(
        self, given: Mapping[str, int], longest: int, tokenizer: Tokenizer | None
    ) -> Any:
        values = self.config.model.values
        check_keys(self.config_class, values, prefix="model.")
        for key in values.keys() & given.keys():
            raise ConfigError(f"model.{key}", "comes from the tokenizer; leave it out")
        values = self.model_values(longest, tokenizer)
        with model_keys():
            return self.config_class(**given, **values)

    def _build(self, prepared: Prepared) -> M:
        if self.config.model.start is not None:
            started: Any = build_started(self.config, prepared)
            return started
        tokenizer = self.tokenizer(prepared)
        given = {key: getattr(tokenizer, name) for key, name in self.given.items()}
        return self.model_class(self._make_config(given, context_length(prepared), tokenizer))

    def _blank(self, vocab_size: int) -> M:
        if self.config.model.start is not None:
            started: Any = blank_started(self.config)
            return started
        return self.model_class(self.blank_config(vocab_size))

    def write(self, model: M, prepared: Prepared, folder: Path) -> str:
        model.save_pretrained(folder)
        self.tokenizer(prepared).save(folder)
        if self.config.evaluate is not None and not self.config.evaluate.split:
            path = folder / "generation_config.json"
            values = read_json(path) if path.is_file() else {}
            write_json(path, {**values, "split": False})
        return ""

    def write_card(self, folder: Path, **parts: Any) -> None:
        texts = {name: getattr(self, name) for name in ("pipeline", "description", "example")}
        write_card(folder, self.config, **texts, **parts)
