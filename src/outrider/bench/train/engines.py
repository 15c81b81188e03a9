"""The training loops of `bench train`, each in a process of its own, step by step."""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    MarianConfig,
    MarianMTModel,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    get_inverse_sqrt_schedule,
)

from outrider.data.batches import BatchStream
from outrider.data.prepared import Prepared, open_prepared
from outrider.models import Seq2Seq, Seq2SeqConfig
from outrider.training.allocator import keep_memory
from outrider.training.arguments import training_arguments
from outrider.training.checkpoint import Checkpoints
from outrider.training.config import TrainConfig
from outrider.training.objectives import IGNORED, TranslationObjective
from outrider.training.trainer import Trainer

__all__ = ["ENGINES", "SpeedSetting", "run_engine"]

_FOREVER = 1_000_000


@dataclass(frozen=True)
class SpeedSetting:
    """What all engines train: 4+4 layers of width 256 on the same sentences."""

    data: Path
    batch_tokens: int = 4096
    width: int = 256
    layers: int = 4
    heads: int = 4
    feedforward: int = 1024
    dropout: float = 0.1
    precision: str = "bfloat16"
    threads: int | None = None
    seed: int = 0

    def train_config(self) -> TrainConfig:
        """The settings of our Trainer; it must neither save nor evaluate while it is timed."""
        return TrainConfig.model_validate(
            {
                "steps": _FOREVER,
                "save_every": _FOREVER,
                "evaluate_every": 0,
                "batch_tokens": self.batch_tokens,
                "precision": self.precision,
                "device": "cpu",
            }
        )

    def stream(self, prepared: Prepared) -> BatchStream:
        """The batches of the bare loop and of our Trainer."""
        return BatchStream(prepared, tokens=self.batch_tokens, seed=self.seed)


class Gate:
    """Lets an engine do a number of updates on request, and reports how long they took."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.left = 0
        self.done = 0
        self.tokens = 0
        self.began = 0.0

    def wait(self) -> bool:
        """Report, then block until more updates are wanted; False ends the engine."""
        self.pipe.send((time.perf_counter() - self.began, self.tokens))
        self.left = self.pipe.recv()
        self.tokens, self.began = 0, time.perf_counter()
        return self.left > 0

    def step(self, tokens: int) -> bool:
        """Count one update of so many target tokens; False ends the engine."""
        self.tokens += tokens
        self.left -= 1
        self.done += 1
        return self.left > 0 or self.wait()


class _GateCallback(TrainerCallback):
    """Puts a gate behind every update of a transformers Trainer."""

    def __init__(self, gate: Gate, tokens: Callable[[int], int]) -> None:
        self.gate = gate
        self.tokens = tokens

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stand still until the first measurement."""
        self.gate.wait()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Runs last of all callbacks."""
        if not self.gate.step(self.tokens(state.global_step)):
            control.should_training_stop = True


def run_engine(pipe: Connection, name: str, setting: SpeedSetting) -> None:
    """Body of an engine's process."""
    if setting.threads:
        torch.set_num_threads(setting.threads)
    torch.manual_seed(setting.seed)
    ENGINES[name](setting, open_prepared(setting.data), Gate(pipe))


def _train_bare(setting: SpeedSetting, prepared: Prepared, gate: Gate) -> None:
    """The shortest loop that does the same arithmetic."""
    keep_memory()
    config, model = setting.train_config(), _build_model(setting, prepared)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=config.adam_betas, fused=True
    )
    schedule = get_inverse_sqrt_schedule(optimizer, config.warmup)
    bfloat16 = torch.autocast("cpu", torch.bfloat16, enabled=setting.precision == "bfloat16")
    model.train()
    gate.wait()
    for batch in setting.stream(prepared):
        tokens = int((batch.tensors["labels"] != IGNORED).sum())
        with bfloat16:
            loss = model(**batch.tensors, label_smoothing=config.label_smoothing).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if not gate.step(tokens):
            return


def _train_ours(setting: SpeedSetting, prepared: Prepared, gate: Gate) -> None:
    """Our Trainer as `outrider train` runs it."""
    keep_memory()
    config = setting.train_config()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            _build_model(setting, prepared),
            config,
            stream=setting.stream(prepared),
            objective=TranslationObjective(),
            checkpoints=Checkpoints(Path(folder)),
            arguments=training_arguments(config, folder=Path(folder), seed=setting.seed),
        )
        seen = 0

        def tokens(step: int) -> int:
            nonlocal seen
            fresh, seen = trainer.progress.tokens - seen, trainer.progress.tokens
            return fresh

        trainer.add_callback(_GateCallback(gate, tokens))
        # A run that is stopped saves itself, which is not what is measured.
        trainer._save_checkpoint = lambda model, trial: None  # type: ignore[method-assign]
        trainer.run()


def _train_transformers(setting: SpeedSetting, prepared: Prepared, gate: Gate) -> None:
    """Seq2SeqTrainer and MarianMTModel as they come, with batches of about as many tokens."""
    vocab = int(prepared.manifest.tokenizer["vocab_size"])
    model = MarianMTModel(
        MarianConfig(
            vocab_size=vocab,
            d_model=setting.width,
            encoder_layers=setting.layers,
            decoder_layers=setting.layers,
            encoder_attention_heads=setting.heads,
            decoder_attention_heads=setting.heads,
            encoder_ffn_dim=setting.feedforward,
            decoder_ffn_dim=setting.feedforward,
            dropout=setting.dropout,
            pad_token_id=0,
            eos_token_id=1,
            forced_eos_token_id=1,
            decoder_start_token_id=0,
            decoder_vocab_size=vocab,
        )
    )
    rows = list(_rows(prepared))
    mean = sum(len(row["labels"]) for row in rows) / len(rows)
    counts: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = Seq2SeqTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(
                output_dir=folder,
                max_steps=_FOREVER,
                per_device_train_batch_size=max(1, round(setting.batch_tokens / mean)),
                use_cpu=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=setting.seed,
            ),
            train_dataset=rows,
            data_collator=lambda batch: _collate(batch, counts, model),
            callbacks=[_GateCallback(gate, lambda step: counts[step - 1])],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def _build_model(setting: SpeedSetting, prepared: Prepared) -> Seq2Seq:
    return Seq2Seq(
        Seq2SeqConfig(
            vocab_size=int(prepared.manifest.tokenizer["vocab_size"]),
            hidden_size=setting.width,
            encoder_layers=setting.layers,
            decoder_layers=setting.layers,
            num_attention_heads=setting.heads,
            intermediate_size=setting.feedforward,
            dropout=setting.dropout,
        )
    )


def _rows(prepared: Prepared) -> Iterator[dict[str, list[int]]]:
    """All sentences of the corpus, with their end tokens."""
    reader = prepared.reader("train")
    for block in range(len(reader.block_rows)):
        source, target = reader.ids(block, "source_ids"), reader.ids(block, "target_ids")
        for row in range(len(source.lengths)):
            left, right = (
                ids.flat[ids.offsets[row] : ids.offsets[row + 1]].tolist()
                for ids in (source, target)
            )
            yield {"input_ids": [*left, 1], "labels": [*right, 1]}


def _collate(
    batch: list[dict[str, list[int]]], counts: list[int], model: MarianMTModel
) -> dict[str, Tensor]:
    """What DataCollatorForSeq2Seq does; notes how many targets the batch holds."""
    counts.append(sum(len(row["labels"]) for row in batch))
    labels_BT = _pad([row["labels"] for row in batch], IGNORED)
    source_BS = _pad([row["input_ids"] for row in batch], 0)
    return {
        "input_ids": source_BS,
        "attention_mask": (source_BS != 0).long(),
        "labels": labels_BT,
        "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels=labels_BT),
    }


def _pad(rows: list[list[int]], fill: int) -> Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=fill)


ENGINES: dict[str, Callable[[SpeedSetting, Prepared, Gate], None]] = {
    "bare": _train_bare,
    "outrider": _train_ours,
    "transformers": _train_transformers,
}
"""By the names the result uses."""
