"""`strided` and `fixed` patterns, each on textures and on text.

python lab/studies/patterns.py --text input.txt.gz --json results/patterns-image-text.json

Trains the four configs of configs/attention for every seed and writes the loss on held-out rows;
`--png FILE` draws it. Runs in an existing JSON file are not repeated. A row has the length of an
image, 24 x 24 pixels of 16 grey levels in raster order. A texture is a sum of a few plane waves
with whole numbers of periods in both directions, and noise: the pixels to the left and above
predict the next one best.

`--textures FILE` only writes images as text, one letter per pixel, for `outrider train`.
"""

import argparse
import gzip
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.config import load_config
from outrider.run_config import RunConfig
from outrider.runtime.provenance import machine, versions, write_result
from outrider.show.palette import GRID, ORANGE, TEAL, load_pyplot
from outrider.torch.models import LanguageModel, LanguageModelConfig

SIDE, LEVELS, WAVES, NOISE = 24, 16, 3, 0.12
IMAGES, HELD_OUT = 2048, 32
LETTERS = "abcdefghijklmnop"
FIRST_ID = 4
"""Ids below are padding and special tokens."""
CONFIGS = Path(__file__).parents[2] / "configs" / "attention"
PAIRS = [(task, kind) for task in ("image", "text") for kind in ("strided", "fixed")]


class Data(NamedTuple):
    """Rows of ids for training and validation, without the start token."""

    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    symbols: int


def texture(random: np.random.Generator) -> NDArray[np.int64]:
    """Return one image, [SIDE, SIDE], of grey levels."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    periods = random.integers(-4, 5, (WAVES, 2))
    phase = random.uniform(0, 2 * np.pi, WAVES)
    waves = np.cos(2 * np.pi * (periods @ np.stack([y, x]).reshape(2, -1)) + phase[:, None])
    grey = waves.mean(0) + NOISE * random.standard_normal(SIDE * SIDE)
    return np.clip((grey + 1) / 2 * LEVELS, 0, LEVELS - 1).astype(np.int64).reshape(SIDE, SIDE)


def textures(count: int, seed: int) -> NDArray[np.int64]:
    """Return images as rows of pixels."""
    random = np.random.default_rng(seed)
    return np.stack([texture(random).flatten() for _ in range(count)])


def image_data() -> Data:
    """Return textures for training and validation."""
    return Data(textures(IMAGES, 1), textures(HELD_OUT, 2), LEVELS)


def text_data(path: Path) -> Data:
    """Cut a text into rows; the last tenth is held out."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    ids = np.array([letters[letter] for letter in text], dtype=np.int64)
    cut = len(ids) * 9 // 10
    train, valid = (part[: len(part) // SIDE**2 * SIDE**2] for part in (ids[:cut], ids[cut:]))
    return Data(train, valid.reshape(-1, SIDE**2)[:HELD_OUT], len(letters))


def batches(data: Data, rows: int, seed: int) -> Iterator[Tensor]:
    """Yield rows endlessly: whole images, or random pieces of text."""
    random = np.random.default_rng(seed)
    while True:
        if data.train.ndim == 2:
            picked = data.train[random.integers(0, len(data.train), rows)]
        else:
            first = random.integers(0, len(data.train) - SIDE**2, rows)
            picked = data.train[first[:, None] + np.arange(SIDE**2)]
        yield marked(picked)


def marked(rows: NDArray[np.int64]) -> Tensor:
    """Return ids with the start token of a row."""
    mark = LanguageModelConfig().bos_token_id
    ids = np.pad(rows + FIRST_ID, ((0, 0), (1, 0)), constant_values=mark)
    return torch.from_numpy(ids)


def train(run: RunConfig, data: Data, seed: int) -> dict[str, Any]:
    """Train one model; return its losses on held-out rows, in nats per token."""
    torch.manual_seed(seed)
    settings = run.train
    config = LanguageModelConfig(**run.model.values, vocab_size=FIRST_ID + data.symbols)
    model = LanguageModel(config).train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=settings.adam_betas,
        weight_decay=settings.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate(step, settings.warmup, settings.steps)
    )
    half = settings.precision == "bfloat16"
    losses, begun = {}, time.process_time()
    stream = batches(data, settings.batch_tokens // SIDE**2, seed)
    for step in range(1, settings.steps + 1):
        ids = next(stream)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        schedule.step()
        if step % settings.evaluate_every == 0 or step == settings.steps:
            losses[step] = test(model, data, half)
            print(f"  step {step}: {losses[step]:.4f}", flush=True)
    return {
        "loss": losses[settings.steps],
        "curve": losses,
        "parameters": sum(p.numel() for p in model.parameters()),
        "processor_seconds": round(time.process_time() - begun, 1),
    }


def rate(step: int, warmup: int, steps: int) -> float:
    """Return the learning rate factor: linear warmup, then half a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


@torch.no_grad()
def test(model: LanguageModel, data: Data, half: bool) -> float:
    """Return the mean loss of the held-out rows."""
    model.eval()
    losses = []
    for rows in np.array_split(data.valid, 4):
        ids = marked(rows)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses.append(len(rows) * float(model(ids, labels=ids).loss))
    model.train()
    return sum(losses) / len(data.valid)


def named(runs: dict[str, dict[str, Any]], task: str, kind: str) -> list[dict[str, Any]]:
    """Return the runs of one pair, one per seed."""
    return [run for name, run in runs.items() if name.startswith(f"{task}-{kind}-")]


def summary(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return mean and spread of every pair, and the pattern with the lower loss per task."""
    means: dict[str, dict[str, float]] = {}
    for task, kind in PAIRS:
        losses = [run["loss"] for run in named(runs, task, kind)]
        if losses:
            means.setdefault(task, {})[kind] = float(np.mean(losses))
            means[task][f"{kind}_spread"] = float(np.ptp(losses))
    better = {
        task: min(("strided", "fixed"), key=found.__getitem__)
        for task, found in means.items()
        if {"strided", "fixed"} <= found.keys()
    }
    return {"nats_per_token": means, "better": better}


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the loss of every run by step, and a texture."""
    pyplot = load_pyplot("the picture")
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    axes[0].imshow(textures(1, 2).reshape(SIDE, SIDE), cmap="gray")
    axes[0].set_title("a texture", loc="left", fontsize=11)
    axes[0].set_axis_off()
    for panel, task in zip(axes[1:], ("image", "text"), strict=True):
        for kind, colour in (("strided", TEAL), ("fixed", ORANGE)):
            found = named(result["runs"], task, kind)
            for number, run in enumerate(found):
                steps = [int(step) for step in run["curve"]]
                label = kind if number == 0 else None
                panel.plot(steps, list(run["curve"].values()), color=colour, alpha=0.8, label=label)
        panel.set_title({"image": "textures", "text": "text"}[task], loc="left", fontsize=11)
        panel.set_xlabel("step")
        panel.set_ylabel("held-out loss, nats a token")
        panel.grid(color=GRID)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, facecolor="white")
    pyplot.close(figure)


def measure(text: Path, json_file: Path, seeds: int) -> dict[str, Any]:
    """Train runs missing in the file, and write it after every run."""
    result: dict[str, Any] = {"runs": {}}
    if json_file.exists():
        result = json.loads(json_file.read_text(encoding="utf-8"))
    data = {"image": image_data(), "text": text_data(text)}
    for seed in range(1, seeds + 1):
        for task, kind in PAIRS:
            name = f"{task}-{kind}-{seed}"
            if name in result["runs"]:
                continue
            print(name, flush=True)
            run = load_config(RunConfig, CONFIGS / f"{task}-{kind}.yaml")
            result["runs"][name] = train(run, data[task], seed)
            result["configs"] = {
                **result.get("configs", {}),
                f"{task}-{kind}": {"model": run.model.values, "train": run.train.model_dump()},
            }
            result |= summary(result["runs"]) | {"machine": machine(), "versions": versions()}
            write_result(json_file, result)
    return result


def main() -> None:
    """Measure, or write textures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a text file, plain or .gz")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--png", type=Path, help="draw the picture here")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--textures", type=Path, help="only write images as text")
    options = parser.parse_args()
    if options.textures:
        images = textures(IMAGES + HELD_OUT, 1)
        text = "".join(LETTERS[pixel] for pixel in images.flatten())
        options.textures.write_text(text, encoding="utf-8")
        return
    if not (options.text and options.json):
        parser.error("give --text and --json, or --textures")
    result = measure(options.text, options.json, options.seeds)
    print(json.dumps(summary(result["runs"]), indent=2))
    if options.png:
        draw(result, options.png)


if __name__ == "__main__":
    main()
