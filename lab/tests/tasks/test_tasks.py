"""Built-in tasks: examples are correct and reproducible."""

import re
from pathlib import Path
from random import Random
from string import ascii_lowercase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.config import build_config
from outrider.data.config import PrepareConfig
from outrider.data.prepare import prepare
from outrider.errors import ConfigError, DataError
from outrider_lab.tasks import Example, SequenceTask, build_task, task_names

DRAWN = ["addition", "copy", "duplication", "listops", "parity", "recall", "reverse"]
SMALL = {"examples": 60, "valid_examples": 10, "test_examples": 5}


def small(name: str, **changes: object) -> SequenceTask:
    lengths = {"train_length": 14, "test_lengths": [12, 20]}
    task = build_task(name, {**SMALL, **lengths, **changes})
    assert isinstance(task, SequenceTask)
    return task


def value_of(text: str) -> int:
    """Evaluate a ListOps expression by rewriting innermost lists until one digit remains."""
    rules = {
        "X": lambda row: row[-1],
        "N": lambda row: row[0],
        "D": lambda row: row[(len(row) - 1) // 2],
        "S": lambda row: sum(row) % 10,
    }

    def rewrite(found: re.Match[str]) -> str:
        return str(rules[found[1]](sorted(map(int, found[2]))))

    while len(text) > 1:
        text, count = re.subn(r"\(([XNDS])(\d+)\)", rewrite, text)
        assert count, text
    return int(text)


def recalled(source: str) -> str:
    shown, asked = source[:-1].rstrip("-"), source[-1]
    return shown[shown.index(asked) + 1]


def added(source: str) -> str:
    """Add digit by digit with a carry."""
    left, right = source.split("+")
    carry, digits = 0, ""
    for place in range(max(len(left), len(right))):
        total = carry + sum(int(n[place]) for n in (left, right) if place < len(n))
        carry, digits = total // 10, digits + str(total % 10)
    return (digits + str(carry)).rstrip("0") or "0"


CHECKS = {
    "addition": added,
    "copy": lambda source: source,
    "duplication": lambda source: source,
    "listops": lambda source: str(value_of(source)),
    "parity": lambda source: str(sum(map(int, source)) % 2),
    "recall": recalled,
    "reverse": lambda source: "".join(reversed(source)),
}


def test_every_drawn_task_is_checked() -> None:
    assert sorted(CHECKS) == DRAWN
    assert task_names() == sorted([*DRAWN, "text", "translation"])


@settings(max_examples=60)
@given(name=st.sampled_from(DRAWN), length=st.integers(10, 90), seed=st.integers(0, 2**16))
def test_an_example_has_its_length_and_the_right_output(name: str, length: int, seed: int) -> None:
    task = small(name)
    example = task.draw(Random(seed), length)
    assert len(example.source) == length
    assert example.target == CHECKS[name](example.source)
    assert task.separator not in example.source
    assert example.source.isascii()
    assert not re.search(r"\s", example.source + example.target)


@pytest.mark.parametrize("name", DRAWN)
def test_examples_are_reproducible(name: str) -> None:
    assert list(small(name).examples("train")) == list(small(name).examples("train"))
    assert small(name).tests() == small(name).tests()
    assert small(name).tests() != small(name, seed=1).tests()
    assert list(small(name).examples("train"))[:10] != list(small(name).examples("valid"))


def test_the_first_examples_do_not_change() -> None:
    """The examples depend on the seed only, not on the version of Python or of a library."""
    assert next(small("copy").examples("train")) == Example(*["574106555865"] * 2)


@pytest.mark.parametrize("name", DRAWN)
def test_no_test_example_of_some_length_is_trained_on(name: str) -> None:
    task = small(name, examples=2000, test_lengths=[12, 14], test_examples=20)
    tested = {example.source for exam in task.tests() for example in exam.examples}
    trained = [example.source for example in task.examples("train")]
    assert len(trained) == 2000
    assert not tested & set(trained)
    assert max(map(len, trained)) <= 14


def test_too_many_test_examples_are_refused() -> None:
    task = build_task(
        "duplication",
        {"symbols": 2, "train_length": 12, "test_lengths": [12], "test_examples": 50_000}
        | {"examples": 50},
    )
    with pytest.raises(ConfigError, match=r"task.test_examples: leaves too few examples"):
        list(task.examples("train"))


@pytest.mark.parametrize("kind", ["seq2seq", "language_model"])
@pytest.mark.parametrize("name", DRAWN)
def test_task_files_are_prepared_with_one_token_per_symbol(
    tmp_path: Path, name: str, kind: str
) -> None:
    task = small(name)
    if kind not in task.model_types:
        pytest.skip("not for this type")
    task.write(tmp_path / "task")
    section = {**task.section(tmp_path / "task", kind), "folder": str(tmp_path / "data")}
    data_task = "translation" if kind == "seq2seq" else "language_model"
    prepared = prepare(build_config(PrepareConfig, section), task=data_task, progress=False)
    examples = list(task.examples("train"))
    split = prepared.manifest.splits["train"]
    if kind == "seq2seq":
        assert split.rows == len(examples), "nothing may be cleaned away"
        assert split.tokens >= sum(len(example.target) for example in examples)
    else:
        characters = sum(len(task.line(example)) for example in examples)
        assert split.tokens == characters + 1, "the end of the text"
    sources = [example.source for exam in task.tests() for example in exam.examples]
    rows = prepared.tokenizer.encode_batch(sources)
    assert [len(row) for row in rows] == list(map(len, sources))
    assert prepared.tokenizer.unk_id not in {token for row in rows for token in row}


def test_files_are_written_once(tmp_path: Path) -> None:
    task = small("copy")
    task.write(tmp_path / "task")
    before = (tmp_path / "task" / "train.txt").stat().st_mtime_ns
    task.write(tmp_path / "task")
    assert (tmp_path / "task" / "train.txt").stat().st_mtime_ns == before
    lines = (tmp_path / "task" / "train.txt").read_text().splitlines()
    pairs = [line.split("=") for line in lines]
    assert [left for left, _ in pairs] == (tmp_path / "task/train.source").read_text().splitlines()


def test_a_text_is_divided_in_three(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(100))
    (tmp_path / "a.txt").write_text(text)
    task = build_task("text", data=tmp_path / "a.txt")
    task.write(tmp_path / "task")
    parts = [
        (tmp_path / "task" / f"{split}.txt").read_text() for split in ("train", "valid", "test")
    ]
    assert "".join(parts) == text
    assert [len(part) for part in parts[1:]] == [len(text) // 20] * 2


def test_a_parallel_corpus_is_found_by_its_suffixes(tmp_path: Path) -> None:
    for name in ("train", "valid", "test_2016"):
        for ending in ("en", "de"):
            (tmp_path / f"{name}.{ending}").write_text("a\n")
    task = build_task("translation", data=tmp_path)
    section = task.section(tmp_path / "task", "seq2seq")
    assert section["train"] == {"source": "train.en", "target": "train.de"}
    assert task.test_pair().source == tmp_path / "test_2016.en"
    back = build_task("translation", {"source": "de", "target": "en"}, data=tmp_path)
    assert back.test_pair().reference == tmp_path / "test_2016.en"
    with pytest.raises(DataError, match=r"has no file train\.fr"):
        build_task("translation", {"target": "fr"}, data=tmp_path)


def test_a_parallel_corpus_of_a_run_config(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(
        "name: a\nfolder: b\n"
        "data: {folder: c, root: d, train: {source: s, target: t}, valid_rows: 3}\n"
        "evaluate: {source: x.en, reference: x.de, tokenize: zh}\n"
    )
    task = build_task("translation", {"root": "elsewhere"}, data=run)
    section = task.section(tmp_path, "seq2seq")
    assert section == {
        "root": "elsewhere",
        "train": {"source": "s", "target": "t"},
        "valid_rows": 3,
    }
    assert task.test_pair() == (Path("elsewhere/x.en"), Path("elsewhere/x.de"), "zh")
    run.write_text("name: a\n")
    with pytest.raises(ConfigError, match=r"--data: .* must have a section data"):
        build_task("translation", data=run)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("copi", {}, r"--task: unknown 'copi' \(did you mean 'copy'"),
        ("copy", {"train_lenght": 3}, "task.train_lenght: unknown key"),
        ("copy", {"test_lengths": []}, "task.test_lengths: got None, expected 1 or more"),
        ("recall", {"train_length": 9}, "task.train_length: got 9, expected 10 or more"),
        ("recall", {"keys": 3}, "pairs 4 is more than keys 3; lower pairs"),
        ("listops", {"test_lengths": [2]}, "task.test_lengths: got 2, expected 4 or more"),
        ("text", {}, "--data: is required for the task text"),
        ("translation", {}, "--data: is required for the task translation"),
    ],
)
def test_invalid_settings_are_named(name: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_task(name, values)


def test_keys_are_drawn_from_the_given_number_of_letters() -> None:
    task = small("recall", keys=5)
    drawn = {symbol for n in range(99) for symbol in task.draw(Random(n), 12).source}
    assert drawn & set(ascii_lowercase) == set("abcde")


def test_a_corpus_for_a_drawn_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="--data: has no effect on copy"):
        build_task("copy", data=Path("x"))


def test_invalid_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe" * 50)
    with pytest.raises(DataError, match="is not UTF-8 text"):
        build_task("text", data=tmp_path / "a.txt").write(tmp_path / "task")
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(DataError, match="5 characters are too few"):
        build_task("text", data=tmp_path / "a.txt").write(tmp_path / "task")
