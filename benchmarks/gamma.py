"""What trust in the parallel half costs and buys: quality and rounds of tandem decoding over gamma.

    python benchmarks/gamma.py MODEL --source FILE --reference FILE --json FILE --png FILE

p = (1 - gamma) p_AR + gamma p_NAR, greedily, in blocks of a fixed length, so that rounds compare.
Beside it both halves alone: the autoregressive one token by token, the parallel one in one pass.
Nothing is timed: a round is one pass of the autoregressive half, whatever the machine does.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.decoding.statistics import Statistics
from outrider.evaluation.evaluate import read_lines
from outrider.evaluation.origin import origin
from outrider.evaluation.palette import INK, ORANGE, QUIET, TEAL
from outrider.evaluation.pictures.pyplot import load_pyplot, save_figure, style_axes
from outrider.evaluation.quality import score_translations
from outrider.evaluation.repetition import length_ratio, repetition_rate
from outrider.evaluation.results import write_result
from outrider.runtime import Translator, load

GAMMAS = tuple(n / 10 for n in range(11))
ALONE: dict[str, dict[str, Any]] = {
    "ar": {"mode": "ar"},
    "nar": {"mode": "parallel", "decoder": "drafter"},
}


def measure(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    options: dict[str, Any],
    ours: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Translate all lines once; return the scores, beside `ours` if given, and the texts."""
    stats = Statistics()
    found = translator.results(sources, split=False, stats=stats, **options)
    texts = [best.text for best, *_ in found]
    score = score_translations(texts, references)
    row = {
        **options,
        "bleu": score.bleu,
        "chrf": score.chrf,
        "bleu_signature": score.bleu_signature,
        "length_ratio": length_ratio(texts, references),
        "repetition_rate": repetition_rate(texts),
    }
    if ours:
        same = sum(one == other for one, other in zip(texts, ours, strict=True))
        row["identical_share"] = same / len(texts)
    if stats.rounds:
        row["rounds_per_line"] = stats.rounds / len(texts)
        row["tokens_per_round"] = stats.tokens_per_round
        row["acceptance_by_position"] = stats.acceptance_by_position
    return row, texts


def main() -> None:
    """Measure, write down, draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--gammas", type=float, nargs="+", default=list(GAMMAS))
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--lines", type=int, help="only the first so many")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    options = parser.parse_args()
    translator = load(options.model, dtype="float32", threads=1)
    if not isinstance(translator, Translator):
        raise SystemExit(f"{options.model}: is a language model, and this compares translations")
    sources, references = (
        read_lines(path)[: options.lines] for path in (options.source, options.reference)
    )
    alone, rows, greedy = {}, [], []
    for name, mode in ALONE.items():
        alone[name], texts = measure(translator, sources, references, mode, greedy)
        greedy = greedy or texts
        print(name, f"BLEU {alone[name]['bleu']:.1f}", flush=True)
    for gamma in options.gammas:
        mode = {"mode": "tandem", "gamma": gamma, "draft_tokens": options.draft_tokens}
        row, _ = measure(translator, sources, references, mode, greedy)
        rows.append(row)
        told = f"BLEU {row['bleu']:.1f}, {row['tokens_per_round']:.2f} tokens a round"
        print(f"gamma {gamma:g}: {told}", flush=True)
    result = {"task": "gamma", "lines": len(sources), "alone": alone, "tandem": rows}
    result |= origin(options.model, source=options.source, reference=options.reference)
    if options.json is not None:
        write_result(options.json, result)
    if options.png is not None:
        draw(result, options.png)


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw quality and tokens a round over gamma."""
    pyplot = load_pyplot("the picture over gamma")
    figure = pyplot.figure(figsize=(11, 4.4), layout="constrained", facecolor="white")
    try:
        quality, rounds = figure.subplots(1, 2)
        gammas = [row["gamma"] for row in result["tandem"]]
        style = {"linewidth": 2.2, "marker": "o", "markersize": 5}
        for name, told in (("ar", "GRU alone, token by token"), ("nar", "LSTM alone, one pass")):
            bleu = result["alone"][name]["bleu"]
            quality.axhline(bleu, color=QUIET, linewidth=1, linestyle=(0, (4, 4)))
            place = {"ha": "right" if name == "ar" else "left", "va": "bottom", "fontsize": 9}
            quality.text(1.0 if name == "ar" else 0.0, bleu, told, color=QUIET, **place)
        quality.plot(gammas, [row["bleu"] for row in result["tandem"]], color=TEAL, **style)
        per_round = [row["tokens_per_round"] for row in result["tandem"]]
        rounds.axhline(1, color=QUIET, linewidth=1, linestyle=(0, (4, 4)))
        rounds.text(1.0, 1, "token by token", color=QUIET, ha="right", va="bottom", fontsize=9)
        rounds.plot(gammas, per_round, color=ORANGE, **style)
        rounds.set_ylim(bottom=0)
        for axes, title in ((quality, "BLEU"), (rounds, "tokens a round")):
            style_axes(axes)
            axes.set_title(title, loc="left", fontsize=11, color=INK)
            axes.set_xlabel("γ: 0 is the GRU's text, 1 the LSTM's", color=QUIET)
        title = "A GRU and an LSTM that drafts for it, mixed by γ"
        figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
        save_figure(figure, path, dpi=120, pil_kwargs={"optimize": True})
    finally:
        pyplot.close(figure)


if __name__ == "__main__":
    main()
