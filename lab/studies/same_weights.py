"""Output of one model in every engine.

python lab/studies/same_weights.py MODEL --source test.zh --reference test.en --json same.json

The weights of MODEL in PyTorch, in the native core (float32 and int8), in transformers'
MarianMTModel and in CTranslate2; lines are not split; greedy and with beams. Lines that differ from
those of transformers are listed with the gap of the two tokens at the first difference: the
difference of their log-probabilities in PyTorch, alone, in float32.

CTranslate2 ends a beam search after as many texts as beams; transformers continues while a better
text is possible, unless `early_stopping` is set. Lines that differ are translated again with it.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import MarianMTModel

from outrider.data.lines import text_lines
from outrider.evaluation.metrics import score_translations
from outrider.files.hub import model_folder
from outrider.runtime import Translator, load
from outrider.runtime.provenance import origin, write_result
from outrider.torch.export import export_ctranslate2
from outrider_lab.bench.decode.plan import export_for_transformers

Rows = list[list[int]]
Engine = Callable[[Sequence[str]], Rows]
SHOWN = 12
"""Differing lines that a result repeats."""


def ours(folder: Path, backend: str, dtype: str, **options: Any) -> Engine:
    """Return an Outrider engine."""
    translator = load(folder, backend=backend, dtype=dtype, threads=1)
    assert isinstance(translator, Translator)

    def translate(lines: Sequence[str]) -> Rows:
        return [list(best.tokens) for best, *_ in translator.results(lines, split=False, **options)]

    return translate


def transformers(
    folder: Path, plain: Translator, beams: int, batch: int, early_stopping: bool = False
) -> Engine:
    """Return `generate` of transformers on the same weights."""
    model = MarianMTModel.from_pretrained(folder).eval()
    tokenizer = plain.tokenizer
    end, pad = tokenizer.eos_id, tokenizer.pad_id

    def translate(lines: Sequence[str]) -> Rows:
        rows = tokenizer.encode_batch(lines)
        order = sorted(range(len(rows)), key=lambda n: len(rows[n]))
        found: Rows = [[] for _ in rows]
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            longest = max(len(rows[n]) for n in chosen)
            with torch.inference_mode():
                written = model.generate(
                    input_ids=torch.tensor(
                        [[*rows[n], end, *[pad] * (longest - len(rows[n]))] for n in chosen]
                    ),
                    attention_mask=torch.tensor(
                        [[1] * (len(rows[n]) + 1) + [0] * (longest - len(rows[n])) for n in chosen]
                    ),
                    max_new_tokens=3 * longest + 30,
                    num_beams=beams,
                    do_sample=False,
                    length_penalty=1.0,
                    early_stopping=early_stopping,
                )
            for n, row in zip(chosen, written[:, 1:].tolist(), strict=True):
                found[n] = row[: row.index(end)] if end in row else row
        return found

    return translate


def ctranslate2(folder: Path, plain: Translator, beams: int, dtype: str) -> Engine:
    """Return CTranslate2 on the same weights; it adds the end token of a source itself."""
    import ctranslate2 as library

    engine = library.Translator(str(folder), compute_type=dtype, intra_threads=1)
    tokenizer: Any = plain.tokenizer
    source, target = tokenizer.names
    names = {index: name for name, index in source.items()}

    def translate(lines: Sequence[str]) -> Rows:
        rows = tokenizer.encode_batch(lines)
        found = engine.translate_batch(
            [[names[index] for index in row] for row in rows],
            beam_size=beams,
            max_batch_size=32,
            max_decoding_length=3 * max(map(len, rows)) + 30,
        )
        return [[target[name] for name in one.hypotheses[0]] for one in found]

    return translate


def gap(plain: Translator, line: str, one: list[int], other: list[int]) -> dict[str, Any]:
    """Return the first difference of two texts, and the gap of the two tokens."""
    place = next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    backend: Any = plain.backend
    end = plain.tokenizer.eos_id
    ids = torch.tensor([plain.source(plain.tokenizer.encode(line))])
    with torch.inference_mode():
        labels = torch.tensor([[*one[:place], end]])
        logits = backend.model(input_ids=ids, labels=labels).logits[0, -1]
    choice = [row[place] if place < len(row) else end for row in (one, other)]
    scores = logits.log_softmax(-1)[choice].tolist()
    texts = [plain.tokenizer.decode(row) for row in (one, other)]
    return {"line": line, "at": place, "log_probs": [round(s, 5) for s in scores], "texts": texts}


def main() -> None:
    """Print one row per engine, and write all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--lines", type=int, help="use only the first lines")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32, help="batch size of transformers")
    parser.add_argument("--tandem", action="store_true", help="also measure int8 with the drafter")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = model_folder(options.model)
    sources = text_lines(options.source)[: options.lines]
    references = text_lines(options.reference)[: options.lines]
    plain = load(folder, backend="torch", dtype="float32")
    assert isinstance(plain, Translator)
    beams: dict[str, Any] = {} if options.beams == 1 else {"beams": options.beams}
    with tempfile.TemporaryDirectory() as working:
        marian = export_for_transformers(folder, Path(working) / "marian")
        exported = export_ctranslate2(folder, Path(working) / "float32")
        engines: dict[str, Callable[[], Engine]] = {
            "transformers float32": lambda: transformers(
                marian, plain, options.beams, options.batch
            ),
            "outrider torch float32": lambda: ours(folder, "torch", "float32", **beams),
            "outrider native float32": lambda: ours(folder, "native", "float32", **beams),
            "outrider native int8": lambda: ours(folder, "native", "int8", **beams),
            "ctranslate2 float32": lambda: ctranslate2(exported, plain, options.beams, "float32"),
            "ctranslate2 int8": lambda: ctranslate2(exported, plain, options.beams, "int8"),
        }
        if options.tandem:
            engines["outrider native int8 tandem"] = lambda: ours(
                folder, "native", "int8", mode="tandem"
            )
        written: dict[str, Rows] = {}
        rows = []
        for name, build in engines.items():
            began = time.perf_counter()
            written[name] = build()(sources)
            row = compare(name, written, plain, sources, references)
            row["seconds"] = round(time.perf_counter() - began, 1)
            if name == "ctranslate2 float32" and beams:
                stopping = transformers(marian, plain, options.beams, 1, early_stopping=True)
                row["identical_if_stopped_early"] = stopped_early(written, stopping, sources)
            rows.append(row)
            shown = {key: value for key, value in row.items() if key != "differences"}
            print(shown, flush=True)
    result = {"task": "same weights", "beams": options.beams, "lines": len(sources), "rows": rows}
    if options.json is not None:
        about = origin(folder, source=options.source, reference=options.reference)
        write_result(options.json, {**result, **about})


def stopped_early(written: dict[str, Rows], stopping: Engine, sources: Sequence[str]) -> int:
    """Count lines that CTranslate2 and transformers translate equally with either stopping rule."""
    theirs, expected = written["ctranslate2 float32"], written["transformers float32"]
    other = [n for n, (a, b) in enumerate(zip(theirs, expected, strict=True)) if a != b]
    again = stopping([sources[n] for n in other]) if other else []
    return len(theirs) - sum(theirs[n] != row for n, row in zip(other, again, strict=True))


def compare(
    name: str,
    written: dict[str, Rows],
    plain: Translator,
    sources: Sequence[str],
    references: Sequence[str],
) -> dict[str, Any]:
    """Compare an engine's texts with those of transformers, and tandem with our greedy texts."""
    base = "outrider native int8" if name.endswith("tandem") else "transformers float32"
    found, expected = written[name], written[base]
    other = [n for n, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
    score = score_translations([plain.tokenizer.decode(row) for row in found], references)
    return {
        "engine": name,
        "compared_with": base,
        "identical": len(found) - len(other),
        "bleu": round(score.bleu, 2),
        "chrf": round(score.chrf, 2),
        "differences": [gap(plain, sources[n], expected[n], found[n]) for n in other[:SHOWN]],
    }


if __name__ == "__main__":
    main()
