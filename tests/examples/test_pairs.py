"""Generators of example pairs: targets follow from sources, and no test pair is trained on."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

MAKERS = Path(__file__).resolve().parents[2] / "examples" / "pairs"
COLOURS = ("red", "green", "blue", "yellow", "white")


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(MAKERS / script), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module", params=["captions", "questions", "summaries"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / request.param
    run(f"{request.param}.py", "--out", str(folder))
    return folder


def pairs(folder: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    train = [tuple(line.split("\t")) for line in (folder / "train.tsv").read_text().splitlines()]
    sides = [(folder / f"test.{side}").read_text().splitlines() for side in ("source", "target")]
    return train, list(zip(*sides, strict=True))


def answer(story: str) -> str:
    """Answer by following the sentences in order."""
    *told, asked = re.findall(r"[^.?]+[.?]", story)
    place: dict[str, str] = {}
    holder: dict[str, str] = {}
    for sentence in told:
        who, verb, *_, what = sentence.strip(" .").split()
        if verb == "took":
            holder[what] = who
        else:
            place[who] = what
    who = asked.strip(" ?").split()[-1]
    return place[holder.get(who, who)]


def summary_says(report: str, summary: str) -> bool:
    """Whether a summary has the result given by the goals of its report."""
    first = re.match(r"The (\w+) met the (\w+)\.", report)
    assert first is not None
    scored = re.findall(
        r"scored for the (\w+)|goal of the (\w+) by|The (\w+) scored through", report
    )
    goals = [next(filter(None, found)) for found in scored]
    counts = {team: goals.count(team) for team in first.groups()}
    most, least = max(counts.values()), min(counts.values())
    if not goals:
        return summary == "No goals."
    if most == least:
        return summary.startswith(f"A draw, {most} all")
    return summary.startswith(f"The {max(counts, key=counts.__getitem__)} won {most} to {least}")


def test_targets_follow_from_sources(made: Path) -> None:
    train, test = pairs(made)
    assert not {*train} & {*test}
    for source, target in [*train[:500], *test]:
        if made.name == "questions":
            assert answer(source) == target
        elif made.name == "summaries":
            assert summary_says(source, target)
        else:
            pixels = source.split()
            assert len(pixels) == 100
            colours = {word[0] for word in target.split() if word in COLOURS}
            assert colours == {*pixels} - {"k"}


def test_the_most_common_answer_is_scored(made: Path) -> None:
    train, test = pairs(made)
    said = run("baseline.py", str(made), "--metric", "accuracy")
    found = re.match(r"always '(.*)'\naccuracy: ([\d.]+)\n", said)
    assert found is not None
    targets = [target for _, target in train]
    assert targets.count(found[1]) == max(map(targets.count, {*targets}))
    right = sum(target == found[1] for _, target in test) / len(test)
    assert float(found[2]) == pytest.approx(100 * right, abs=0.05)
