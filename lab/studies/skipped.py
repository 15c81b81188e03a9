"""Share of tokens that a model with `skip` leaves out, by threshold.

    python lab/studies/skipped.py MODEL --source FILE --json FILE

A token is left out if its count in training is less than `below` times the vocabulary size. The
counts are those saved in the model.
"""

import argparse
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from outrider.data.lines import text_lines
from outrider.decoding import DecodeConfig
from outrider.runtime import Translator, load
from outrider.runtime.provenance import origin, write_result
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Seq2Seq
from outrider.torch.nn.family.skip import Router

BELOW = (0.0005, 0.002, 0.005, 0.01, 0.02, 0.05)


def measure(translator: Translator, lines: list[str]) -> list[dict[str, Any]]:
    """Count the tokens of all sources, including end tokens."""
    backend = translator.backend
    assert isinstance(backend, TorchBackend)
    model = backend.model
    if not isinstance(model, Seq2Seq) or model.router is None:
        raise SystemExit("this model skips nothing: it has no `skip`")
    requests = chain.from_iterable(translator.requests(lines, DecodeConfig(), split=False))
    ids_T = torch.tensor([token for request in requests for token in request.source])
    rows = []
    for below in BELOW:
        router = Router(len(model.router.count_V), below=below)
        router.set_counts(model.router.count_V)
        left_out = float((~router(ids_T[None], None)).float().mean())
        rows.append({"below": below, "least": router.least, "left_out": left_out})
    return rows


def main() -> None:
    """Print one line per threshold; write all if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    lines = text_lines(arguments.source)
    translator = load(arguments.model, backend="torch")
    assert isinstance(translator, Translator)
    rows = measure(translator, lines)
    print("| below | occurrences | left out |\n|---:|---:|---:|")
    for row in rows:
        print(f"| {row['below']:g} | {row['least']:,} | {row['left_out']:.2%} |")
    if arguments.json:
        about = origin(arguments.model, source=arguments.source)
        write_result(arguments.json, {**about, "lines": len(lines), "measured": rows})


if __name__ == "__main__":
    main()
