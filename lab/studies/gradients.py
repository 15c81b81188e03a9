"""Gradients over distance: FAST, plain attention and recurrent layers.

    python lab/studies/gradients.py --json FILE --png FILE

The loss is that of the last position. The norms of its gradients at the token embeddings are
compared by distance d from the last position, and those at the output of every layer over all
positions. Models are measured with initial weights at several lengths, and after training on one
length to predict the first token at the last position. All run in float32 on one thread, with equal
width and depth; a norm is the median over rows and seeds. Attention is placed between residual sums
and feed-forwards, as in Outrider's models; recurrent layers are measured both there and as a plain
stack.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.runtime.provenance import machine, versions, write_result
from outrider.show.palette import INK, QUIET, SERIES, load_pyplot, save_figure, style_axes
from outrider.torch.models import LanguageModel, LanguageModelConfig
from outrider.torch.models.base import init_weights

WIDTH, LAYERS = 64, 4
ANSWERS, VOCABULARY = 8, 32
"""Tokens below ANSWERS are answers; the others are noise, except the last, the query."""
LENGTH, ROWS, RATE, WARMUP = 128, 16, 2e-3, 20
FLOOR = 1e-12
"""Minimum norm of the drawing."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_attention_heads": 4,
    "layers": LAYERS,
    "dropout": 0.0,
    "position": "sinusoidal",
}
FAST = {"position_correlation": 3, "position_mlp": 8}


class Recurrent(nn.Module):
    """Recurrent layers on embeddings, with an output layer."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(kind(WIDTH, WIDTH, batch_first=True) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.apply(init_weights)

    def hidden(self, tokens_BT: Tensor, seen: list[Tensor]) -> Tensor:
        """Run whole sequences; `seen` collects the output of every layer."""
        x_BTD: Tensor = self.tokens(tokens_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD)[0]
            seen.append(x_BTD)
        return x_BTD

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits of the whole vocabulary."""
        scores: Tensor = self.head(hidden)
        return scores


def attention(**options: Any) -> Callable[[], LanguageModel]:
    """Return a function that builds a language model with these keys."""
    return lambda: LanguageModel(LanguageModelConfig(**SIZES, **options))


MODELS: dict[str, Callable[[], LanguageModel | Recurrent]] = {
    "FAST": attention(**FAST),
    "scaled dot product": attention(),
    "dot product": attention(attention={"kind": "causal", "score": "dot"}),
    "GRU, residual": attention(core="gru"),
    "GRU": lambda: Recurrent(nn.GRU),
    "LSTM": lambda: Recurrent(nn.LSTM),
}


@dataclass(frozen=True)
class Norms:
    """Norms of the gradients of one loss."""

    by_distance_BT: Tensor
    """At the embeddings, last position first."""
    by_layer_B: list[Tensor]
    """At the embeddings and at the output of every layer, over all positions."""


def batch(rows: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return rows `a n n ... n ?` and the answers a."""
    answer_B = torch.randint(ANSWERS, (rows,), generator=generator)
    tokens_BT = torch.randint(ANSWERS, VOCABULARY - 1, (rows, length), generator=generator)
    tokens_BT[:, 0], tokens_BT[:, -1] = answer_B, VOCABULARY - 1
    return tokens_BT, answer_B


def gradients(model: LanguageModel | Recurrent, tokens_BT: Tensor, answer_B: Tensor) -> Norms:
    """Differentiate the loss of the last position by the embeddings and all layer outputs."""
    found: list[Tensor] = []
    hook = model.tokens.register_forward_hook(lambda _, __, output: found.append(output))
    logits_BV = model.logits(model.hidden(tokens_BT, found)[:, -1])
    hook.remove()
    loss = F.cross_entropy(logits_BV, answer_B, reduction="sum")
    norms = [gradient.norm(dim=-1) for gradient in torch.autograd.grad(loss, found)]
    return Norms(norms[0].flip(1), [norm_BT.norm(dim=1) for norm_BT in norms])


def learn(model: LanguageModel | Recurrent, *, seed: int, steps: int, length: int) -> float:
    """Train on the first token; return the accuracy on new rows."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / WARMUP)
        tokens_BT, answer_B = batch(ROWS, length, generator)
        logits_BV = model.logits(model.hidden(tokens_BT, [])[:, -1])
        optimizer.zero_grad()
        F.cross_entropy(logits_BV, answer_B).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        tokens_BT, answer_B = batch(8 * ROWS, length, generator)
        named_B = model.logits(model.hidden(tokens_BT, [])[:, -1]).argmax(-1)
    return float((named_B == answer_B).float().mean())


def summarize(norms: list[Norms], length: int) -> dict[str, Any]:
    """Return medians over rows and seeds, by distance and by layer."""
    far = [0, *(2**n for n in range(length.bit_length()) if 2**n < length - 1), length - 1]
    by_distance_NT = torch.cat([one.by_distance_BT for one in norms])
    by_layer = zip(*(one.by_layer_B for one in norms), strict=True)
    return {
        "length": length,
        "distances": far,
        "norms": [float(by_distance_NT[:, d].median()) for d in far],
        "largest": float(by_distance_NT.max()),
        "layers": [float(torch.cat(list(layer)).median()) for layer in by_layer],
    }


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one model: new at every length, and trained at one length."""
    began, build = time.process_time(), MODELS[name]
    found: dict[int, list[Norms]] = {length: [] for length in options.lengths}
    trained: list[Norms] = []
    recalled: list[float] = []
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        model = build().train()
        generator = torch.Generator().manual_seed(100 + seed)
        for length, norms in found.items():
            norms.append(gradients(model, *batch(options.rows, length, generator)))
        recalled.append(learn(model, seed=seed, steps=options.steps, length=options.length))
        trained.append(gradients(model, *batch(options.rows, options.length, generator)))
    return {
        "name": name,
        "parameters": sum(p.numel() for p in build().parameters()),
        "new": [summarize(norms, length) for length, norms in found.items()],
        "trained": summarize(trained, options.length),
        "recalled": recalled,
        "seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    """Measure, write the result and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--length", type=int, default=LENGTH, help="length of the training texts")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # subnormal gradients slow recurrent layers down
    rows = []
    for name in MODELS:
        rows.append(row := measure(name, options))
        tell(row)
    names = ("lengths", "length", "steps", "seeds", "rows")
    settings = {name: getattr(options, name) for name in names}
    result = {"task": "gradients", **settings, "width": WIDTH, "layers": LAYERS, "models": rows}
    if options.json is not None:
        write_result(options.json, result | {"machine": machine(), "versions": versions()})
    if options.png is not None:
        draw(result, options.png)


def tell(row: dict[str, Any]) -> None:
    """Print the share of the gradient at the first token."""
    for state, one in (("new", row["new"][-1]), ("trained", row["trained"])):
        far = f"{share(one)[-1]:.1e} of the last, {one['distances'][-1]} places back"
        print(f"{row['name']}, {state}: {far}")
    right, seconds = median(row["recalled"]), row["seconds"]
    print(f"{row['name']} names the first token in {right:.0%}, {seconds:.0f} s", flush=True)


def share(row: dict[str, Any]) -> list[float]:
    """Return norms by distance, relative to that of the last position."""
    return [norm / row["norms"][0] for norm in row["norms"]]


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw gradients by distance (new and trained), by length, and by layer."""
    pyplot = load_pyplot("the picture of the gradients")
    figure = pyplot.figure(figsize=(11.5, 8), layout="constrained", facecolor="white")
    try:
        (new, trained), (lengths, layers) = figure.subplots(2, 2)
        for row, colour in zip(result["models"], SERIES, strict=False):
            width = 5 if row is result["models"][0] else 2  # the next one hides it
            style = {"color": colour, "linewidth": width, "marker": "o", "markersize": 3.5}
            for axes, one in ((new, row["new"][-1]), (trained, row["trained"])):
                _draw_line(axes, [d + 1 for d in one["distances"]], share(one), style)
            right = f"{row['name']}: {100 * median(row['recalled']):.0f} % right"
            trained.plot([], [], label=right, **style)
            far = [share(one)[-1] for one in row["new"]]
            _draw_line(lengths, result["lengths"], far, style | {"label": row["name"]})
            by_layer = [norm / row["new"][-1]["layers"][-1] for norm in row["new"][-1]["layers"]]
            _draw_line(layers, range(len(by_layer)), by_layer, style)
        longest = result["lengths"][-1]
        _dress(new, f"new, {longest} tokens", "distance from the last place, and 1")
        _dress(
            trained,
            f"after {result['steps']} steps, {result['length']} tokens",
            "distance from the last place, and 1",
        )
        _dress(lengths, "new: gradient at the first token", "tokens")
        _dress(
            layers, f"new, {longest} tokens: gradient of a layer's output", "layer, 0 is the input"
        )
        layers.set_xscale("linear")
        layers.set_xticks(range(result["layers"] + 1))
        layers.set_ylabel("norm, relative to the last layer", color=QUIET)
        for axes in (trained, lengths):
            axes.legend(frameon=False, labelcolor=INK, fontsize=9)
        title = "How far back the loss of the last token is felt"
        figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
        save_figure(figure, path, dpi=120, pil_kwargs={"optimize": True})
    finally:
        pyplot.close(figure)


def _draw_line(axes: Any, x: Any, y: list[float], style: dict[str, Any]) -> None:
    axes.plot(list(x), [max(value, FLOOR) for value in y], **style)


def _dress(axes: Any, title: str, across: str) -> None:
    style_axes(axes)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel(across, color=QUIET)
    axes.set_ylabel("norm, relative to the last place", color=QUIET)


if __name__ == "__main__":
    main()
