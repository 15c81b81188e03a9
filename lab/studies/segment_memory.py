"""Perplexity with and without a segment memory, and time relative to a sliding window.

    python lab/studies/segment_memory.py --memory runs/wikitext2-xl/model \
        --plain runs/wikitext2-plain/model --text wikitext2/test.tokens.txt.gz --json FILE

Both models predict the whole text; the plain one once without overlap, at equal cost, and once in
windows that overlap by half, at twice the cost. A part of it is predicted again in two ways, in
turns: with the memory, and with one window per token (many windows per batch, the head applied to
the last position only). A window has the mean number of tokens that a token of a segment sees: the
memory and half a segment.
"""

import argparse
import math
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from outrider.data.lines import read_text
from outrider.runtime.provenance import machine, origin, versions, write_result
from outrider.text.tokenizer import load_tokenizer
from outrider.torch.evaluation.likelihood import (
    LikelihoodScore,
    evaluate_text,
    score_segments,
    score_text,
)
from outrider.torch.models import LanguageModel, load_model

WINDOWS = 16
"""Windows in one batch; more are not faster on a CPU."""


def score(
    model: LanguageModel, tokens: list[int], text: str, *, start: int, memory: int
) -> LikelihoodScore:
    """Predict the whole text with a memory of the given length."""
    return score_segments(
        model,
        tokens,
        start=start,
        characters=len(text),
        words=len(text.split()) + text.count("\n"),
        segment=model.config.max_positions,
        memory=memory,
    )


def read_once(
    folder: Path, tokens: list[int], text: str, *, start: int
) -> dict[str, float | int | None]:
    """Predict the whole text without a memory and without overlap."""
    model = load_model(folder).eval()
    found = score_text(
        model,
        tokens,
        start=start,
        characters=len(text),
        words=len(text.split()) + text.count("\n"),
        context=model.config.max_positions,
        overlap=0,
    )
    return asdict(found)


@torch.inference_mode()
def slide(model: LanguageModel, ids: torch.Tensor, *, window: int) -> float:
    """Nats of every token with a whole window before it, from one pass per token."""
    windows_NW, targets_N = ids[:-1].unfold(0, window, 1), ids[window:]
    nats = 0.0
    for inputs, targets in zip(windows_NW.split(WINDOWS), targets_N.split(WINDOWS), strict=True):
        logits = model.logits(model.hidden(inputs)[:, -1])
        nats += float(F.cross_entropy(logits.float(), targets, reduction="sum"))
    return nats


@torch.inference_mode()
def remember(model: LanguageModel, ids: torch.Tensor, *, skip: int) -> float:
    """Nats of the tokens from `skip` on, segment by segment."""
    segment, known, nats = model.config.max_positions, model.new_memory(1), 0.0
    for begin in range(0, len(ids) - 1, segment):
        end = min(begin + segment, len(ids) - 1)
        hidden, known = model.read_segment(ids[None, begin:end], known)
        first = max(begin, skip - 1)
        if first < end:
            logits = model.logits(hidden[0, first - begin :])
            targets = ids[first + 1 : end + 1]
            nats += float(F.cross_entropy(logits.float(), targets, reduction="sum"))
    return nats


def race(model: LanguageModel, tokens: list[int], *, start: int, rounds: int) -> dict[str, Any]:
    """Time both variants in turns on the same tokens."""
    window = model.config.memory + model.config.max_positions // 2
    ids = torch.tensor([start, *tokens])
    count = len(ids) - window
    seconds: dict[str, list[float]] = {"sliding_window": [], "memory": []}
    nats = {"sliding_window": 0.0, "memory": 0.0}
    for _ in range(rounds):
        began = time.perf_counter()
        nats["sliding_window"] = slide(model, ids, window=window)
        seconds["sliding_window"].append(time.perf_counter() - began)
        began = time.perf_counter()
        nats["memory"] = remember(model, ids, skip=window)
        # This pass also reads the tokens before the first predicted one.
        seconds["memory"].append((time.perf_counter() - began) * count / len(tokens))
    times = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "tokens": count,
        "window": window,
        "rounds": rounds,
        **{
            name: {
                "milliseconds_per_token": 1000 * times[name] / count,
                "perplexity": math.exp(nats[name] / count),
            }
            for name in times
        },
        "speedup": times["sliding_window"] / times["memory"],
    }


def main() -> None:
    """Compare two model folders on one text."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--memory", type=Path, required=True, help="model with a memory")
    parser.add_argument("--plain", type=Path, required=True, help="model without a memory")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--sample", type=int, default=1200, help="tokens of the timed comparison")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model, tokenizer = load_model(options.memory).eval(), load_tokenizer(options.memory)
    text = read_text(options.text)
    tokens, start = tokenizer.encode(text), tokenizer.bos_id
    size, segment = model.config.memory, model.config.max_positions
    result: dict[str, Any] = {
        "task": "segment memory",
        "segment": segment,
        "memory": size,
        "parameters": sum(one.numel() for one in model.parameters()),
        "plain": {
            "windows_side_by_side": read_once(options.plain, tokens, text, start=start),
            "windows_overlapping": evaluate_text(options.plain, text=options.text)["scores"],
        },
        "with_memory": {
            str(memory): asdict(score(model, tokens, text, start=start, memory=memory))
            for memory in (0, size, 2 * size, 3 * size)
        },
        "race": race(model, tokens[: options.sample], start=start, rounds=options.rounds),
        "origin": {
            "memory": origin(options.memory, text=options.text),
            "plain": origin(options.plain, text=options.text),
        },
        "machine": machine(),
        "versions": versions(),
    }
    show(result)
    if options.json is not None:
        write_result(options.json, result)


def show(result: dict[str, Any]) -> None:
    """Print the main figures."""
    for way, scores in result["plain"].items():
        name = way.replace("_", " ")
        print(f"plain, {name}: perplexity per word {scores['perplexity_per_word']:.2f}")
    for memory, scores in result["with_memory"].items():
        print(f"memory {memory}: perplexity per word {scores['perplexity_per_word']:.2f}")
    print(f"a sliding window takes {result['race']['speedup']:.1f} times as long")


if __name__ == "__main__":
    main()
