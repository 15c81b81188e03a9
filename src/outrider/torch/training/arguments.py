"""Translate the `train` section of a run to transformers' `TrainingArguments`."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import TrainingArguments

from outrider.run_config import TrainConfig

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
