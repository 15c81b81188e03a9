"""Decode speed: our greedy loop against transformers' own `generate` on the same weights.

Both engines run in one process with the same threads, on the same batches, in turn, so that
whatever else the machine does hits both. Every repeat also compares the tokens: a speed counts only
if the output is the same. The peer gets its best setting: cache, inference mode, no processors.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from transformers import MarianMTModel

from outrider.backends.torch import TorchBackend
from outrider.decoding import Backend, DecodeConfig, Request, greedy
from outrider.evaluation.results import machine, versions
from outrider.models import Seq2Seq, Seq2SeqConfig
from outrider.models.marian import to_marian

__all__ = ["SENTENCES", "Workload", "decode_speed", "random_base", "random_workload"]

Tokens = list[tuple[int, ...]]

SENTENCES = (
    "Two young men are playing football on the beach.",
    "A woman in a red coat is waiting for the bus.",
    "The children laughed when the dog ran into the water.",
    "Where is the nearest station, please?",
    "An old man sits on a bench and reads a newspaper.",
    "The train to the coast leaves at a quarter past nine.",
    "A group of people stand in front of a large white building.",
    "He opened the window because it was very hot in the room.",
)
"""What a model translates when no source file is given."""


@dataclass(frozen=True)
class Workload:
    """What both engines decode."""

    sources: Sequence[Sequence[int]]
    """Token ids, end token included."""
    max_new_tokens: int | None = None
    """Tokens each row gets at most; None allows 3 for each of the source and 30 more."""


def random_base(seed: int = 0) -> Seq2Seq:
    """Build a 6+6-layer Marian-shaped model, width 512, 16000 words, that never ends a sentence."""
    torch.manual_seed(seed)
    config = Seq2SeqConfig(
        vocab_size=16_000, norm="post", activation="silu", logits_bias=True, dropout=0.0
    )
    model = Seq2Seq(config).eval()
    assert model.logits_bias is not None
    with torch.no_grad():
        # At plain random weights every output is one word repeated; so that comparing tokens means
        # something, let what tells positions and words apart outweigh what averages over them.
        for name, weight in model.decoder.named_parameters():
            if weight.dim() > 1:
                weight.mul_(8.0 if ".feedforward." in name else 0.3)
        model.logits_bias[[config.eos_token_id, config.pad_token_id]] = -1e4
    return model


def random_workload(vocab_size: int, eos: int, *, rows: int = 32, length: int = 32) -> Workload:
    """Draw sources of `length` tokens; as many are to be written."""
    numbers = torch.Generator().manual_seed(1)
    words = torch.randint(4, vocab_size, (rows, length - 1), generator=numbers)
    return Workload([[*row, eos] for row in words.tolist()], max_new_tokens=length)


def decode_speed(
    model: Seq2Seq,
    workload: Workload,
    *,
    batches: Sequence[int] = (1, 8, 32),
    rounds: int = 8,
    repeats: int = 7,
    seconds: float = 60.0,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Measure both engines at every batch size; the median of the repeats counts.

    Args:
        model: An encoder-decoder that Marian's classes can hold.
        workload: The sources.
        batches: Batch sizes.
        rounds: Batches decoded at each size, as far as there are sources for them.
        repeats: Times each engine decodes everything, after one run to warm up.
        seconds: Stop repeating a batch size after this long, but not before the second time.
        advance: Called after each repeat, for a progress bar.
    """
    backend, twin = TorchBackend(model, frozen=True), to_marian(model)
    rows, differing = [], {}
    for size in batches:
        chunks = _chunks(workload, size, rounds)
        ours, theirs, wrong = _measure(backend, twin, chunks, repeats, seconds, advance)
        count = sum(len(sources) for sources, _ in chunks)
        for engine, spent in (("outrider", ours), ("transformers", theirs)):
            rows.append(
                {
                    "engine": engine,
                    "mode": "greedy",
                    "batch": size,
                    "sentences_per_second": round(count / spent, 3),
                    "ratio_to_hf_generate": round(theirs / spent, 3),
                    "identical": wrong == 0,
                }
            )
        differing[str(size)] = f"{wrong} of {count}"
    return {
        "rows": rows,
        "sentences_that_differ": differing,
        "dtype": str(model.dtype).removeprefix("torch."),
        "machine": machine(),
        "versions": versions(),
    }


Chunk = tuple[list[Sequence[int]], int]
"""The sources of one batch and the most tokens each may get."""


def _chunks(workload: Workload, size: int, rounds: int) -> list[Chunk]:
    """Cut the workload into batches of like lengths, repeating sources if there are too few."""
    available = list(workload.sources)
    while len(available) < size:
        available += workload.sources
    available = sorted(available[: rounds * size], key=len)
    chunks: list[Chunk] = []
    for start in range(0, len(available) - size + 1, size):
        sources = available[start : start + size]
        limit = workload.max_new_tokens or 3 * max(map(len, sources)) + 30
        chunks.append((sources, limit))
    return chunks


def _measure(
    backend: Backend,
    twin: MarianMTModel,
    chunks: list[Chunk],
    repeats: int,
    seconds: float,
    advance: Callable[[], None],
) -> tuple[float, float, int]:
    """Return the median seconds of both engines, and on how many sentences they disagree."""
    ours, theirs, wrong = [], [], 0
    deadline = time.perf_counter() + seconds
    for repeat in range(repeats + 1):
        found, our_time = _timed(lambda: [_ours(backend, *chunk) for chunk in chunks])
        wanted, their_time = _timed(lambda: [_theirs(twin, *chunk, backend) for chunk in chunks])
        if repeat:  # the first is to warm up
            ours.append(our_time)
            theirs.append(their_time)
        pairs = zip(_flat(found), _flat(wanted), strict=True)
        wrong = max(wrong, sum(a != b for a, b in pairs))
        advance()
        if repeat >= 2 and time.perf_counter() > deadline:
            break
    return median(ours), median(theirs), wrong


def _timed(run: Callable[[], list[Tokens]]) -> tuple[list[Tokens], float]:
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def _flat(chunks: list[Tokens]) -> Tokens:
    return [tokens for chunk in chunks for tokens in chunk]


def _ours(backend: Backend, sources: list[Sequence[int]], limit: int) -> Tokens:
    config = DecodeConfig(max_new_tokens=limit)
    return [h.tokens for h in greedy(backend, [Request(source=ids) for ids in sources], config)]


@torch.inference_mode()
def _theirs(
    twin: MarianMTModel, sources: list[Sequence[int]], limit: int, backend: Backend
) -> Tokens:
    longest = max(map(len, sources))
    padded = [[*ids, *[backend.pad] * (longest - len(ids))] for ids in sources]
    keep = [[1] * len(ids) + [0] * (longest - len(ids)) for ids in sources]
    written = twin.generate(
        input_ids=torch.tensor(padded, device=twin.device),
        attention_mask=torch.tensor(keep, device=twin.device),
        max_new_tokens=limit,
        num_beams=1,
        do_sample=False,
        use_cache=True,
    )
    eos = backend.eos
    rows = [row[1:] for row in written.tolist()]  # without the start token
    return [tuple(row[: row.index(eos)] if eos in row else row) for row in rows]
