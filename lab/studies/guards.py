"""False alarms of the guards on human and good machine translations, and detected faults.

    python lab/studies/guards.py CORPORA --models demo/zh-en demo/en-de --json results/guards.json

CORPORA is the folder of shared corpora. Clean sets are the references of Flores, newstest, Tatoeba,
captions and software strings, each as the translation of its source, and outputs of other systems.
The translations of the given models are counted apart, without and with the guards.
Faults are inserted into the references: a phrase repeated, the second
half cut, the source as the translation, the reference of another line's language, no words.
"""

import argparse
import gzip
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from time import perf_counter
from typing import Any

from outrider.runtime import Translator, load
from outrider.runtime.guards import check
from outrider.runtime.provenance import machine, versions, write_result

LINES = 1000
FLORES = "cs", "de", "en", "fr", "zh"
Pairs = list[tuple[str, str]]


def read(path: Path, lines: int) -> list[str]:
    """Read the first lines of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line, _ in zip(file, range(lines), strict=False)]


def read_flores(data: Path, lines: int) -> dict[str, list[str]]:
    """Read the test sentences in every language."""
    return {code: read(data / f"flores/devtest.{code}.gz", lines) for code in FLORES}


def zipped(*texts: list[str]) -> Pairs:
    """Pair sources and translations, without empty ones."""
    return [pair for pair in zip(*texts, strict=True) if all(pair)]


def clean_sets(data: Path, lines: int) -> Iterator[tuple[str, str, Pairs]]:
    """Yield the name, target language and pairs of each clean set."""
    flores = {code: read(data / f"flores/devtest.{code}.gz", lines) for code in FLORES}
    folder = data / "firefox_eval/en-pt"
    assert read(folder / "flores-test.en.gz", 5) == flores["en"][:5]
    flores["pt"] = read(folder / "flores-test.pt.gz", lines)
    for source, target in permutations(sorted(flores), 2):
        yield (
            f"flores {source}-{target}",
            target,
            zipped(flores[source], flores[target]),
        )
    for folder in sorted((data / "firefox_eval").glob("??-??")):
        source, target = folder.name.split("-")
        texts = read(folder / f"flores-test.{source}.gz", lines)
        for path in sorted(folder.glob(f"flores-test.*.{target}.gz")):
            system = path.name.split(".")[1]
            yield (
                f"{system} {folder.name}",
                target,
                zipped(texts, read(path, lines)),
            )
    for name, parts, codes in (
        ("newstest2014", "wmt_newstest_en_de/newstest2014.{}.gz", "en de"),
        ("tatoeba", "tatoeba_en_de/test.{}.gz", "en de"),
        ("tatoeba", "tatoeba_en_zh/test.{}.gz", "en zh"),
        ("captions", "multi30k/test_2016_flickr.{}.gz", "en cs"),
        ("captions", "multi30k/test_2016_flickr.{}.gz", "en de"),
        ("captions", "multi30k/test_2016_flickr.{}.gz", "en fr"),
        ("software", "debian_gettext_en_de/test.{}.gz", "en de"),
    ):
        for source, target in permutations(codes.split()):
            texts = [read(data / parts.format(code), lines) for code in (source, target)]
            yield f"{name} {source}-{target}", target, zipped(*texts)


def looped(source: str, good: str, other: str, chance: random.Random) -> str:
    """Repeat a phrase of one to four words, or characters, up to the end."""
    units = list(good) if " " not in good else good.split()
    place, length = chance.randrange(len(units)), chance.randint(1, 4)
    phrase = units[place : place + length]
    return ("" if " " not in good else " ").join(units[:place] + phrase * chance.randint(4, 30))


def halved(source: str, good: str, other: str, chance: random.Random) -> str:
    """Keep the first half."""
    return good[: len(good) // 2]


def copied(source: str, good: str, other: str, chance: random.Random) -> str:
    """Return the source."""
    return source


def foreign(source: str, good: str, other: str, chance: random.Random) -> str:
    """Return the translation into a third language."""
    return other


def empty(source: str, good: str, other: str, chance: random.Random) -> str:
    """Return a mark without words."""
    return chance.choice(["", "♪", "...", "–"])


FAULTS: tuple[Callable[[str, str, str, random.Random], str], ...] = (
    *(looped, halved, copied, foreign, empty),
)


def detected(data: Path, lines: int) -> dict[str, Any]:
    """Return the share of inserted faults that are found, by fault and pair, and by their name."""
    flores = {code: read(data / f"flores/devtest.{code}.gz", lines) for code in FLORES}
    found: dict[str, Any] = {}
    chance = random.Random(0)
    for fault in FAULTS:
        rates, names = {}, Counter[str]()
        for source, target in permutations(flores, 2):
            third = next(code for code in flores if code not in (source, target))
            hits = 0
            for text, good, other in zip(
                flores[source], flores[target], flores[third], strict=True
            ):
                bad = fault(text, good, other, chance)
                name = check(text, bad, target=target, several=True)
                hits += name is not None
                names[name or "none"] += 1
            rates[f"{source}-{target}"] = round(hits / lines, 4)
        total = sum(rates.values()) / len(rates)
        found[fault.__name__] = {"share": round(total, 4), "by_pair": rates, "named": dict(names)}
    return found


def repaired(folder: str, data: Path, lines: int) -> dict[str, Any]:
    """Return the faults of a model's translations, without and with decoding them again."""
    source = Path(folder).name.split("-")[0]
    model, found = load(folder), {}
    assert isinstance(model, Translator)
    for name, path in (
        ("flores", data / f"flores/devtest.{source}.gz"),
        ("tatoeba", data / f"tatoeba_{'_'.join(sorted(Path(folder).name.split('-')))}"),
    ):
        file = path / f"test.{source}.gz" if path.is_dir() else path
        texts = read(file, lines)
        before = [
            check(*pair, target=model.writes) for pair in zipped(texts, model.translate(texts))
        ]
        results = [best for best, *_ in model.results(texts, guard=True)]
        left = Counter(fault for result in results for fault in result.faults)
        found[name] = {
            "lines": len(texts),
            "before": dict(Counter(fault for fault in before if fault)),
            "left": dict(left),
        }
        print(folder, name, found[name])
    return found


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpora", type=Path)
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--lines", type=int, default=LINES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", action="store_true", help="Print every false alarm.")
    given = parser.parse_args()
    sets, seconds, total, alarms, people, of_people = {}, 0.0, 0, 0, 0, 0
    for name, target, pairs in clean_sets(given.corpora, given.lines):
        began = perf_counter()
        faults = [check(*pair, target=target, several=True) for pair in pairs]
        seconds += perf_counter() - began
        counts = Counter(fault for fault in faults if fault)
        total, alarms = total + len(pairs), alarms + counts.total()
        human = name.split()[0] in ("flores", "newstest2014", "tatoeba", "captions", "software")
        if human:
            people, of_people = people + len(pairs), of_people + counts.total()
        sets[name] = {"lines": len(pairs), "alarms": dict(counts)}
        sets[name]["share"] = round(counts.total() / len(pairs), 5)
        print(f"{name:32} {len(pairs):5} {100 * sets[name]['share']:.2f} % {dict(counts)}")
        if given.show:
            for fault, pair in zip(faults, pairs, strict=True):
                if fault:
                    print("   ", fault, *pair, sep="\n      ")
    result = {
        "clean": {
            "lines": total,
            "alarms": alarms,
            "share": round(alarms / total, 5),
            "sets": sets,
        },
        "microseconds_each": round(1e6 * seconds / total, 1),
        "models": {one: repaired(one, given.corpora, given.lines) for one in given.models},
        "inserted": detected(given.corpora, given.lines),
        "machine": machine(),
        "versions": versions(),
    }
    print(result["human"], {key: result["clean"][key] for key in ("lines", "alarms", "share")})
    print("microseconds", result["microseconds_each"])
    for name, values in result["inserted"].items():
        print(name, values["share"], values["named"], min(values["by_pair"].values()))
    if given.json:
        write_result(given.json, result)


if __name__ == "__main__":
    main()
