"""The Trainer of transformers with our data, loss and checkpoints, so that a resume is exact.

Devices, processes, the optimizer, its schedule and the loop are those of transformers. It sees one
endless epoch; a cursor in every checkpoint gives the next batch.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainingArguments,
    set_seed,
)
from transformers.trainer import SCHEDULER_NAME

from outrider.errors import ConfigError, ModelError
from outrider.files import explained
from outrider.run_config import TrainConfig
from outrider.torch.training.batches import PlannedBatch
from outrider.torch.training.checkpoint import (
    KEPT,
    SHARES,
    Checkpoint,
    Checkpoints,
    Commits,
    Progress,
)
from outrider.torch.training.memory import (
    gathered,
    load_optimizer,
    return_memory,
    save_optimizer,
    shard,
    whole_weights,
)
from outrider.torch.training.objective import Objective
from outrider.torch.training.precision import autocast
from outrider.torch.training.progress import Cadence

Validate = Callable[[nn.Module], dict[str, float]]
"""Measures a model on the validation set; the result must contain the stop metric."""


class Trainer(transformers.Trainer):
    """Trains one model on one endless stream of batches."""

    loss_is_scaled_for_ga = True
    control: TrainerControl
    lr_scheduler: Any
    is_distributed_loading_by_transformers: bool

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        *,
        stream: Iterable[PlannedBatch],
        objective: Objective,
        checkpoints: Checkpoints,
        arguments: transformers.TrainingArguments,
        validate: Validate | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        assert config.precision != "auto"
        self.config = config
        self.stream = stream
        self.objective = objective
        self.checkpoints, self.commits = checkpoints, Commits(checkpoints, config)
        self.validate = validate if config.evaluate_every else None
        self.progress = Progress()
        self.started = time.monotonic()
        self._logged = (0, self.started)
        self._epoch = 0
        super().__init__(
            model=model,
            args=arguments,
            eval_dataset=self.validate,
            callbacks=[Cadence(), *callbacks],
        )
        self.remove_callback(PrinterCallback)
        vars(self.model.config).pop("use_cache", None)  # set by transformers; not a key of ours

    def run(self, resume: Checkpoint | None = None) -> Progress:
        """Train to the end, from the start or from a checkpoint."""
        # Processes must not share dropout masks. A resume restores the random state, unless the
        # number of processes differs: then the seed must differ from that of the first start.
        offset = resume.progress.step << 16 if resume else 0
        set_seed((self.args.seed + self.args.process_index + offset) % 2**32)
        if resume:
            self.progress = resume.progress
            self.objective.load(resume.folder, process=self.args.process_index)
        if not self.finished:
            if resume:
                _check_origin(resume)
            self.started = time.monotonic() - self.progress.seconds
            self._logged = (self.progress.tokens, time.monotonic())
            try:
                self.train(resume_from_checkpoint=str(resume.folder) if resume else None)
            finally:
                self.commits.wait()
            self.accelerator.wait_for_everyone()  # until the main process has written
            self.progress = replace(self.progress, seconds=time.monotonic() - self.started)
        return self.progress

    @property
    def finished(self) -> bool:
        """Whether all updates are done."""
        return self.progress.stopped or self.progress.step >= self.config.steps

    def get_train_dataloader(self) -> Iterable[PlannedBatch]:
        """Return our stream, which yields only this process's batches."""
        return self.stream

    def get_batch_samples(
        self, epoch_iterator: Iterator[PlannedBatch], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Tensor]], int]:
        """Fetch the batches of one update and count its targets over all processes."""
        self.objective.set_progress(self.progress.step / self.config.steps)
        batches = [next(epoch_iterator) for _ in range(num_batches)]
        inputs = [batch.tensors for batch in batches]
        count = sum(self.objective.count(batch) for batch in inputs)
        total = self._sum_over_processes(count, device)
        self._epoch = int(self.progress.cursor.get("epoch", 0))
        self.progress = replace(
            self.progress,
            step=self.progress.step + 1,
            cursor=asdict(batches[-1].next_cursor),
            tokens=self.progress.tokens + total,
            score=None,
        )
        return inputs, max(1, total)  # a batch may have no completion

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: int | None = None,
    ) -> Tensor:
        """Return the share of these targets in the mean loss of the update.

        DDP averages gradients over the processes, hence the factor `world_size`.
        """
        assert num_items_in_batch is not None
        return self.objective.loss(
            model,
            inputs,
            divisor=num_items_in_batch / self.args.world_size,
            smoothing=self.config.label_smoothing,
        )

    def compute_loss_context_manager(self) -> AbstractContextManager[None]:
        """Use our autocast; that of accelerate would copy all logits to float32."""
        return autocast(self.config.precision, self.args.device)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Shard the loaded weights first if `train.shard` is set."""
        if self.config.shard and not self.is_distributed_loading_by_transformers:
            shard(self.model, self.args.device)
            self.is_distributed_loading_by_transformers = True  # prevents wrapping by DDP
        return super().create_optimizer(model)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Add the `step` schedule, which transformers does not have."""
        if self.config.schedule == "step" and self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, partial(_steps, self.config))
        return super().create_scheduler(num_training_steps, optimizer)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return 0: counting walks all modules at every step."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write a log record; called with the mean loss since the last record."""
        if "loss" not in logs:
            return
        if not math.isfinite(logs["loss"]):
            raise ConfigError(
                "train.learning_rate",
                f"the loss became {logs['loss']} by step {self.progress.step}; lower the rate "
                f"({self.config.learning_rate}), lengthen train.warmup ({self.config.warmup}) or "
                f"clip harder (train.clip is {self.config.clip})",
            )
        tokens, since = self._logged
        self._logged = (self.progress.tokens, time.monotonic())
        record = {
            "step": self.progress.step,
            "epoch": self._epoch,
            "loss": logs["loss"],
            "learning_rate": logs["learning_rate"],
            "gradient_norm": logs["grad_norm"],
            "tokens": self.progress.tokens,
            "tokens_per_second": (self.progress.tokens - tokens) / (self._logged[1] - since),
            "seconds": self._logged[1] - self.started,
        }
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, record)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Measure on the validation set, and stop the run when its patience is used up."""
        assert self.validate is not None
        self.model.eval()
        with gathered(self.model):
            metrics = self.validate(self.model)
        self.progress = self.progress.after_evaluation(
            metrics[self.config.stop_metric],
            lower_is_better=self.config.lower_is_better,
            patience=self.config.patience,
        )
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        if self.progress.stopped:
            self.control.should_save = self.control.should_training_stop = True
        # Exclude the time of validation from the next record's tokens per second.
        self._logged = (self.progress.tokens, time.monotonic())
        return metrics

    def _sum_over_processes(self, count: int, device: torch.device) -> int:
        if self.args.world_size == 1:
            return count
        return int(self.accelerator.reduce(torch.tensor(count, device=device), "sum"))

    def _init_training_state(self, max_steps: int, *args: Any) -> tuple[int, int]:
        position: tuple[int, int] = super()._init_training_state(max_steps, *args)
        self.state.compute_steps(self.args, max_steps)  # from the config, not the checkpoint
        return position

    def _save(self, output_dir: str, state_dict: dict[str, Tensor] | None = None) -> None:
        self.accelerator.unwrap_model(self.model).save_pretrained(output_dir, state_dict=state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.config.shard:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        folder = Path(output_dir)
        save_optimizer(self.model, self.optimizer.optimizer, folder / SHARES)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), folder / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self.config.shard or checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        folder = Path(checkpoint)
        load_optimizer(self.model, self.optimizer.optimizer, folder / SHARES)
        self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_NAME, weights_only=True))

    def _sync_replicated_trainable_parameters(self, model: nn.Module) -> None:
        """Nothing to do: `shard` averages the replicated weights."""

    def _defer_fsdp_gradient_reduction(self) -> AbstractContextManager[None]:
        """Reduce at every batch, so that no process holds whole gradients."""
        return nullcontext()

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Tensor:
        norm: Tensor = super()._get_grad_norm(model, grad_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.commits.wait()
        staging = self.checkpoints.stage(self.progress.step)
        with explained(staging, KEPT):
            self._write_checkpoint(staging)
        return_memory()
        self._logged = (self.progress.tokens, time.monotonic())

    def _write_checkpoint(self, staging: Path) -> None:
        """Write this process's part; the main process commits once all parts are written."""
        if self.config.shard:
            weights = whole_weights(self.model)
            if self.args.should_save:
                self._save(str(staging), weights)
        else:
            self.save_model(str(staging), _internal_call=True)
        self._save_optimizer_and_scheduler(str(staging))
        self._save_scaler(str(staging))
        self._save_rng_state(str(staging))
        self.objective.save(staging, process=self.args.process_index)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self.state.save_to_json(str(staging / "trainer_state.json"))
            seconds = time.monotonic() - self.started
            self.commits.begin(staging, replace(self.progress, seconds=seconds))


def _check_origin(resume: Checkpoint) -> None:
    """Refuse pickles (optimizer, random state) of checkpoints without checksums."""
    if resume.files is None:
        raise ModelError(
            f"{resume.folder}: was written by a version of Outrider that kept no checksums, so its "
            "optimizer is not read; finish the run with that version, or pass --restart"
        )


def _steps(config: TrainConfig, update: int) -> float:
    """Return the share of the highest learning rate after `update` updates."""
    assert config.decay_every is not None
    if update < config.warmup:
        return update / config.warmup
    return float(config.decay ** ((update - config.warmup) // config.decay_every))


_SCHEDULES = {
    "inverse_sqrt": "inverse_sqrt",
    "linear": "linear",
    "cosine": "cosine",
    "step": "constant_with_warmup",  # our Trainer adds the decay
    "constant": "constant_with_warmup",
}


def training_arguments(config: TrainConfig, *, folder: Path, seed: int) -> TrainingArguments:
    """Return the arguments of the Trainer's loop; precision and data are set elsewhere."""
    evaluates = config.evaluate_every > 0
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    cpu = config.device == "cpu" or not torch.accelerator.is_available()
    _rejoin_process_group(cpu=cpu)
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and distributed else None,
        # Without it DDP rebuilds its buckets after the first update. With more than two processes
        # this changes the order of summation, so a resumed run would round differently.
        ddp_find_unused_parameters=True,
        max_steps=config.steps,
        gradient_accumulation_steps=config.accumulate,
        per_device_train_batch_size=1,
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup,
        lr_scheduler_type=_SCHEDULES[config.schedule],
        optim="adamw_torch_fused",
        weight_decay=config.weight_decay,
        adam_beta1=config.adam_betas[0],
        adam_beta2=config.adam_betas[1],
        adam_epsilon=config.adam_epsilon,
        max_grad_norm=config.clip,
        logging_strategy="steps",
        logging_steps=config.log_every,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=config.save_every,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=config.evaluate_every if evaluates else None,
        seed=seed,
        report_to="none",
        disable_tqdm=True,
        ignore_data_skip=True,
        remove_unused_columns=False,
        log_level="error",
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs mean DDP, never DataParallel threads
    return arguments


def _rejoin_process_group(*, cpu: bool) -> None:
    """Initialise the process group under a new key prefix after a restart by torchrun.

    torchrun keeps one store for all attempts; without a prefix, PyTorch finds addresses of
    processes that have ended.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if attempt == "0" or not shared or dist.is_initialized():
        return
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
    dist.init_process_group(
        "gloo" if cpu else None,
        store=dist.PrefixStore(f"attempt-{attempt}", store),  # type: ignore[attr-defined]
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
