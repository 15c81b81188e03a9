"""Time saved by halting and skipping, by the share of left-out tokens.

python lab/studies/halting.py --json results/halting.json

Halting: a layer is applied STEPS times; the given share of tokens halts after the first step, the
others need all. Skipping: the given share skips one encoder layer. Each is compared with the same
layer on all tokens, for inference and training passes (forward and backward), in turns, as the
minimum of several, in CPU time of one thread, which reduces the effect of other load. `ideal` is
the share of the work that is saved if all work is proportional to tokens.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outrider.torch.models import Seq2Seq, Seq2SeqConfig
from outrider.torch.nn.family.halting import Halting, HaltingConfig, HaltingStack
from outrider.torch.nn.family.skip import SkippingStack
from outrider.torch.nn.position import Positions
from outrider.torch.nn.stack import SharedStack

STEPS, ROWS = 6, 1
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)
KINDS = ("full", "causal")


class Size(NamedTuple):
    """Sizes of the measured layers."""

    width: int
    inner: int
    heads: int
    length: int
    turns: int


FULL = Size(512, 2048, 8, 1024, 7)
QUICK = Size(256, 1024, 4, 1024, 3)


class Chosen(Halting):
    """Halts the given tokens after the first step, the others after the last."""

    def __init__(self, width: int, early_BT: Tensor) -> None:
        super().__init__(width, HaltingConfig(threshold=0.99))
        self.early_BT = early_BT

    def forward(self, state_BAD: Tensor) -> Tensor:
        """Return 1 or 0; the product with the weights keeps a gradient for training."""
        p_BA = super().forward(state_BAD) * 0
        whole = state_BAD.shape[1] == self.early_BT.shape[1]
        return p_BA + self.early_BT.to(p_BA) if whole else p_BA


def build(size: Size, kind: str, **options: Any) -> Seq2Seq:
    """Build a model with an encoder of the given kind."""
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        vocab_size=64,
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_attention_heads=size.heads,
        encoder_attention={"kind": kind},
        decoder_layers=1,
        dropout=0.0,
        **options,
    )
    return Seq2Seq(config)


def chosen(size: Size, share: float) -> Tensor:
    """Draw the given share of tokens in every row."""
    count = round(share * size.length)
    order_BT = torch.rand(ROWS, size.length).argsort(1)
    return order_BT < count


def passes(run: Callable[[Tensor], Tensor], x_BTD: Tensor, *, train: bool) -> float:
    """Return the seconds of one pass."""
    start = time.thread_time()
    if train:
        torch.autograd.backward(run(x_BTD.requires_grad_()).sum())
    else:
        with torch.inference_mode():
            run(x_BTD)
    return time.thread_time() - start


def compare(
    runs: dict[str, Callable[[Tensor], Tensor]], size: Size, *, train: bool
) -> dict[str, float]:
    """Return the minimum seconds of each, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(size.turns + 1):
        for name, run in runs.items():
            x_BTD = torch.randn(ROWS, size.length, size.width)
            times[name].append(passes(run, x_BTD, train=train))
    return {name: min(taken[1:]) for name, taken in times.items()}


def halting_runs(size: Size, kind: str) -> dict[str, Callable[[Tensor], Tensor]]:
    """A shared layer without halting, and with a share of the tokens halted."""
    encoder = build(size, kind, depth="shared", encoder_layers=STEPS).encoder
    assert isinstance(encoder, SharedStack)
    positions = Positions.upto(size.length, torch.device("cpu"))
    runs: dict[str, Callable[[Tensor], Tensor]] = {"plain": lambda x: encoder(x, positions)}
    for share in SHARES:
        unit = Chosen(size.width, chosen(size, share))
        stack = HaltingStack(encoder.blocks[0], STEPS, unit, norm=nn.LayerNorm(size.width))
        runs[str(share)] = lambda x, stack=stack: stack(x, positions)  # type: ignore[misc]
    return runs


def skipping_runs(size: Size) -> dict[str, Callable[[Tensor], Tensor]]:
    """One layer with all tokens, and without a share of them."""
    encoder = build(size, "full", encoder_layers=1).encoder
    stack = SkippingStack(encoder.blocks, None, norm=nn.LayerNorm(size.width))
    positions = Positions.upto(size.length, torch.device("cpu"))
    runs: dict[str, Callable[[Tensor], Tensor]] = {"plain": lambda x: encoder(x, positions)}
    for share in SHARES:
        active_BT = ~chosen(size, share)
        runs[str(share)] = lambda x, active_BT=active_BT: stack(  # type: ignore[misc]
            x, positions, active_BT=active_BT
        )
    return runs


def rows(
    runs: dict[str, Callable[[Tensor], Tensor]], size: Size, steps: int, what: str
) -> list[dict[str, Any]]:
    """Measure a set of runs, print one line per share, and return them."""
    found = []
    for train in (False, True):
        seconds = compare(runs, size, train=train)
        for share in SHARES:
            saved = 1 - seconds[str(share)] / seconds["plain"]
            ideal = share * (steps - 1) / steps if steps > 1 else share
            row = {
                "what": what,
                "pass": "training" if train else "whole",
                "left_out": share,
                "seconds": round(seconds[str(share)], 4),
                "plain_seconds": round(seconds["plain"], 4),
                "saved": round(saved, 3),
                "ideal": round(ideal, 3),
            }
            found.append(row)
            cells = (what, str(row["pass"]), f"{share:.0%}", f"{saved:.0%}", f"{ideal:.0%}")
            print("| " + " | ".join(cells) + " |", flush=True)
    return found


def main() -> None:
    """Print one line per share; write all if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller layer and fewer turns")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size = QUICK if arguments.quick else FULL
    print(f"torch {torch.__version__}, one thread, float32, {size}, {ROWS} row(s)")
    print("| | pass | left out | saved | ideal |\n|---|---|---|---|---|")
    found = rows(skipping_runs(size), size, 1, "skipping, full")
    for kind in KINDS:
        found += rows(halting_runs(size, kind), size, STEPS, f"halting, {kind}")
    if arguments.json:
        result = {"torch": torch.__version__, **size._asdict(), "rows": ROWS, "steps": STEPS}
        result["measured"] = found
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
