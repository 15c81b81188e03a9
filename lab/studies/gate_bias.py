"""Initial bias of the gates of `residual: gru`: distance from identity, and speed of learning.

    python lab/studies/gate_bias.py --json FILE

Two figures per bias: how much a new layer changes an input of unit variance, and whether a small
model learns to repeat 16 symbols (`w # w`, the second w is scored), over several seeds.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig
from outrider.torch.nn.layer.residual import GATE_BIAS
from outrider.torch.nn.loss import IGNORED
from outrider.torch.nn.position import Positions

BIASES = (0.0, 1.0, 2.0, 4.0, 6.0, GATE_BIAS)
VOCABULARY, SYMBOLS, ROWS = 23, 16, 16
START, SEPARATOR, FIRST = 3, 2, 4
RATE, WARMUP = 2e-3, 30
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "dropout": 0.0,
}


def gated(bias: float | None) -> dict[str, Any]:
    """Return the config keys of a model with this gate bias; None for a model without gates."""
    return {} if bias is None else {"residual": "gru", "gate_bias": bias}


@torch.no_grad()
def distance(bias: float, *, cross: bool) -> float:
    """Return |layer(x) - x| / |x| of a new decoder layer."""
    torch.manual_seed(0)
    kind, config = (Seq2Seq, Seq2SeqConfig) if cross else (LanguageModel, LanguageModelConfig)
    block = kind(config(**SIZES, **gated(bias))).eval().decoder.blocks[0]
    x_BTD = torch.randn(4, 64, SIZES["hidden_size"])
    source = None
    if block.cross is not None:
        source = block.cross.source(torch.randn(4, 32, SIZES["hidden_size"]), None)
    y_BTD = block(x_BTD, Positions.upto(64, x_BTD.device), None, source)
    return float((y_BTD - x_BTD).norm() / x_BTD.norm())


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return rows `w # w` after a start token, and labels of the second w."""
    word = torch.randint(FIRST, VOCABULARY, (ROWS, SYMBOLS), generator=generator)
    start, middle = (torch.full((ROWS, 1), token) for token in (START, SEPARATOR))
    tokens_BT = torch.cat([start, word, middle, word], dim=1)
    labels_BT = tokens_BT.clone()
    labels_BT[:, : SYMBOLS + 2] = IGNORED
    return tokens_BT, labels_BT


def learn(bias: float | None, *, seed: int, steps: int, every: int) -> list[float]:
    """Train one model; return its loss at regular intervals."""
    torch.manual_seed(seed)
    config = LanguageModelConfig(**SIZES, layers=3, position="rotary", **gated(bias))
    model = LanguageModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator, losses = torch.Generator().manual_seed(seed), []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / WARMUP)
        tokens_BT, labels_BT = batch(generator)
        loss = model(input_ids=tokens_BT, labels=labels_BT).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0:
            losses.append(float(loss.detach()))
    return losses


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for bias in (None, *BIASES):
        row: dict[str, Any] = {"gate_bias": bias}
        if bias is not None:
            row["distance"] = distance(bias, cross=False)
            row["distance_with_cross"] = distance(bias, cross=True)
        row["losses"] = [
            learn(bias, seed=seed, steps=options.steps, every=options.every)
            for seed in range(options.seeds)
        ]
        rows.append(row)
        print(row, flush=True)
    result = {"task": "gate bias", "steps": options.steps, "every": options.every, "rows": rows}
    result |= {"machine": machine(), "versions": versions()}
    if options.json is not None:
        write_result(options.json, result)


if __name__ == "__main__":
    main()
