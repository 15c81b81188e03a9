"""Could a large head be screened in fewer bits, with the likeliest word proven the same?

    python benchmarks/head_screen.py MODEL --source FILE --json FILE

The head is most of a step of a model with 65,000 words. A screen reads only the leading bits of
every weight, w = step h + l, and by Cauchy and Schwarz a word's score is at most that of h plus
|l| |x|; words whose bound lies below the best score found need not be read again. Scored are the
states of MODEL, greedy, in int8 as the native core has them; counted are the panels of 16 words
that would have to be read whole after all, for screens of several bits.
"""

import argparse
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import outrider
from outrider.data.lines import open_lines
from outrider.evaluation.results import machine, versions, write_result
from outrider.runtime import Translator

PANEL = 16
STATES = 60
"""Of all states that the lines make, drawn by a seed."""


def states_of(model: Any, translator: Translator, lines: list[str]) -> np.ndarray:
    """Let a model translate, and return what its head was given."""
    seen: list[Tensor] = []
    score = model.logits

    def watched(hidden: Tensor) -> Tensor:
        seen.append(hidden.detach().flatten(0, -2))
        scores: Tensor = score(hidden)
        return scores

    model.logits = watched
    translator.translate(lines)
    found = torch.cat(seen).numpy()
    drawn = np.random.default_rng(0).choice(len(found), min(STATES, len(found)), replace=False)
    return np.asarray(found[drawn])


def to_bytes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round each row to bytes of its own scale."""
    scale = np.abs(rows).max(1) / 127
    scale[scale == 0] = 1
    return np.rint(rows / scale[:, None]).astype(np.int32), scale


def screen(head: np.ndarray, bias: np.ndarray, states: np.ndarray, bits: int) -> list[float]:
    """Return for every state the share of panels that a screen of so many bits leaves."""
    (weights, scales), (rows, steps) = to_bytes(head), to_bytes(states)
    step = 1 << (8 - bits)
    high = np.clip(np.rint(weights / step), -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    high = high.astype(np.int32)
    rest = np.sqrt(((weights - step * high) ** 2).sum(1))
    left = []
    for row, one in zip(rows, steps, strict=True):
        worth = scales * one
        rough, exact = step * (high @ row), weights @ row
        bound = (rough + np.ceil(rest * np.sqrt((row**2).sum())) + 1) * worth + bias
        best = (exact * worth + bias)[np.argmax(rough * worth + bias)]  # known after the screen
        panels = np.pad(bound, (0, -len(bound) % PANEL), constant_values=-np.inf)
        left.append(float((panels.reshape(-1, PANEL).max(1) >= best).mean()))
    return left


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=6)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    translator = outrider.load(given.model, backend="torch", dtype="float32")
    assert isinstance(translator, Translator)
    model: Any = translator.backend.model  # type: ignore[attr-defined]
    with open_lines(given.source) as lines:
        texts = [line.decode() for line in islice(lines, given.lines)]
    states = states_of(model, translator, texts)
    bias = model.logits_bias
    head = model.head_weight.detach().numpy()
    added = np.zeros(len(head)) if bias is None else bias.detach().numpy().reshape(-1)
    rows = []
    for bits in (4, 5, 6):
        left = screen(head, added, states, bits)
        rows.append({"bits": bits, "panels_left": float(np.mean(left)), "worst": max(left)})
        print(rows[-1], flush=True)
    result = {"task": "screening the head", "words": len(head), "states": len(states)}
    write_result(given.json, result | {"rows": rows, "machine": machine(), "versions": versions()})


if __name__ == "__main__":
    main()
