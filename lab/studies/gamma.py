"""Quality and rounds of tandem decoding over gamma, the weight of the parallel half.

    python lab/studies/gamma.py MODEL --source FILE --reference FILE --json FILE --png FILE
    python lab/studies/gamma.py MODEL --text FILE --judge FILE --json FILE --png FILE

p = (1 - gamma) p_AR + gamma p_NAR, in blocks of a fixed length, so that rounds are comparable. Both
halves are also measured alone: the autoregressive one token by token, the parallel one in one pass
(text block by block). Nothing is timed: a round is one pass of the autoregressive half on any
machine.

Translations have references. For a language model three measures are reported: how well p predicts
held-out text; the probability of its texts under its autoregressive half and under an n-gram model
of `--judge`; and the share of repeated word pairs.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from outrider.data.lines import read_text, text_lines
from outrider.decoding.arrays import like
from outrider.decoding.queries import LogProbs, Nothing
from outrider.decoding.statistics import Statistics
from outrider.evaluation.metrics import score_translations
from outrider.evaluation.ngram import NgramModel
from outrider.runtime import Generator, Translator, load
from outrider.runtime.provenance import origin, write_result
from outrider.show.palette import (
    INDIGO,
    INK,
    ORANGE,
    QUIET,
    TEAL,
    load_pyplot,
    save_figure,
    style_axes,
)
from outrider_lab.bench.modes.repetition import length_ratio, repetition_rate

GAMMAS = tuple(n / 10 for n in range(11))
ALONE: dict[str, dict[str, Any]] = {
    "ar": {"mode": "ar"},
    "nar": {"mode": "parallel", "decoder": "drafter"},
}
DRAWN: dict[str, Any] = {"strategy": "sample", "seed": 1}


def measure(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    options: dict[str, Any],
    ours: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Translate all lines once; return scores, compared with `ours` if given, and texts."""
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
        **beside(texts, ours, stats),
    }
    return row, texts


def beside(texts: Sequence[str], ours: Sequence[str], stats: Statistics) -> dict[str, Any]:
    """The share of texts equal to `ours`, if given, and the number of rounds, if any."""
    row: dict[str, Any] = {}
    if ours:
        same = sum(one == other for one, other in zip(texts, ours, strict=True))
        row["identical_share"] = same / len(texts)
    if stats.rounds:
        row["rounds_per_line"] = stats.rounds / len(texts)
        row["tokens_per_round"] = stats.tokens_per_round
        row["acceptance_by_position"] = stats.acceptance_by_position
    return row


def translations(translator: Translator, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a translator."""
    sources, references = (
        text_lines(path)[: options.lines] for path in (options.source, options.reference)
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
    return result | origin(options.model, source=options.source, reference=options.reference)


class Passage(NamedTuple):
    """The beginning of a paragraph and its continuation, in tokens."""

    prompt: list[int]
    rest: list[int]


def passages(
    model: Generator, text: str, count: int | None, *, prompt: int, rest: int
) -> list[Passage]:
    """Return the beginnings of `count` paragraphs, evenly spaced over the text."""
    lines = model.tokenizer.encode_batch(text.splitlines(keepends=True))
    found = [Passage(ids[:prompt], ids[prompt:][:rest]) for ids in lines]
    # A prompt is passed as text; paragraphs that do not encode to the same ids are skipped.
    texts = model.tokenizer.decode_batch([one.prompt for one in found])
    again = model.tokenizer.encode_batch(texts)
    found = [
        one
        for one, ids in zip(found, again, strict=True)
        if one.prompt == ids and len(one.rest) == rest
    ]
    if not found:
        raise SystemExit(f"no paragraph has {prompt + rest} tokens; ask for fewer")
    every = max(1, len(found) // (count or len(found)))
    return found[::every][:count]


def chances(
    model: Generator, given: Sequence[Passage], block: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Return p_AR and p_NAR of every token of the continuations, block by block.

    Within a block p_AR depends on all earlier tokens, p_NAR only on those before the block.
    """
    backend, drafts = model.backend, model.backend.drafts
    assert drafts is not None
    longest = len(given[0].prompt) + len(given[0].rest) + 1 + block
    state = backend.encode([()] * len(given), capacity=longest, drafting=True)
    backend.extend([[backend.start, *one.prompt[:-1]] for one in given], state, Nothing())
    newest = [one.prompt[-1] for one in given]
    p_AR: list[list[float]] = [[] for _ in given]
    p_NAR: list[list[float]] = [[] for _ in given]
    for at in range(0, len(given[0].rest), block):
        tokens = [one.rest[at : at + block] for one in given]
        q = drafts.draft(newest, state, [len(tokens[0])] * len(given)).probabilities
        assert q is not None
        if len(q.ids_BKC[0, 0]) < backend.vocab_size:
            raise SystemExit("the drafter names a few tokens only; give its config all candidates")
        said_BK1 = like(q.ids_BKC, tokens, "int64")[..., None]
        q_BK = (q.prob_BKC * (q.ids_BKC == said_BK1)).sum(-1).tolist()
        fed = [[last, *row[:-1]] for last, row in zip(newest, tokens, strict=True)]
        logs = backend.extend(fed, state, LogProbs(tokens))
        for ours, theirs, log, q in zip(p_AR, p_NAR, logs, q_BK, strict=True):
            ours += map(math.exp, log)
            theirs += q
        newest = [row[-1] for row in tokens]
    return p_AR, p_NAR


def held_out(
    p_AR: list[list[float]], p_NAR: list[list[float]], gammas: Sequence[float], block: int
) -> list[dict[str, Any]]:
    """Perplexity of the mixtures on held-out text: in total, and by position in a block."""
    found, first = [], []
    for gamma in gammas:
        nats = [
            [-math.log((1 - gamma) * p + gamma * q) for p, q in zip(*row, strict=True)]
            for row in zip(p_AR, p_NAR, strict=True)
        ]
        means = [statistics.fmean(row) for row in nats]
        first = first or means
        places = [[one for row in nats for one in row[place::block]] for place in range(block)]
        better = [one - other for one, other in zip(first, means, strict=True)]
        spread = statistics.stdev(better) if len(better) > 1 else 0.0
        found.append(
            {
                "gamma": gamma,
                "perplexity": math.exp(statistics.fmean(means)),
                "perplexity_by_place": [math.exp(statistics.fmean(one)) for one in places if one],
                "nats_gained": statistics.fmean(better),
                "nats_gained_error": spread / math.sqrt(len(better)),
            }
        )
    return found


def judged(judge: NgramModel, prompt: Sequence[int], rest: Sequence[int]) -> float:
    """Negative log-probability (nats) of a continuation under the judge."""
    text, first = [*prompt, *rest], len(prompt)
    return -sum(
        math.log(judge.probability(text[at], text[max(0, at - judge.order) : at]))
        for at in range(first, len(text))
    )


def said_before(texts: Sequence[str]) -> float:
    """Return the share of adjacent word pairs that occur earlier in their text."""
    again, pairs = 0, 0
    for text in texts:
        words = list(pairwise(text.split()))
        again, pairs = again + len(words) - len(set(words)), pairs + len(words)
    return again / pairs if pairs else 0.0


def written(
    model: Generator, judge: NgramModel, given: Sequence[Passage], rests: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Measures of any continuations of the prompts."""
    texts = model.tokenizer.decode_batch(rests)
    tokens = sum(map(len, rests))
    nats = [judged(judge, one.prompt, rest) for one, rest in zip(given, rests, strict=True)]
    return {
        "judge_nats": math.fsum(nats) / tokens,
        "said_before": said_before(texts),
        "repetition_rate": repetition_rate(texts),
    }


def go_on(
    model: Generator,
    judge: NgramModel,
    given: Sequence[Passage],
    options: dict[str, Any],
    ours: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Continue all prompts once; return scores, compared with `ours` if given, and texts."""
    stats, room = Statistics(), len(given[0].rest)
    prompts = model.tokenizer.decode_batch([one.prompt for one in given])
    answers = model.results(prompts, stats=stats, scores=True, max_new_tokens=room, **options)
    found = [best for best, *_ in answers]
    texts = [one.text for one in found]
    tokens = sum(len(one.tokens) + (one.finish == "eos") for one in found)
    row = {
        **options,
        "nats": -math.fsum(one.score or 0.0 for one in found) / tokens,
        **written(model, judge, given, [one.tokens for one in found]),
        **beside(texts, ours, stats),
    }
    return row, texts


def curve(
    model: Generator,
    judge: NgramModel,
    given: Sequence[Passage],
    options: argparse.Namespace,
    way: dict[str, Any],
) -> dict[str, Any]:
    """Measure both halves alone (the parallel one if supported) and all mixtures."""
    modes = {name: {**mode, **way} for name, mode in ALONE.items() if name == "ar" or not way}
    alone, rows, first = {}, [], []
    for name, mode in modes.items():
        alone[name], texts = go_on(model, judge, given, mode, first)
        first = first or texts
    for gamma in options.gammas:
        mode = {"mode": "tandem", "gamma": gamma, "draft_tokens": options.draft_tokens, **way}
        row, texts = go_on(model, judge, given, mode, first)
        rows.append({**row, "example": texts[0]})
        told = f"{row['nats']:.3f} nats, {row['judge_nats']:.3f} to the judge"
        print(f"gamma {gamma:g}: {told}, {row['tokens_per_round']:.2f} a round", flush=True)
    return {"alone": alone, "tandem": rows}


def texts(model: Generator, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a language model."""
    text, block = read_text(options.text), options.draft_tokens
    given = passages(model, text, options.lines, prompt=options.prompt, rest=options.new_tokens)
    seen = model.tokenizer.encode(read_text(options.judge))
    judge = NgramModel(seen, order=options.order, vocab_size=model.backend.vocab_size)
    p_AR, p_NAR = chances(model, given, block)
    nats = statistics.fmean(-math.log(p) for row in p_AR for p in row)
    people = {"nats": nats, **written(model, judge, given, [one.rest for one in given])}
    print(f"people: {nats:.3f} nats, {people['judge_nats']:.3f} to the judge", flush=True)
    sizes = {"prompt_tokens": options.prompt, "new_tokens": options.new_tokens}
    result = {
        "task": "gamma of text",
        "lines": len(given),
        **sizes,
        "judge_order": options.order,
        "held_out": held_out(p_AR, p_NAR, options.gammas, block),
        "people": people,
        "greedy": curve(model, judge, given, options, {}),
        "drawn": curve(model, judge, given, options, DRAWN),
    }
    return result | origin(options.model, text=options.text, judge=options.judge)


def main() -> None:
    """Measure, write the result and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--text", type=Path, help="held-out text, for a language model")
    parser.add_argument("--judge", type=Path, help="training text of the n-gram model")
    parser.add_argument("--order", type=int, default=6, help="order of the n-gram model")
    parser.add_argument("--prompt", type=int, default=100, help="prompt tokens of each paragraph")
    parser.add_argument("--new-tokens", type=int, default=160, help="new tokens per prompt")
    parser.add_argument("--gammas", type=float, nargs="+", default=list(GAMMAS))
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--lines", type=int, help="number of lines, or of paragraphs of a text")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    options = parser.parse_args()
    model = load(options.model, dtype="float32", threads=1)
    wanted = ("source", "reference") if isinstance(model, Translator) else ("text", "judge")
    for name in wanted:
        if getattr(options, name) is None:
            raise SystemExit(f"{options.model}: give --{wanted[0]} and --{wanted[1]}")
    found = (translations if isinstance(model, Translator) else texts)(model, options)
    if options.json is not None:
        write_result(options.json, found)
    if options.png is not None:
        (draw if isinstance(model, Translator) else draw_texts)(found, options.png)


LINE: dict[str, Any] = {"linewidth": 2.2, "marker": "o", "markersize": 5}
DASHED: dict[str, Any] = {"color": QUIET, "linewidth": 1, "linestyle": (0, (4, 4))}
SMALL: dict[str, Any] = {"color": QUIET, "fontsize": 9}


@contextmanager
def two_plots(path: Path, titles: Sequence[str], told: str) -> Iterator[Any]:
    """Create two plots side by side, and save them."""
    pyplot = load_pyplot("the picture over gamma")
    figure = pyplot.figure(figsize=(11, 4.4), layout="constrained", facecolor="white")
    try:
        plots = figure.subplots(1, 2)
        yield plots
        for axes, title in zip(plots, titles, strict=True):
            style_axes(axes)
            axes.set_title(title, loc="left", fontsize=11, color=INK)
        figure.suptitle(told, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
        save_figure(figure, path, dpi=120, pil_kwargs={"optimize": True})
    finally:
        pyplot.close(figure)


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw quality and tokens per round over gamma."""
    gammas = [row["gamma"] for row in result["tandem"]]
    told = "A GRU and an LSTM that drafts for it, mixed by γ"
    with two_plots(path, ("BLEU", "tokens a round"), told) as (quality, rounds):
        for name, who in (("ar", "GRU alone, token by token"), ("nar", "LSTM alone, one pass")):
            bleu = result["alone"][name]["bleu"]
            quality.axhline(bleu, **DASHED)
            side = "right" if name == "ar" else "left"
            quality.text(float(name == "ar"), bleu, who, ha=side, va="bottom", **SMALL)
        quality.plot(gammas, [row["bleu"] for row in result["tandem"]], color=TEAL, **LINE)
        per_round = [row["tokens_per_round"] for row in result["tandem"]]
        rounds.axhline(1, **DASHED)
        rounds.text(1.0, 1, "token by token", ha="right", va="bottom", **SMALL)
        rounds.plot(gammas, per_round, color=ORANGE, **LINE)
        rounds.set_ylim(bottom=0)
        for axes in (quality, rounds):
            axes.set_xlabel("γ: 0 is the GRU's text, 1 the LSTM's", color=QUIET)


def draw_texts(result: dict[str, Any], path: Path) -> None:
    """Draw held-out perplexity over gamma, and quality against tokens per round."""
    gammas = [row["gamma"] for row in result["held_out"]]
    told = "A GRU and an LSTM that drafts for it, mixed by γ: text"
    titles = ("perplexity of what people wrote", "written text: nats a token, to the judge")
    with two_plots(path, titles, told) as (perplexity, plane):
        places = len(result["held_out"][0]["perplexity_by_place"])
        lines = {"first of a block": 0, f"place {places}": places - 1}
        for (name, place), colour in zip(lines.items(), (TEAL, ORANGE), strict=True):
            values = [row["perplexity_by_place"][place] for row in result["held_out"]]
            perplexity.plot(gammas, values, color=colour, label=name, **LINE)
        values = [row["perplexity"] for row in result["held_out"]]
        perplexity.plot(gammas, values, color=INK, label="all places", **LINE)
        perplexity.legend(frameon=False, labelcolor=INK)
        perplexity.set_xlabel("γ: 0 is the GRU's guess, 1 the LSTM's", color=QUIET)
        people = result["people"]["judge_nats"]
        plane.axhline(people, **DASHED)
        right = {"transform": plane.get_yaxis_transform(), "ha": "right", "va": "bottom"}
        plane.text(1, people, "what people wrote", **right, **SMALL)
        for name, colour, places in (("drawn", INDIGO, (0, 0.5, 1)), ("greedy", TEAL, (0, 1))):
            rows = result[name]["tandem"]
            where = [(row["tokens_per_round"], row["judge_nats"]) for row in rows]
            plane.plot(*zip(*where, strict=True), color=colour, label=name, **LINE)
            for row, at in zip(rows, where, strict=True):
                if row["gamma"] in places:
                    told = f"γ = {row['gamma']:g}"
                    plane.annotate(told, at, (7, -11), textcoords="offset points", **SMALL)
        plane.margins(x=0.1)
        plane.legend(frameon=False, labelcolor=INK)
        plane.set_xlabel("tokens a round", color=QUIET)


if __name__ == "__main__":
    main()
