"""A minimal Trainer on random batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.data.plan import Cursor
from outrider.run_config import TrainConfig
from outrider.torch.models import Seq2Seq, Seq2SeqConfig
from outrider.torch.training.batches import PlannedBatch
from outrider.torch.training.checkpoint import Checkpoints
from outrider.torch.training.log import Log
from outrider.torch.training.objective import Objective
from outrider.torch.training.progress import LogFile
from outrider.torch.training.trainer import Trainer, training_arguments

VOCABULARY = 11


class Stream:
    """Random batches, five per epoch; each depends on its number only."""

    def __init__(self, rows: int = 2, start: int = 0) -> None:
        self.rows = rows
        self.start = start

    def __iter__(self) -> Iterator[PlannedBatch]:
        number = self.start
        while True:
            tensors = self.batch(number)
            number += 1
            yield PlannedBatch(tensors, Cursor(epoch=number // 5, batch=number % 5))

    def batch(self, number: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(2, VOCABULARY, (self.rows, 6), generator=generator)
        labels = ids.clone()
        labels[0, 2 + number % 3 :] = -100
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def model(**changes: Any) -> Seq2Seq:
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        encoder_layers=1,
        decoder_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        **{"dropout": 0.0, **changes},
    )
    return Seq2Seq(config)


def trainer(
    folder: Path, network: Seq2Seq | None = None, *, scores: list[float] | None = None, **train: Any
) -> Trainer:
    values = {"warmup": 0, "schedule": "constant", "evaluate_every": 0, "save_every": 100, **train}
    config = TrainConfig.model_validate({"device": "cpu", "log_every": 1, **values})
    return Trainer(
        network or model(),
        config,
        stream=Stream(),
        objective=Objective(),
        checkpoints=Checkpoints(folder / "checkpoints"),
        arguments=training_arguments(config, folder=folder / "checkpoints", seed=1),
        validate=(lambda _: {"loss": scores.pop(0)}) if scores else None,
        callbacks=[LogFile(Log(folder / "log.jsonl"))],
    )
