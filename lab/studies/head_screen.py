"""Share of a large head that is computed after a first pass in four bits, for four variants.

    python lab/studies/head_screen.py MODEL --source FILE --json FILE

The head takes most of a step of a model with 65,000 tokens. The native core first reads it in four
bits, which bounds the score of every token (`native/src/screen.h`), and computes only panels of 16
tokens that may contain the argmax. This study counts the remaining panels: with one scale per
token, with one scale per 64 columns, with weights rotated to the principal axes of the head, and
with scales of minimum error. States are those of MODEL, greedy, in int8 as in the core. Then the
core translates with and without the screen, in turns, one line at a time on one thread
(`OUTRIDER_ISA` selects the instruction set); both texts must be equal.
"""

import argparse
import os
import tempfile
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

import outrider
from outrider.backends import native_parts
from outrider.backends.native import choose_instruction_set
from outrider.data.lines import open_lines
from outrider.runtime import Translator
from outrider.runtime.provenance import machine, versions, write_result

PANEL = 16
GROUP = 64
LEVELS = 8
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6)
"""Candidate scales, relative to the one without clipping."""
STATES = 200
"""Sampled from all states of the lines."""
TURNS = 5
FIRST = 8
"""Panels with the largest bounds, whose best score is computed first."""


def states_of(model: Any, translator: Translator, lines: list[str]) -> np.ndarray:
    """Translate with the model and return the inputs of its head."""
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


def in_bytes(rows: np.ndarray) -> np.ndarray:
    """Quantise each row to int8 with its own scale, and dequantise it."""
    scale = np.abs(rows).max(1, keepdims=True) / 127
    scale[scale == 0] = 1
    return np.asarray(np.rint(rows / scale) * scale)


def in_four_bits(groups: np.ndarray, shares: tuple[float, ...]) -> np.ndarray:
    """Quantise groups (the last axis) to four bits with the scale of minimum error."""
    top = np.abs(groups).max(-1, keepdims=True) / (LEVELS - 0.5)
    top[top == 0] = 1
    best, least = groups, np.full(groups.shape[:-1], np.inf)
    for share in shares:
        scale = top * share
        some = np.clip(np.rint(groups / scale), -LEVELS, LEVELS - 1) * scale
        lost = ((groups - some) ** 2).sum(-1)
        best = np.where((lost < least)[..., None], some, best)
        least = np.minimum(lost, least)
    return best


def panels(scores: np.ndarray) -> np.ndarray:
    """Return the maximum of every panel."""
    padded = np.pad(scores, ((0, 0), (0, -scores.shape[1] % PANEL)), constant_values=-np.inf)
    return np.asarray(padded.reshape(len(scores), -1, PANEL).max(-1))


def panels_left(
    head: np.ndarray,
    bias: np.ndarray,
    states: np.ndarray,
    group: int,
    shares: tuple[float, ...],
) -> np.ndarray:
    """Return for every state the share of panels that remain after the screen."""
    words, rows = (part.reshape(len(part), -1, group) for part in (head, states))
    rough = in_four_bits(words, shares)
    rest = np.sqrt(((words - rough) ** 2).sum(-1))
    bound = panels(
        states @ rough.reshape(head.shape).T + bias + np.sqrt((rows**2).sum(-1)) @ rest.T
    )
    exact = panels(states @ head.T + bias)
    first = np.argsort(-bound, 1)[:, :FIRST]
    known = np.take_along_axis(exact, first, 1).max(1, keepdims=True)
    return np.asarray((bound >= known).mean(1))


def seconds(model: str, lines: list[str]) -> dict[str, float]:
    """Return the seconds for all lines with and without a screen, as medians of turns."""
    size, cores = native_parts.SCREENED_BYTES, {}
    with tempfile.TemporaryDirectory() as empty:
        for name, least in (("screened", size), ("whole", 1 << 60)):
            native_parts.SCREENED_BYTES = least
            os.environ["OUTRIDER_CACHE"] = str(Path(empty, name))
            cores[name] = outrider.load(model, backend="native", threads=1)
    native_parts.SCREENED_BYTES = size
    turns: dict[str, list[float]] = {name: [] for name in cores}
    said = {}
    for _ in range(TURNS):
        for name, core in cores.items():
            assert isinstance(core, Translator)
            began = perf_counter()
            said[name] = [core.translate(line) for line in lines]
            turns[name].append(perf_counter() - began)
    if said["screened"] != said["whole"]:
        raise SystemExit("the texts are not the same")
    return {name: median(found) for name, found in turns.items()}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=24)
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
    head, states = in_bytes(head), in_bytes(states)
    turned = np.linalg.eigh(head.T @ head)[1][:, ::-1]
    width, rows = head.shape[1], []
    for name, basis, group, shares in (
        ("one scale a word", np.eye(width), width, SHARES[:1]),
        ("a scale for 64 places", np.eye(width), GROUP, SHARES[:1]),
        ("main directions", turned, GROUP, SHARES[:1]),
        ("and the best of five scales", turned, GROUP, SHARES),
    ):
        left = panels_left(head @ basis, added, states @ basis, group, shares)
        rows.append({"screen": name, "mean": left.mean(), "median": np.median(left)})
        print(f"{name:30} mean {left.mean():.4f}, median {np.median(left):.4f}", flush=True)
    timed = seconds(given.model, texts)
    print(timed | {"whole / screened": timed["whole"] / timed["screened"]})
    result = {
        "task": "screening the head",
        "words": len(head),
        "states": len(states),
        "rows": rows,
        "set": choose_instruction_set(),
        "seconds": timed,
        "machine": machine(),
        "versions": versions(),
    }
    write_result(given.json, result)


if __name__ == "__main__":
    main()
