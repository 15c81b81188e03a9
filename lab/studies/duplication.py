"""The duplication task of the Reformer paper (arXiv:2001.04451, section 5) at a small size.

    0 w 0 w        w random symbols; only the second w is scored

One model is trained for each number of hashing rounds, and one with full causal attention. Each is
evaluated with several numbers of rounds: first with the rotations of training, then with new ones.

python lab/studies/duplication.py --json results/lsh-duplication.json
"""

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.torch.models import LanguageModel, LanguageModelConfig
from outrider.torch.nn.loss import IGNORED

FULL = "full"


@dataclass(frozen=True)
class Task:
    """Sizes of the task, the model and its training."""

    length: int = 128
    vocabulary: int = 32
    width: int = 128
    heads: int = 4
    layers: int = 1
    buckets: int = 16
    chunk: int = 16
    redraw: bool = True
    steps: int = 300
    batch: int = 16
    rate: float = 2e-3
    warmup: int = 100
    test_rows: int = 128
    seed: int = 0


def draw(task: Task, rows: int, generator: torch.Generator) -> Tensor:
    """Draw rows of 0 w 0 w, [B, T]."""
    half = task.length // 2
    word = torch.randint(1, task.vocabulary, (rows, half), generator=generator)
    word[:, 0] = 0
    return word.repeat(1, 2)


def build(task: Task, rounds: int | str) -> LanguageModel:
    """Build a model with full attention, or with the given number of hashing rounds."""
    attention: dict[str, Any] = {"kind": "causal"}
    if rounds != FULL:
        attention = {
            "kind": "lsh",
            "rounds": rounds,
            "buckets": task.buckets,
            "chunk": task.chunk,
            "redraw": task.redraw,
        }
    torch.manual_seed(task.seed)
    config = LanguageModelConfig(
        vocab_size=task.vocabulary,
        hidden_size=task.width,
        num_attention_heads=task.heads,
        intermediate_size=2 * task.width,
        layers=task.layers,
        position="learned",
        scale_embedding=False,
        max_positions=task.length,
        dropout=0.0,
        attention=attention,
    )
    return LanguageModel(config)


def train(task: Task, rounds: int | str) -> LanguageModel:
    """Train on new random rows; print the progress."""
    model = build(task, rounds).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=task.rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda n: min((n + 1) / task.warmup, (task.steps - n) / (0.3 * task.steps), 1.0),
    )
    generator = torch.Generator().manual_seed(task.seed)
    start = time.process_time()
    for step in range(task.steps):
        tokens = draw(task, task.batch, generator)
        labels = tokens.clone()
        labels[:, : task.length // 2 + 1] = IGNORED
        loss = model(tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(1, task.steps // 20) == 0 or step + 1 == task.steps:
            seconds = time.process_time() - start
            print(f"rounds {rounds} step {step} loss {loss.item():.3f} {seconds:.0f} s", flush=True)
    return model.eval()


def with_rounds(model: LanguageModel, task: Task, rounds: int) -> LanguageModel:
    """Return the model with another number of rounds; existing rounds keep their rotations."""
    other = build(task, rounds)
    weights = other.state_dict()
    for name, value in model.state_dict().items():
        if name.endswith("rotation"):
            kept = min(len(value), rounds)
            weights[name][:kept] = value[:kept]
        else:
            weights[name] = value
    other.load_state_dict(weights)
    return other.eval()


@torch.no_grad()
def accuracy(model: LanguageModel, task: Task) -> float:
    """Share of correct symbols in the second w, on new rows."""
    tokens = draw(task, task.test_rows, torch.Generator().manual_seed(task.seed + 1))
    half = task.length // 2
    guess = torch.cat([model(part).logits.argmax(-1) for part in tokens.split(32)])
    return (guess[:, half:-1] == tokens[:, half + 1 :]).double().mean().item()


def run(task: Task, trained: list[int | str], evaluated: list[int]) -> list[dict[str, Any]]:
    """Train and evaluate every model."""
    results = []
    for rounds in trained:
        start = time.process_time()
        model = train(task, rounds)
        seconds = round(time.process_time() - start, 1)
        if rounds == FULL:
            scores = {FULL: accuracy(model, task)}
        else:
            scores = {str(n): accuracy(with_rounds(model, task, n), task) for n in evaluated}
        print(f"trained with {rounds}: {scores}", flush=True)
        results.append({"rounds": rounds, "accuracy": scores, "cpu_seconds": seconds})
    return results


def picture(results: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy by rounds of evaluation, one line per model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for result in results:
        scores = {name: 100 * score for name, score in result["accuracy"].items()}
        if result["rounds"] == FULL:
            axes.axhline(scores[FULL], color="black", linestyle=":", label="full attention")
            continue
        label = f"trained with {result['rounds']} round" + "s" * (result["rounds"] > 1)
        axes.plot([int(n) for n in scores], list(scores.values()), marker="o", label=label)
    axes.set_xscale("log", base=2)
    rounds = sorted({int(n) for r in results if r["rounds"] != FULL for n in r["accuracy"]})
    axes.set_xticks(rounds, [str(n) for n in rounds])
    axes.set(xlabel="rounds of hashing when evaluated", ylabel="symbols copied right, %")
    axes.set_ylim(0, 103)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run the experiment and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--trained", nargs="+", default=[FULL, "1", "2", "4"])
    parser.add_argument("--evaluated", nargs="+", type=int, default=[1, 2, 4, 8])
    for name, value in asdict(Task()).items():
        kind = (lambda text: text == "true") if isinstance(value, bool) else type(value)
        parser.add_argument(f"--{name}", type=kind, default=value)
    options = vars(parser.parse_args())
    task = Task(**{name: options[name] for name in asdict(Task())})
    trained = [FULL if word == FULL else int(word) for word in options["trained"]]
    results = run(task, trained, options["evaluated"])
    if options["json"]:
        report = {
            "task": asdict(task),
            "models": results,
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "threads": torch.get_num_threads(),
        }
        options["json"].write_text(json.dumps(report, indent=2) + "\n")
    if options["png"]:
        picture(results, options["png"])


if __name__ == "__main__":
    main()
