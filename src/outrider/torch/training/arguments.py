"""Our `train` section in the words of transformers."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import TrainingArguments

from outrider.run_config import TrainConfig

__all__ = ["training_arguments"]

_SCHEDULES = {
    "inverse_sqrt": "inverse_sqrt",
    "linear": "linear",
    "cosine": "cosine",
    "step": "constant_with_warmup",  # which the Trainer of ours then lets fall
    "constant": "constant_with_warmup",
}


def training_arguments(config: TrainConfig, *, folder: Path, seed: int) -> TrainingArguments:
    """Everything the Trainer's own loop needs to know; precision and data are not its business."""
    evaluates = config.evaluate_every > 0
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    cpu = config.device == "cpu" or not torch.accelerator.is_available()
    _meet_again(cpu=cpu)
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and not alone else None,
        # Without it DDP regroups its buckets after the first update, so that with more than two
        # processes the order of the sums, and with it the rounding, would change at a resume.
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


def _meet_again(*, cpu: bool) -> None:
    """After a restart by torchrun, find the other processes under a name of their own.

    It keeps one store for all attempts, in which PyTorch would find addresses of dead processes.
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
