"""Time of `outrider train` on two processes relative to a bare loop with PyTorch's DDP.

    python lab/studies/ddp_loop.py --json FILE

Both train the same model on the same batches, with the same loss, AdamW and clipping, on two
processes of one thread each, and take turns. The bare loop is minimal: no log, schedule, checkpoint
or count of targets over processes. The time of a turn is the median of its updates. The weights of
both must be equal at the end, up to rounding.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from itertools import islice, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback

from outrider.config import load_config
from outrider.data.prepared import open_prepared
from outrider.run_config import RunConfig
from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.training.batches import BatchStream, Deal
from outrider.torch.training.checkpoint import Checkpoints
from outrider.torch.training.kinds import kind_of
from outrider.torch.training.memory import keep_memory
from outrider.torch.training.trainer import Trainer, training_arguments
from outrider_lab.bench.train.corpus import synthetic_corpus

CONFIGS = Path(__file__).parents[2] / "configs"
PROCESSES, WARM, WORDS = 2, 3, 8000
ALIKE = (
    *("train.precision=float32", "train.device=cpu", "train.evaluate_every=0", "evaluate=null"),
    *("train.warmup=0", "train.schedule=constant", "train.log_every=1000", "model.dropout=0"),
    *("train.average_by=last", "train.average=1"),
)


class Clock(TrainerCallback):
    """Records the time at the end of every update."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record the time."""
        self.moments.append(time.perf_counter())


class Side:
    """One of the two processes."""

    def __init__(self, rank: int, config: RunConfig, updates: int) -> None:
        self.rank, self.config = rank, config
        self.train = config.train.model_copy(update={"steps": updates, "save_every": updates})
        self.scratch = tempfile.TemporaryDirectory()
        folder = Path(self.scratch.name)
        self.arguments = training_arguments(self.train, folder=folder, seed=config.seed)

    def model(self) -> nn.Module:
        """Return a model with the same weights each time."""
        torch.manual_seed(self.config.seed)
        return kind_of(self.config).blank(WORDS).train()

    def stream(self) -> BatchStream:
        """Return the same batches each time."""
        return BatchStream(
            open_prepared(self.config.data.folder),
            tokens=self.train.batch_tokens // PROCESSES,
            seed=self.config.seed,
            deal=Deal(self.rank, PROCESSES, PROCESSES),
            max_length=self.config.data.sequence_length + 1,
        )

    def ours(self) -> tuple[float, nn.Module]:
        """Train with our Trainer; return the seconds per update, and the model."""
        clock, model = Clock(), self.model()
        trainer = Trainer(
            model,
            self.train,
            stream=self.stream(),
            objective=kind_of(self.config).training_objective(),
            checkpoints=Checkpoints(Path(self.scratch.name)),
            arguments=self.arguments,
            callbacks=[clock],
        )
        trainer._save_checkpoint = lambda model, trial: None  # only training is measured
        trainer.run()
        return _median(clock.moments), model

    def bare(self) -> tuple[float, nn.Module]:
        """Train with a minimal loop."""
        model, train = self.model(), self.train
        whole = DistributedDataParallel(model)
        objective = kind_of(self.config).training_objective()
        matrices, rest = _by_decay(model)
        optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": train.weight_decay}, {"params": rest}],
            lr=train.learning_rate,
            betas=train.adam_betas,
            eps=train.adam_epsilon,
            weight_decay=0.0,
            fused=True,
        )
        moments = []
        for batch in islice(self.stream(), train.steps):
            count = torch.tensor(float(objective.count(batch.tensors)))
            dist.all_reduce(count)  # the mean is over all targets, as in our Trainer
            divisor = float(count) / PROCESSES
            loss = objective.loss(
                whole, batch.tensors, divisor=divisor, smoothing=train.label_smoothing
            )
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
            optimizer.step()
            optimizer.zero_grad()
            moments.append(time.perf_counter())
        return _median(moments), model


def _by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    named = list(model.named_parameters())
    return [one for _, one in named if one.ndim > 1], [one for _, one in named if one.ndim < 2]


def _median(moments: list[float]) -> float:
    return statistics.median([after - before for before, after in pairwise(moments)][WARM:])


def work(pipe: Connection, rank: int, port: int, values: dict[str, Any]) -> None:
    """Train in turns; the first process sends all seconds."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(PROCESSES)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    keep_memory()
    overrides = [*ALIKE, f"data.folder={values['folder']}", *values["more"]]
    config = load_config(RunConfig, CONFIGS / f"{values['config']}.yaml", overrides)
    side = Side(rank, config, values["updates"])
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    for turn in range(values["turns"]):
        models = {}
        for name in list(seconds)[:: 1 if turn % 2 else -1]:
            dist.barrier()
            took, models[name] = side.ours() if name == "ours" else side.bare()
            seconds[name].append(took)
        pairs = zip(models["ours"].parameters(), models["bare"].parameters(), strict=True)
        furthest = max(float((one - other).abs().max()) for one, other in pairs)
    dist.barrier()
    if rank == 0:
        sizes = sum(one.numel() for one in models["ours"].parameters())
        pipe.send({"seconds": seconds, "furthest_weight": furthest, "parameters": sizes})
    dist.destroy_process_group()


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default="multi30k-en-de")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], help="keys of the config")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch, socket.socket() as free:
        synthetic_corpus(Path(scratch) / "data", vocab_size=WORDS)
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
        free.close()
        values = {"folder": str(Path(scratch) / "data"), "config": options.config}
        values |= {"updates": options.updates, "turns": options.turns, "more": options.set}
        mine, theirs = context.Pipe()
        sides = [
            context.Process(target=work, args=(theirs, rank, port, values))
            for rank in range(PROCESSES)
        ]
        for side in sides:
            side.start()
        for side in sides:
            side.join()
        assert not any(side.exitcode for side in sides), "a process failed"
        found = mine.recv()
    ratios = [b / a for a, b in zip(*found["seconds"].values(), strict=True)]
    result = {"task": "training on two processes", "ratio_to_bare_loop": statistics.median(ratios)}
    result |= {"ratios": ratios, **found, "config": options.config, "updates": options.updates}
    print(f"{result['ratio_to_bare_loop']:.3f} of a bare loop; turns {ratios}")
    print(f"weights differ by at most {found['furthest_weight']:.2g}")
    result |= {"machine": machine(), "versions": versions()}
    if options.json is not None:
        write_result(options.json, result)


if __name__ == "__main__":
    main()
