"""The training loops of `bench train`, each in its own process: bare, ours and the peer's."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from transformers import get_inverse_sqrt_schedule

from outrider.data.prepared import Prepared, open_prepared
from outrider.torch.models import Seq2Seq, Seq2SeqConfig
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.checkpoint import Checkpoints
from outrider.torch.training.memory import keep_memory
from outrider.torch.training.objective import Objective
from outrider.torch.training.precision import choose_precision
from outrider.torch.training.trainer import Trainer, training_arguments
from outrider_lab.bench.train.gate import Gate, GateCallback
from outrider_lab.bench.train.peer import choose_peer_precision, train_defaults, train_tuned
from outrider_lab.bench.train.setting import SpeedSetting


def run_engine(pipe: Connection, name: str, setting: SpeedSetting) -> None:
    """Entry point of an engine's process."""
    _prepare_torch(setting)
    ENGINES[name](setting, open_prepared(setting.data), Gate(pipe))


def choose_precisions(setting: SpeedSetting) -> SpeedSetting:
    """Return the setting with the faster precision here, for ours and for the tuned peer."""
    _prepare_torch(setting)
    prepared = open_prepared(setting.data)
    batch = next(iter(setting.stream(prepared)))
    ours = choose_precision(_build_model(setting, prepared), Objective, batch.tensors)
    return replace(
        setting,
        precision=ours.precision,
        tuned_precision=choose_peer_precision(setting, prepared),
    )


def _prepare_torch(setting: SpeedSetting) -> None:
    if setting.threads:
        torch.set_num_threads(setting.threads)
    torch.manual_seed(setting.seed)


def _train_bare(setting: SpeedSetting, prepared: Prepared, gate: Gate) -> None:
    """The shortest loop with the same arithmetic."""
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
            objective=Objective(),
            checkpoints=Checkpoints(Path(folder)),
            arguments=training_arguments(config, folder=Path(folder), seed=setting.seed),
        )
        seen = 0

        def tokens(step: int) -> int:
            nonlocal seen
            new, seen = trainer.progress.tokens - seen, trainer.progress.tokens
            return new

        trainer.add_callback(GateCallback(gate, tokens))
        # Do not measure the checkpoint that a stopped run writes.
        trainer._save_checkpoint = lambda model, trial: None  # type: ignore[method-assign]
        trainer.run()


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


ENGINES: dict[str, Callable[[SpeedSetting, Prepared, Gate], None]] = {
    "bare": _train_bare,
    "outrider": _train_ours,
    "transformers": train_defaults,
    "transformers-tuned": train_tuned,
}
"""By name in the result."""
