"""Draw the spans that attention heads have learned, from model folders.

python lab/studies/adaptive_span.py runs/shakespeare-char-adaptive-span \
    --fixed runs/shakespeare-char-fixed-span \
    --json results/adaptive-span.json --png docs/images/adaptive-span.png

Several run folders are several seeds. Losses come from each run's `results.json`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from outrider.show.palette import GRID, INK, load_pyplot
from outrider.torch.models import load_model
from outrider.torch.nn.attention.adaptive_span import Attention

LAYER = ("#9fb3c8", "#5b9bc8", "#0b69a3", "#c65d21", "#8a3b0f", "#4a1d04")
CONTEXT = 65_536
"""Tokens for which the bytes of decoding state are computed."""


def read(run: Path) -> dict[str, Any]:
    """Spans of one run in tokens, as a list of heads per layer, and the computation they save."""
    model = load_model(run / "model").eval()
    found = [module for module in model.modules() if isinstance(module, Attention)]
    spans = [attention.spans().flatten().tolist() for attention in found]
    state = model.open(1, capacity=CONTEXT)
    whole = 2 * model.config.hidden_size * len(found) * CONTEXT * 4
    return {
        **score(run),
        "spans": [[round(z, 1) for z in layer] for layer in spans],
        "mean_span_of_layer": [round(sum(layer) / len(layer), 1) for layer in spans],
        "mean_span": round(sum(map(sum, spans)) / sum(map(len, spans)), 1),
        "max_span": found[0].config.max_span,
        "ramp": found[0].config.ramp,
        "penalty": found[0].config.penalty,
        "cache_bytes_64k": state.nbytes,
        "cache_bytes_64k_causal": whole,
    }


def score(run: Path) -> dict[str, Any]:
    """Scores of a run on its test text."""
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    keys = ("nats_per_token", "bits_per_character")
    config = results["config"]
    return {
        "seed": results["seed"],
        "steps": config["train"]["steps"],
        "attention": config["model"]["attention"],
        "weights_sha256": results["weights_sha256"],
        **{key: results["scores"][key] for key in keys},
    }


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Draw one dot per head, layer by layer; a bar is the layer's mean over all runs."""
    pyplot = load_pyplot("the picture of spans")
    figure, axes = pyplot.subplots(figsize=(8, 4.4), layout="constrained")
    layers = len(runs[0]["spans"])
    for layer in range(layers):
        spans = [z for run in runs for z in run["spans"][layer]]
        mean = sum(spans) / len(spans)
        color = LAYER[layer % len(LAYER)]
        axes.barh(layer, mean, height=0.62, color=color, alpha=0.35, zorder=1)
        heights = [layer + 0.4 * ((n + 0.5) / len(spans) - 0.5) for n in range(len(spans))]
        axes.scatter(spans, heights, color=color, edgecolor="white", s=58, zorder=3)
        axes.text(
            max([mean, *spans]) + 3, layer, f"mean {mean:.0f}", va="center", color=INK, fontsize=10
        )
    axes.set_yticks(range(layers), [f"layer {layer + 1}" for layer in range(layers)], color=INK)
    axes.set_xlabel("learned span of a head, in characters", color=INK)
    axes.set_xlim(0, max(z for run in runs for layer in run["spans"] for z in layer) * 1.15 + 8)
    axes.grid(axis="x", color=GRID, zorder=0)
    axes.tick_params(length=0, colors=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.suptitle("How far back each head looks", x=0.01, ha="left", fontsize=14, color=INK)
    figure.savefig(path, dpi=150, facecolor="white")


def main() -> None:
    """Read, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--fixed", nargs="*", type=Path, default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    arguments = parser.parse_args()
    adaptive = [read(run) for run in arguments.runs]
    result = {
        "adaptive": adaptive,
        "fixed": [score(run) for run in arguments.fixed],
        "torch": torch.__version__,
    }
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if arguments.png:
        draw(adaptive, arguments.png)


if __name__ == "__main__":
    main()
