"""Quality and time of greedy decoding, beams, and the best of several samples.

    python lab/studies/strategies.py MODEL --source test.zh --reference test.en --json FILE

BLEU, chrF and time of each, on the native core in int8, one thread. Tandem decoding gives the
greedy text and samples faster; beam search cannot be drafted.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from outrider.data.lines import text_lines
from outrider.evaluation.metrics import score_translations
from outrider.files.hub import model_folder
from outrider.runtime import Translator, load
from outrider.runtime.provenance import origin, write_result

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam 4": {"beams": 4},
    "drawn, best of 8": {"temperature": 0.5, "candidates": 8, "seed": 1},
}


def main() -> None:
    """Print one row per strategy, and write all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--lines", type=int, help="use only the first lines")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = model_folder(options.model)
    sources, references = (
        text_lines(path)[: options.lines] for path in (options.source, options.reference)
    )
    model = load(folder, dtype="int8", threads=1)
    assert isinstance(model, Translator)
    rows = []
    for name, settings in WAYS.items():
        began = time.perf_counter()
        texts = model.translate(sources, split=False, **settings)
        seconds = time.perf_counter() - began
        score = score_translations(texts, references)
        row = {"way": name, "settings": settings, "seconds": round(seconds, 1)}
        rows.append({**row, "bleu": round(score.bleu, 2), "chrf": round(score.chrf, 2)})
        print(rows[-1], flush=True)
    if options.json is not None:
        about = origin(folder, source=options.source, reference=options.reference)
        result = {"task": "strategies", "lines": len(sources), "rows": rows}
        write_result(options.json, {**result, **about})


if __name__ == "__main__":
    main()
