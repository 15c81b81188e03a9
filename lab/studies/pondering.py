"""Accuracy and time of pondering cells: parity of a single token (Graves, 2016).

    python lab/studies/pondering.py --json FILE

Parity: a token is a vector of 1, -1 and 0; is the number of 1s odd? A GRU with one step is compared
with one that ponders. Time: a pass of a layer in which some tokens halt early, against one in which
all tokens take all steps.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.nn.family.halting import Halting, PonderingConfig, PonderingGru
from outrider.torch.nn.layer.recurrent import Gru
from outrider.torch.nn.position import Positions

BITS, ROWS, RATE = 10, 128, 3e-3
STEPS, PRICE = 8, 1e-3
CELLS = ((1, 32), (1, 96), (STEPS, 32))
"""Steps and width. One step at width 96 has the products of nine at width 32."""
TIMED = ((1, 512), (32, 256), (128, 512))
"""Rows and width."""
TOKENS, SPREAD = 32, 0.25


class Parity(nn.Module):
    """One token in, one answer out."""

    def __init__(self, steps: int, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(BITS, width)
        config = PonderingConfig(steps=steps, ponder=PRICE)
        self.cell = Gru(width) if steps == 1 else PonderingGru(width, config)
        self.answer = nn.Linear(width, 1)
        for part in self.modules():
            if isinstance(part, Halting):
                part.reset()

    def forward(self, x_BE: Tensor) -> Tensor:
        """Return the logit of `odd`."""
        x_B1D = self.into(x_BE)[:, None]
        y_B1D = self.cell(x_B1D, Positions.upto(1, x_BE.device))
        return self.answer(y_B1D)[:, 0, 0]


def batch(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors, whether the number of 1s is odd, and the number of nonzero elements."""
    count_B = torch.randint(1, BITS + 1, (rows,), generator=generator)
    order_BE = torch.rand(rows, BITS, generator=generator).argsort(1)
    sign_BE = torch.randint(0, 2, (rows, BITS), generator=generator) * 2 - 1
    x_BE = torch.where(order_BE < count_B[:, None], sign_BE, 0).float()
    return x_BE, (x_BE > 0).sum(1) % 2, count_B


def learn(steps: int, width: int, *, seed: int, updates: int) -> dict[str, Any]:
    """Train one model and test it on new vectors."""
    torch.manual_seed(seed)
    model, generator = Parity(steps, width), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(updates):
        x_BE, odd_B, _ = batch(ROWS, generator)
        loss = F.binary_cross_entropy_with_logits(model(x_BE), odd_B.float())
        if isinstance(model.cell, PonderingGru):
            price = model.cell.penalty()
            assert price is not None
            loss = loss + price
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x_BE, odd_B, count_B = batch(4096, torch.Generator().manual_seed(1 << 20))
    with torch.no_grad():
        right_B = (model.eval()(x_BE) > 0).long() == odd_B
    found: dict[str, Any] = {"right": float(right_B.float().mean())}
    levels = range(1, BITS + 1)
    found["right_by_count"] = [float(right_B[count_B == n].float().mean()) for n in levels]
    if isinstance(model.cell, PonderingGru) and model.cell.pondered is not None:
        taken_B = model.cell.pondered.steps_BT[:, 0]
        found["steps"] = float(taken_B.mean())
        found["steps_by_count"] = [float(taken_B[count_B == n].mean()) for n in levels]
    return found


def timed(rows: int, width: int, *, rounds: int) -> dict[str, float]:
    """Return the share of skipped steps, and the share of saved time."""
    torch.manual_seed(0)
    layer = PonderingGru(width, PonderingConfig(steps=STEPS)).eval()
    x_BTD = torch.randn(rows, TOKENS, width)
    positions = Positions.upto(TOKENS, x_BTD.device)

    def run(spread: float) -> float:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            layer.halting.weight_D.normal_(std=1.0, generator=generator).mul_(spread)
            layer.halting.bias.fill_(-20.0 if not spread else 0.0)
            begin = time.perf_counter()
            layer(x_BTD, positions)
        return time.perf_counter() - begin

    run(0.0)
    pairs = [(run(0.0), run(SPREAD)) for _ in range(rounds)]
    assert layer.pondered is not None
    left_out = 1 - float(layer.pondered.steps_BT.mean()) / STEPS
    saved = statistics.median(1 - less / whole for whole, less in pairs)
    return {"rows": rows, "width": width, "left_out": left_out, "saved": saved}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"task": "pondering", "updates": options.updates, "bits": BITS}
    result["parity"] = []
    for steps, width in CELLS:
        seeds = [learn(steps, width, seed=n, updates=options.updates) for n in range(options.seeds)]
        result["parity"].append({"steps": steps, "width": width, "seeds": seeds})
        print(result["parity"][-1], flush=True)
    result["time"] = [timed(rows, width, rounds=7) for rows, width in TIMED]
    print(result["time"], flush=True)
    result |= {"machine": machine(), "versions": versions()}
    if options.json is not None:
        write_result(options.json, result)


if __name__ == "__main__":
    main()
