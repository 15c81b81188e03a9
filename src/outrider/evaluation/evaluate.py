"""Evaluation of a translation model on a test set; the result is reproducible."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outrider.data.lines import text_lines
from outrider.decoding import DecodeConfig
from outrider.errors import ConfigError, DataError, ModelError
from outrider.evaluation.metrics import check_metrics, find_comet, score, score_comet
from outrider.files import write_text
from outrider.runtime.load import load
from outrider.runtime.provenance import origin
from outrider.runtime.translator import Translator

_WINDOW = 512
"""Lines translated between two updates of the progress bar."""


def evaluate_translation(
    folder: Path,
    *,
    source: Path,
    reference: Path,
    decode: DecodeConfig,
    metrics: Sequence[str] = ("bleu", "chrf"),
    tokenize: str = "auto",
    split: bool | None = None,
    dtype: str | None = "float32",
    comet: str | None = None,
    output: Path | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Translate `source` line by line, score it against `reference`, and write it to `output`.

    As in `Translator.translate`, lines are translated sentence by sentence unless `split` is False,
    or None for a model trained on whole lines; scores are by lines. `metrics` are those of
    `evaluation.metrics`, `dtype` is as in `load`, and `comet` names a model of COMET.
    """
    check_metrics(metrics)
    if output is not None and output.exists():
        for path in (source, reference):
            if path.exists() and output.samefile(path):
                raise ConfigError("--output", f"{output} is {path} itself; choose another file")
    if comet is not None:
        find_comet()
    sources, references = text_lines(source), text_lines(reference)
    if len(sources) != len(references):
        raise DataError(
            f"{source} has {len(sources)} lines and {reference} has {len(references)}; "
            "line n of one must be the translation of line n of the other"
        )
    translator = load(folder, dtype=dtype)
    if not isinstance(translator, Translator):
        raise ModelError(f"{folder}: is a language model; test it with --text instead of --source")
    began = time.monotonic()
    translations = []
    for start in range(0, len(sources), _WINDOW):
        window = sources[start : start + _WINDOW]
        translations += translator.translate(window, split=split, **decode.given)
        advance(min(_WINDOW, len(sources) - start))
    seconds = time.monotonic() - began
    if output is not None:
        write_text(output, "".join(f"{_one_line(text)}\n" for text in translations))
    scores = score(metrics, translations, references, tokenize=tokenize)
    if comet is not None:
        scores["comet"] = score_comet(sources, translations, references, model=comet)
        scores["comet_model"] = comet
    return {
        "task": "translation",
        "scores": scores,
        "decode": decode.given,
        "split": translator.split if split is None else split,
        "dtype": dtype,
        "seconds": round(seconds, 2),
        "sentences_per_second": round(len(sources) / max(seconds, 1e-9), 2),
        **origin(folder, source=source, reference=reference),
    }


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
