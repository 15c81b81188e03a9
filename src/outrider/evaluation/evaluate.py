"""Test a model folder on a test set and return a result that can be reproduced from it."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.data.lines import open_file, open_lines
from outrider.data.masking import Masking
from outrider.decoding import DecodeConfig
from outrider.errors import ConfigError, DataError, ModelError
from outrider.evaluation.comet import find_comet, score_comet
from outrider.evaluation.metrics import check_metrics, score
from outrider.evaluation.ngram import NgramModel
from outrider.files import write_text
from outrider.runtime.load import load
from outrider.runtime.origin import origin
from outrider.runtime.translator import Translator
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.mask import add_mask
from outrider.torch.evaluation.likelihood import score_segments, score_text
from outrider.torch.evaluation.masked import score_masked
from outrider.torch.models import LanguageModel, MaskedLm, load_masked_lm, load_model

__all__ = ["evaluate_text", "evaluate_translation", "read_lines", "read_text"]

_WINDOW = 512
"""Lines translated between two moves of the progress bar."""


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
    """Translate `source` line by line and score it against `reference`; keep it in `output`.

    Translated as `Translator.translate` does: a line of several sentences sentence by sentence,
    unless `split` is False, or None and the model was trained on whole lines. A line is scored
    whole either way. `metrics` are those of `evaluation.metrics`; `dtype` is as in `load`; `comet`
    names a model of COMET that scores as well.
    """
    check_metrics(metrics)
    if output is not None and output.exists():
        for path in (source, reference):
            if path.exists() and output.samefile(path):
                raise ConfigError("--output", f"{output} is {path} itself; choose another file")
    if comet is not None:
        find_comet()
    sources, references = read_lines(source), read_lines(reference)
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
        translations += translator.translate(window, split=split, **_options(decode))
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
        "decode": _options(decode),
        "split": translator.split if split is None else split,
        "dtype": dtype,
        "seconds": round(seconds, 2),
        "sentences_per_second": round(len(sources) / max(seconds, 1e-9), 2),
        **origin(folder, source=source, reference=reference),
    }


def evaluate_text(
    folder: Path, *, text: Path, tail: float = 1.0, counted: Path | None = None, order: int = 3
) -> dict[str, Any]:
    """Predict the last `tail` share of a text, counted in characters.

    With `counted`, the text the model learnt from, so does a model that only counts n-grams of up
    to `order` of the same tokens. A masked language model is asked for tokens that are hidden.
    """
    masked = load_masked_lm(folder)
    if masked is not None:
        if counted is not None:
            raise ConfigError("--ngram", f"{folder} reads from both sides; leave it out")
        return _evaluate_masked(masked, folder, text, tail)
    model = load_model(folder)
    if not isinstance(model, LanguageModel):
        raise ModelError(f"{folder}: translates; test it with --source and --reference")
    model.eval()
    tokenizer, part = load_tokenizer(folder), _tail(text, tail)
    context, memory = model.config.max_positions, model.config.memory
    sizes: dict[str, Any] = {
        "start": tokenizer.bos_id,
        "characters": len(part),
        "words": len(part.split()) + part.count("\n"),
    }
    began = time.monotonic()
    tokens = tokenizer.encode(part)
    if memory:
        likely = score_segments(model, tokens, segment=context, memory=memory, **sizes)
    else:
        likely = score_text(model, tokens, context=context, overlap=context // 2, **sizes)
    scores = asdict(likely)
    if counted is not None:
        words = NgramModel(
            tokenizer.encode(read_text(counted)), order=order, vocab_size=tokenizer.vocab_size
        )
        mean = words.nats(tokens, start=tokenizer.bos_id) / len(tokens)
        bits = mean * len(tokens) / math.log(2) / len(part)
        scores |= {"ngram_perplexity": math.exp(mean), "ngram_bits_per_character": bits}
        scores["ngram_order"] = order
    return {
        "task": "language_model",
        "scores": scores,
        "tail": tail,
        "context": context,
        "memory": memory,
        "seconds": round(time.monotonic() - began, 2),
        **origin(folder, text=text, **({} if counted is None else {"counted": counted})),
    }


def _evaluate_masked(model: MaskedLm, folder: Path, text: Path, tail: float) -> dict[str, Any]:
    tokenizer = add_mask(load_tokenizer(folder))
    if tokenizer.mask_id != model.config.mask_token_id:
        raise ModelError(f"{folder}: its tokenizer and its config.json do not belong together")
    began = time.monotonic()
    tokens = tokenizer.encode(_tail(text, tail))
    return {
        "task": "masked_lm",
        "scores": asdict(score_masked(model, tokens, Masking.of(tokenizer))),
        "tail": tail,
        "context": model.config.max_positions,
        "seconds": round(time.monotonic() - began, 2),
        **origin(folder, text=text),
    }


def _tail(path: Path, share: float) -> str:
    whole = read_text(path)
    return whole[len(whole) - round(len(whole) * share) :]


def read_text(path: Path) -> str:
    """A whole plain or gzipped UTF-8 file."""
    with open_file(path) as file:
        raw = file.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: is not UTF-8 text; convert the file") from None


def _options(decode: DecodeConfig) -> dict[str, Any]:
    return {"strategy": decode.strategy, **decode.model_dump(mode="json", exclude_defaults=True)}


def read_lines(path: Path) -> list[str]:
    """The lines of a plain or gzipped UTF-8 file, which must hold some."""
    lines = []
    with open_lines(path) as raw:
        for number, line in enumerate(raw, 1):
            try:
                lines.append(line.decode("utf-8"))
            except UnicodeDecodeError:
                message = "is not UTF-8 text; convert the file"
                raise DataError(f"{path}, line {number}: {message}") from None
    if not lines:
        raise DataError(f"{path}: the file is empty")
    return lines


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
