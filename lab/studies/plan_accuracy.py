"""Accuracy of `outrider plan`: parameters, memory and time, planned and measured.

    python lab/studies/plan_accuracy.py --json FILE

Five configs from tiny to 50 million parameters, with different attentions. Each is planned with
`--measure` in one new process, and trained for a few updates by our Trainer in another, on random
tokens with the lengths of captions. Memory is the peak of the training process above the memory
before the model was built, after a tiny run with the same parts, so that memory of PyTorch and the
Trainer is not counted. It is measured with freed blocks returned to the system, which counts
tensors only; `heap` is the same with the heap that a run keeps for speed (glibc). Time is the
median of the updates; parameters are those of the trained model.
"""

import argparse
import ctypes
import statistics
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import TrainerCallback

from outrider.config import load_config
from outrider.data.manifest import Manifest, Split
from outrider.data.prepared import open_prepared
from outrider.data.shards import ShardWriter, ragged_column
from outrider.run_config import RunConfig
from outrider.runtime.memory import peak_bytes, reset_peak, resident_bytes
from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.plan.plan import plan_run
from outrider.torch.plan.subject import PlanOptions
from outrider.torch.training.batches import BatchStream
from outrider.torch.training.checkpoint import Checkpoints
from outrider.torch.training.kinds import kind_of
from outrider.torch.training.memory import keep_memory
from outrider.torch.training.trainer import Trainer, training_arguments
from outrider_lab.bench.process import run_alone
from outrider_lab.bench.train.corpus import synthetic_corpus

CONFIGS = Path(__file__).parents[2] / "configs"
ALIKE = (
    *("train.precision=float32", "train.device=cpu", "train.evaluate_every=0"),
    *("train.average_by=last", "evaluate=null"),
)
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tiny": ("quickstart", ()),
    "sliding": ("shakespeare-char", ("model.attention={kind: sliding, window: 64}",)),
    "strided": ("family/sparse-transformer", ()),
    # With the batch of its config, the few MB of the libraries would be visible.
    "reversible lsh": ("family/reformer", ("train.batch_tokens=16384",)),
    "large": ("tatoeba-en-de-large", ()),
}
"""A config each, with overrides."""
VOCABULARIES = {"tiny": 500, "large": 8000}
WARM, FEW = 2, 6
MMAP_THRESHOLD, MAPPED_FROM = -3, 1 << 16  # of malloc.h; freed larger tensors are returned


def read(name: str, folder: str, more: Iterable[str] = ()) -> RunConfig:
    """Read a config with its prepared data in a folder."""
    file, changes = RUNS[name]
    overrides = [*changes, *ALIKE, f"data.folder={folder}", *more]
    return load_config(RunConfig, CONFIGS / f"{file}.yaml", overrides)


def write_corpus(name: str, folder: str) -> None:
    """Write random tokens in the format of the config: pairs, or rows of running text."""
    config = read(name, folder)
    if config.model.type == "seq2seq":
        synthetic_corpus(Path(folder), vocab_size=VOCABULARIES[name])
        return
    rows, length = 2000, config.data.sequence_length
    vocabulary = config.data.tokenizer.vocab_size
    ids = np.random.default_rng(0).integers(4, vocabulary, (rows, length)).tolist()
    Path(folder).mkdir(parents=True)
    columns = {"target_ids": ragged_column(ids), "target_length": pa.array([length] * rows)}
    with ShardWriter(Path(folder), "train", shard_rows=rows, block_rows=rows) as writer:
        writer.add(pa.table(columns))
        shards = writer.close()
    special = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": 3}
    Manifest(
        task="language_model",
        config={},
        inputs=(),
        tokenizer={"vocab_size": vocabulary, **special},
        block_rows=rows,
        splits={"train": Split(shards=shards, rows_read=rows, dropped={})},
    ).write(Path(folder))


def plan(name: str, folder: str) -> dict[str, float]:
    """Plan a run with measurements of this machine."""
    figures = {
        one.key: one.value for one in plan_run(read(name, folder), PlanOptions(measure=True))
    }
    return {
        "parameters": figures["parameters.total"],
        "bytes": figures["memory.training"],
        "seconds": figures["training.time"] / figures["training.steps"],
    }


class Clock(TrainerCallback):
    """Records the time at the end of every update."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record the time."""
        self.moments.append(time.perf_counter())


def train(name: str, folder: str, steps: int, keep: bool) -> dict[str, float]:
    """Train for a few updates, as `outrider train` does, or with freed memory returned."""
    _ = keep_memory() if keep else ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, MAPPED_FROM)
    _run(read(name, folder, _small(name)), folder, 2)  # memory of the libraries is not counted
    reset_peak()
    before = resident_bytes()
    model, moments = _run(read(name, folder), folder, steps)
    taken = [after - start for start, after in pairwise(moments)]
    return {
        "parameters": sum(one.numel() for one in model.parameters()),
        "bytes": peak_bytes() - before,
        "seconds": statistics.median(taken[WARM:]),
    }


def _small(name: str) -> list[str]:
    """Return a tiny run with the same parts."""
    sizes = ["hidden_size=16", "intermediate_size=16", "num_attention_heads=2"]
    layers = ["encoder_layers=1", "decoder_layers=1"] if name in VOCABULARIES else ["layers=1"]
    return [f"model.{key}" for key in (*sizes, *layers)] + ["train.batch_tokens=300"]


def _run(config: RunConfig, folder: str, steps: int) -> tuple[torch.nn.Module, list[float]]:
    """Return the model, and the end times of the updates."""
    prepared, clock = open_prepared(folder), Clock()
    train = config.train.model_copy(update={"steps": steps, "save_every": steps})
    torch.manual_seed(config.seed)
    model = kind_of(config).blank(int(prepared.manifest.tokenizer["vocab_size"]))
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            model,
            train,
            stream=BatchStream(
                prepared,
                tokens=train.batch_tokens,
                seed=config.seed,
                max_length=config.data.sequence_length + 1,
            ),
            objective=kind_of(config).training_objective(),
            checkpoints=Checkpoints(Path(scratch)),
            arguments=training_arguments(train, folder=Path(scratch), seed=config.seed),
            callbacks=[clock],
        )
        trainer._save_checkpoint = lambda model, trial: None  # only training is measured
        trainer.run()
    return model, clock.moments


def compare(name: str, steps: int) -> dict[str, Any]:
    """Plan and train one run, each in a new process."""
    apart = partial(run_alone, preload=())
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(Path(scratch) / "data")
        apart(write_corpus, name, folder)
        planned, measured = apart(plan, name, folder), apart(train, name, folder, steps, True)
        heap = measured["bytes"]
        measured["bytes"] = apart(train, name, folder, FEW, False)["bytes"]
    off = {key: planned[key] / measured[key] - 1 for key in planned}
    return {"run": name, "planned": planned, "measured": measured, "heap": heap, "off": off}


def show(row: dict[str, Any]) -> str:
    """Print one row."""
    planned, measured, off = row["planned"], row["measured"], row["off"]
    return (
        f"{row['run']:15} parameters {planned['parameters']:>11,} / {measured['parameters']:>11,}"
        f"   MB {planned['bytes'] / 1e6:7.1f} / {measured['bytes'] / 1e6:7.1f} {off['bytes']:+6.1%}"
        f" (heap {row['heap'] / 1e6:7.1f})"
        f"   s a step {planned['seconds']:6.3f} / {measured['seconds']:6.3f} {off['seconds']:+6.1%}"
    )


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print("planned / measured")
    for name in options.runs:
        rows.append(compare(name, options.steps))
        print(show(rows[-1]), flush=True)
    result = {"task": "accuracy of plans", "steps": options.steps, "rows": rows}
    result |= {"machine": machine(), "versions": versions()}
    if options.json is not None:
        write_result(options.json, result)


if __name__ == "__main__":
    main()
