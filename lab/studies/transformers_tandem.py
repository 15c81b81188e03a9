"""Greedy `generate` of transformers, without and with the drafter of a folder, in turns.

    python lab/studies/transformers_tandem.py demo/en-de --source test.en.gz --json FILE

The model of the folder is exported as transformers' `MarianMTModel`. Both decode the same batches
with the same options on the same threads, and every token is compared. Prints seconds for all
sentences, the median of several turns, and their ratio.
"""

import argparse
import gzip
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import MarianMTModel

from outrider.runtime.provenance import machine, versions
from outrider.text.tokenizer import load_tokenizer
from outrider.torch.export import to_marian
from outrider.torch.models import Seq2Seq, load_model
from outrider.torch.transformers import Tandem, tandem


def main() -> None:
    """Measure, compare, print, and write a file if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=100)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [
        measure(arguments.folder, lines(arguments.source, arguments.lines), size, arguments.turns)
        for size in arguments.batches
    ]
    for row in rows:
        print(
            f"batch {row['batch']}: generate {row['plain']:.2f} s, tandem {row['tandem']:.2f} s, "
            f"{row['times']:.2f} times as fast; {row['identical']} of {row['sentences']} identical"
        )
    if arguments.json:
        result = {
            "model": arguments.folder.name,
            "source": arguments.source.name,
            "threads": arguments.threads,
            "turns": arguments.turns,
            "rows": rows,
            "machine": machine(),
            "versions": versions(),
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def lines(path: Path, count: int) -> list[str]:
    """Return the first lines of a text, gzipped or not."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return [line.strip() for line in text.splitlines()[:count]]


def measure(folder: Path, texts: list[str], size: int, turns: int) -> dict[str, Any]:
    """Decode all texts in batches of one size, in turns with and without drafts."""
    ours = load_model(folder)
    assert isinstance(ours, Seq2Seq)
    model = to_marian(ours)
    batches = encode(folder, model, texts, size)
    decode = tandem(folder)
    answers = [run(model, batches, one)[1] for one in (None, decode)]  # warm-up of both
    seconds: dict[str, list[float]] = {"plain": [], "tandem": []}
    for _ in range(turns):
        for name, one in (("plain", None), ("tandem", decode)):
            seconds[name].append(run(model, batches, one)[0])
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    same = sum(a == b for a, b in zip(*answers, strict=True))
    times = medians["plain"] / medians["tandem"]
    return {"batch": size, "sentences": len(texts), "identical": same, **medians, "times": times}


def encode(
    folder: Path, model: MarianMTModel, texts: list[str], size: int
) -> list[dict[str, torch.Tensor]]:
    """Return batches in the format of transformers, padded on the right."""
    tokenizer, config = load_tokenizer(folder), model.config
    end, pad = config.eos_token_id, config.pad_token_id
    rows = [[*ids, end] for ids in tokenizer.encode_batch(texts)]
    batches = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        longest = max(map(len, part))
        ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in part])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in part])
        batches.append({"input_ids": ids, "attention_mask": mask})
    return batches


def run(
    model: MarianMTModel, batches: list[dict[str, torch.Tensor]], decode: Tandem | None
) -> tuple[float, list[list[int]]]:
    """Return the seconds for all batches, and the tokens of every row without padding."""
    started, found = time.perf_counter(), []
    for batch in batches:
        tokens = model.generate(**batch, num_beams=1, max_length=128, custom_generate=decode)
        found += tokens.tolist()
    seconds = time.perf_counter() - started
    pad = model.config.pad_token_id
    return seconds, [[token for token in row if token != pad] for row in found]


if __name__ == "__main__":
    main()
