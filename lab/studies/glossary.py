"""Terms of a glossary: obeyed, quality with gold terms, and the text of tandem under constraints.

    python lab/studies/glossary.py CORPORA MODEL --json results/glossary.json

CORPORA is the folder of shared corpora, MODEL an English-Portuguese folder; without one the model
of the extra `demo`. Gold terms are words of a Flores sentence and of its reference that
translate each other in the whole set.
Generated terms replace the translations of words by words that the model would not write.
"""

import argparse
import gzip
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from outrider.evaluation.metrics import score_translations
from outrider.files.hub import demo_folder
from outrider.runtime import Translator, load
from outrider.runtime.provenance import machine, versions, write_result
from outrider.text.glossary import Entry, Glossary, count

WORD = re.compile(r"[^\W\d_]{4,}")
COMMON, LONG = 40, 6
"""Words of the glossary that all sentences share, and their fewest letters."""
MOST, RARE = 3, 40
"""Most gold terms of a sentence, and sentences in which a term's word may occur."""
INVENTED = (
    *("zebra", "abacate", "lâmpada", "cavalo", "guarda-chuva", "São Paulo", "OTAN", "torre azul"),
    *("peixe", "xícara", "relógio", "Ministério da Cultura", "pão de queijo", "janela"),
)


def read(path: Path, lines: int) -> list[str]:
    """Read the first lines of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in islice(file, lines)]


def gold_terms(sources: Sequence[str], references: Sequence[str]) -> list[Glossary]:
    """Return a glossary for each sentence: words that translate each other by Dice's coefficient.

    dice(s, t) = 2 n(s, t) / (n(s) + n(t)), at least 0.6, both at least twice
    """
    left = [set(WORD.findall(text.lower())) for text in sources]
    right = [set(WORD.findall(text.lower())) for text in references]
    once, other = Counter[str](), Counter[str]()
    both: Counter[tuple[str, str]] = Counter()
    for one, two in zip(left, right, strict=True):
        once.update(one)
        other.update(two)
        both.update((s, t) for s in one for t in two)
    best: dict[str, tuple[float, str]] = {}
    for (s, t), number in both.items():
        dice = 2 * number / (once[s] + other[t])
        if number > 1 and dice >= 0.6 and once[s] <= RARE:
            best[s] = max(best.get(s, (0.0, "")), (dice, t))
    glossaries = []
    for one, two in zip(left, right, strict=True):
        entries = [Entry(s, best[s][1]) for s in sorted(one) if s in best and best[s][1] in two]
        glossaries.append(Glossary(entries[:MOST]))
    return glossaries


def generated_terms(sources: Sequence[str], number: int) -> list[tuple[str, Glossary]]:
    """Return sentences with one to three of their words under other translations."""
    chance = random.Random(0)
    cases = []
    while len(cases) < number:
        text = chance.choice(sources)
        words = sorted({word.lower() for word in WORD.findall(text) if word.islower()})
        if len(words) < 3:
            continue
        chosen = chance.sample(words, chance.randint(1, 3))
        targets = chance.sample(INVENTED, len(chosen))
        inflected = chance.random() < 0.3
        pairs = zip(chosen, targets, strict=True)
        cases.append((text, Glossary([Entry(s, t, inflected) for s, t in pairs])))
    return cases


def translated(
    model: Translator, cases: Sequence[tuple[str, Glossary]], **options: Any
) -> list[Any]:
    """Translate each text with its own glossary."""
    return [model.results(text, glossary=glossary, **options)[0][0] for text, glossary in cases]


def missing(cases: Sequence[tuple[str, Glossary]], texts: Sequence[str]) -> tuple[int, int]:
    """Return the number of terms, and of those whose translation a text has too rarely."""
    terms = left = 0
    for (source, glossary), text in zip(cases, texts, strict=True):
        needed = Counter(match.entry for match in glossary.find(source))
        terms += needed.total()
        left += sum(max(0, times - count(entry, text)) for entry, times in needed.items())
    return terms, left


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpora", type=Path)
    parser.add_argument("model", type=Path, nargs="?", default=demo_folder("en", "pt"))
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--generated", type=int, default=300)
    parser.add_argument("--gold", type=int, default=300, help="Sentences with gold terms.")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    folder = given.corpora / "firefox_eval/en-pt"
    sources = read(folder / "flores-test.en.gz", given.lines)
    references = read(folder / "flores-test.pt.gz", given.lines)
    model = load(given.model, threads=1)
    assert isinstance(model, Translator)

    cases = generated_terms(sources, given.generated)
    results = translated(model, cases)
    terms, left = missing(cases, [result.text for result in results])
    reported = sum(len(result.missing_terms) for result in results)
    invented = {"sentences": len(cases), "terms": terms, "missing": left, "reported": reported}
    print("generated", invented)

    # Tandem under constraints is below; here every sentence has its own glossary.
    gold = list(zip(sources, gold_terms(sources, references), strict=True))
    gold = [case for case in gold if case[1].entries][: given.gold]
    kept = [sources.index(text) for text, _ in gold]
    references = [references[number] for number in kept]
    every_source, sources = sources, [text for text, _ in gold]
    plain = model.translate(sources)
    found = translated(model, gold)
    texts = [result.text for result in found]
    terms, before = missing(gold, plain)
    _, after = missing(gold, texts)
    changed = [
        number for number, pair in enumerate(zip(plain, texts, strict=True)) if len({*pair}) > 1
    ]

    def score(chosen: Sequence[str], rows: Sequence[int]) -> dict[str, float]:
        found = score_translations([chosen[n] for n in rows], [references[n] for n in rows])
        return {"bleu": round(found.bleu, 2), "chrf": round(found.chrf, 2)}

    every = range(len(sources))
    quality = {
        "sentences": len(sources),
        "terms": terms,
        "missing_without": before,
        "missing_with": after,
        "changed": len(changed),
        "all": {"without": score(plain, every), "with": score(texts, every)},
        "changed_sentences": {"without": score(plain, changed), "with": score(texts, changed)},
    }
    print("gold", quality)
    sources = every_source

    # One glossary for all sentences, so that they are decoded together.
    words = (word for text in sources for word in WORD.findall(text))
    frequent = Counter(word for word in words if word.islower() and len(word) >= LONG)
    common = [word for word, _ in frequent.most_common(COMMON)]
    shared = Glossary(Entry(word, INVENTED[n % len(INVENTED)]) for n, word in enumerate(common))
    greedy = [best for best, *_ in model.results(sources, glossary=shared)]
    options = {"mode": "tandem", "draft": "source", "draft_tokens": 4}
    tandem = [best for best, *_ in model.results(sources, glossary=shared, **options)]
    exact = {
        "sentences": len(greedy),
        "constrained": sum(bool(shared.find(text)) for text in sources),
        "terms": sum(len(shared.find(text)) for text in sources),
        "same": sum(a.text == b.text for a, b in zip(greedy, tandem, strict=True)),
        "missing": sum(len(best.missing_terms) for best in greedy),
        "rounds_of_tandem": sum(len(best.rounds) for best in tandem),
    }
    print("tandem", exact)
    result = {
        "model": Path(given.model).name,
        "generated": invented,
        "gold": quality,
        "tandem": exact,
        "machine": machine(),
        "versions": versions(),
    }
    if given.json:
        write_result(given.json, result)


if __name__ == "__main__":
    main()
