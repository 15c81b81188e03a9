"""The peer of `bench train`: transformers' Seq2SeqTrainer with MarianMTModel.

With its defaults it computes in float32 on random batches. Tuned, it groups sentences by length and
computes in bfloat16 where that is faster; both are arguments of the Trainer.
"""

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    MarianConfig,
    MarianMTModel,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from outrider.data.prepared import Prepared
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.objective import Inputs, Objective
from outrider.torch.training.precision import choose_precision
from outrider_lab.bench.train.gate import Gate, GateCallback
from outrider_lab.bench.train.setting import FOREVER, SpeedSetting


def train_defaults(setting: SpeedSetting, prepared: Prepared, gate: Gate) -> None:
    """Train with the Trainer's defaults."""
    _train(setting, prepared, gate)


def train_tuned(setting: SpeedSetting, prepared: Prepared, gate: Gate) -> None:
    """Train with sentences grouped by length, in the faster precision."""
    tuned = {
        "train_sampling_strategy": "group_by_length",
        "bf16": setting.tuned_precision == "bfloat16",
    }
    _train(setting, prepared, gate, tuned)


def choose_peer_precision(setting: SpeedSetting, prepared: Prepared) -> str:
    """Time this model in float32 and in bfloat16, and return the faster."""
    model, rows = _build_model(setting, prepared), list(_rows(prepared))
    rows.sort(key=lambda row: len(row["input_ids"]))
    size = _batch_size(setting, rows)
    middle = max(0, (len(rows) - size) // 2)
    inputs = _collate(rows[middle : middle + size], [], model)
    return choose_precision(model, _Loss, inputs).precision


class _Loss(Objective):
    """The model's own loss."""

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        loss: Tensor = model(**inputs).loss
        return loss


def _train(
    setting: SpeedSetting, prepared: Prepared, gate: Gate, tuned: dict[str, Any] | None = None
) -> None:
    model, rows = _build_model(setting, prepared), list(_rows(prepared))
    counts: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = Seq2SeqTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(
                output_dir=folder,
                max_steps=FOREVER,
                per_device_train_batch_size=_batch_size(setting, rows),
                use_cpu=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=setting.seed,
                **(tuned or {}),
            ),
            train_dataset=rows,
            data_collator=lambda batch: _collate(batch, counts, model),
            callbacks=[GateCallback(gate, lambda step: counts[step - 1])],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def _build_model(setting: SpeedSetting, prepared: Prepared) -> MarianMTModel:
    vocab = int(prepared.manifest.tokenizer["vocab_size"])
    return MarianMTModel(
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


def _batch_size(setting: SpeedSetting, rows: list[dict[str, list[int]]]) -> int:
    """Return the sentences per batch with about as many target tokens as ours."""
    mean = sum(len(row["labels"]) for row in rows) / len(rows)
    return max(1, round(setting.batch_tokens / mean))


def _rows(prepared: Prepared) -> Iterator[dict[str, list[int]]]:
    """Yield all sentences of the corpus, with end tokens."""
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
    """Same as DataCollatorForSeq2Seq; records the number of targets."""
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
