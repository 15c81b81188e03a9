"""All corpus formats give the same rows."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outrider.data.config import CorpusConfig
from outrider.data.corpus import Passage, Row, corpus_files, read_pairs, read_text
from outrider.errors import DataError, MissingExtraError

PAIRS = [("one", "eins"), ("", "leer"), ("two\u2028", "zwei 你好")]


def pairs(folder: Path, **corpus: object) -> list[Row]:
    config = CorpusConfig.model_validate(corpus)
    return list(read_pairs(config, lambda name: folder / name, max_characters=100))


def text(folder: Path, **corpus: object) -> list[Passage]:
    config = CorpusConfig.model_validate(corpus)
    return list(read_text(config, lambda name: folder / name))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same pairs in every format."""
    records = [{"source": s, "target": t, "both": {"en": s, "de": t}} for s, t in PAIRS]
    tsv = "".join(f"{s}\t{t}\n" for s, t in PAIRS)
    (tmp_path / "a.en").write_text("".join(f"{s}\n" for s, _ in PAIRS), encoding="utf-8")
    (tmp_path / "a.de.gz").write_bytes(gzip.compress("\n".join(t for _, t in PAIRS).encode()))
    (tmp_path / "a.tsv").write_text(tsv, encoding="utf-8")
    (tmp_path / "named.tsv").write_text("x\ttarget\tsource\n", encoding="utf-8")
    with (tmp_path / "named.tsv").open("a", encoding="utf-8") as file:
        file.writelines(f"-\t{t}\t{s}\n" for s, t in PAIRS)
    lines = "\n".join(json.dumps(record) for record in records)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    return tmp_path


@pytest.mark.parametrize(
    "corpus",
    [
        {"source": "a.en", "target": "a.de.gz"},
        {"pairs": "a.tsv"},
        {"pairs": "named.tsv", "source_column": "source", "target_column": "target"},
        {"pairs": "named.tsv", "source_column": "source", "target_column": 1},
        {"pairs": "a.jsonl.gz"},
        {"pairs": "a.jsonl.gz", "source_column": "both.en", "target_column": "both.de"},
        {"pairs": "a.parquet"},
        {"pairs": "a.parquet", "source_column": "both.en", "target_column": "both.de"},
    ],
)
def test_every_format_gives_the_same_pairs(folder: Path, corpus: dict[str, object]) -> None:
    rows = pairs(folder, **corpus)
    assert [(row.source, row.target) for row in rows] == PAIRS
    assert not any(row.fault for row in rows)
    first = 2 if corpus.get("pairs") == "named.tsv" else 1
    assert [row.line for row in rows] == [first, first + 1, first + 2]


def test_several_files_are_read_in_order(folder: Path) -> None:
    rows = pairs(folder, pairs=["a.tsv", "a.parquet"])
    assert [(row.source, row.target) for row in rows] == PAIRS * 2
    config = CorpusConfig(source=("a", "b"), target=("c", "d"))
    assert [*corpus_files(config, Path)] == ["a", "b", "c", "d"]


def test_a_pattern_matches_files_in_order(folder: Path, tmp_path: Path) -> None:
    for number in (2, 0, 1):
        part = "".join(f"{number} {source}\t{target}\n" for source, target in PAIRS)
        (tmp_path / f"part-{number}.tsv").write_text(part)
    rows = pairs(tmp_path, pairs="part-*.tsv")
    expected = [(f"{n} {source}", target) for n in range(3) for source, target in PAIRS]
    assert [(row.source, row.target) for row in rows] == expected
    config = CorpusConfig(pairs=("sub/part-*.tsv",))
    found = corpus_files(config, lambda name: tmp_path / Path(name).name)
    assert found == {f"sub/part-{n}.tsv": tmp_path / f"part-{n}.tsv" for n in range(3)}
    with pytest.raises(DataError, match="no file matches this pattern"):
        pairs(tmp_path, pairs="other-*.tsv")


@pytest.mark.parametrize("short", ["en", "de"])
def test_unequal_line_counts_name_both(tmp_path: Path, short: str) -> None:
    for side in ("en", "de"):
        (tmp_path / side).write_text("x\n" * (3 if side == short else 7))
    en, de = (3, 7) if short == "en" else (7, 3)
    with pytest.raises(DataError, match=f"en has {en} lines but .*de has {de}; line n of one"):
        pairs(tmp_path, source="en", target="de")


def test_faults_name_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "en").write_bytes(b"fine\nfine\nna\0ul\n" + b"x" * 900 + b"\n")
    (tmp_path / "de").write_bytes(b"gut\nf\xffsch\ngut\ngut\n")
    rows = [row for row in pairs(tmp_path, source="en", target="de") if row.fault]
    assert [(Path(row.place).name, row.line, row.fault) for row in rows] == [
        ("de", 2, "not UTF-8"),
        ("en", 3, "NUL byte"),
        ("en", 4, "too long"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.tsv", "only one\n", "only 1 columns"),
        ("a.jsonl", "{", "not JSON"),
        ("a.jsonl", "[" * 100_000, "not JSON"),
        ("a.jsonl", "[]", "no field 'source'"),
        ("a.jsonl", '{"source": 7, "target": "x"}', "field 'source' is not text"),
        ("a.jsonl", '{"source": "a\\u0000", "target": "x"}', "NUL byte"),
        ("a.jsonl", '{"source": "\\ud800", "target": "x"}', "not UTF-8"),
    ],
)
def test_bad_records_are_faults(tmp_path: Path, name: str, content: str, fault: str) -> None:
    (tmp_path / name).write_text(content)
    (row,) = pairs(tmp_path, pairs=name)
    assert (row.line, row.fault) == (1, fault)


def test_blank_lines_of_jsonl_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('\n{"source": "a", "target": "b"}\n\n')
    assert [(row.line, row.source) for row in pairs(tmp_path, pairs="a.jsonl")] == [(2, "a")]


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ({"pairs": "a.csv"}, "a.csv: files of pairs must end in .tsv, .jsonl"),
        ({"pairs": "named.tsv", "source_column": "en"}, "named.tsv: no column 'en' in its first"),
        ({"pairs": "a.parquet", "source_column": "en"}, "a.parquet: no column 'en'; it has source"),
        ({"pairs": "b.parquet"}, "b.parquet: no such file"),
        ({"pairs": "bad.parquet"}, "bad.parquet: damaged or not a Parquet file"),
        ({"pairs": "none.parquet"}, "none.parquet: the file is empty"),
        ({"pairs": "none.tsv"}, "none.tsv: the file is empty"),
    ],
)
def test_invalid_files_give_one_error_message(
    folder: Path, corpus: dict[str, object], message: str
) -> None:
    (folder / "bad.parquet").write_bytes(b"PAR1")
    (folder / "none.tsv").touch()
    empty = pa.table({"source": pa.array([], pa.string()), "target": pa.array([], pa.string())})
    pq.write_table(empty, folder / "none.parquet")
    with pytest.raises(DataError, match=message):
        pairs(folder, **corpus)


def test_running_text_keeps_every_character(tmp_path: Path) -> None:
    content = "\n\n a\tb \n" + "你" * 20_000 + "\n" + "line\n" * 5_000 + "end"
    (tmp_path / "text").write_text(content, encoding="utf-8")
    passages = text(tmp_path, target="text")
    assert "".join(passage.text for passage in passages) == content
    assert [passage.final for passage in passages] == [False] * (len(passages) - 1) + [True]
    assert max(len(passage.text) for passage in passages) < 40_000


def test_faults_of_running_text_have_their_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"one\ntw\xff\nthr\0ee\nfour\n\xe4\xbd")
    passages = text(tmp_path, target="text")
    faults = [(passage.line, passage.fault) for passage in passages if passage.fault]
    assert faults == [(2, "not UTF-8"), (3, "NUL byte"), (5, "not UTF-8")]
    assert "".join(passage.text for passage in passages if not passage.fault) == "one\nfour\n"


def test_records_of_running_text_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\nb"}\n{"text": "c"}')
    assert [(p.text, p.final) for p in text(tmp_path, pairs="a.jsonl")] == [
        ("a\nb", True),
        ("c", True),
    ]


def test_an_empty_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    with pytest.raises(DataError, match="text: the file is empty"):
        text(tmp_path, target="text")


def test_a_hub_dataset_is_streamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    def load_dataset(name: str, config: str, *, split: str, streaming: bool) -> object:
        assert (name, config, split, streaming) == ("team/corpus", "en-de", "test", True)
        return iter([{"translation": {"en": "one", "de": "eins"}}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (row,) = pairs(
        tmp_path,
        hub="team/corpus",
        hub_config="en-de",
        split="test",
        source_column="translation.en",
        target_column="translation.de",
    )
    assert row == Row("team/corpus[test]", 1, "one", "eins")


def test_a_failing_hub_dataset_gives_one_error_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import datasets

    def load_dataset(*_: object, **__: object) -> object:
        raise ValueError("Unknown split\n'tset'")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"team/corpus\[train\]: cannot be read from the Hub: Unk"):
        pairs(tmp_path, hub="team/corpus")


def test_the_hub_needs_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'outrider\[hub\]'"):
        pairs(tmp_path, hub="team/corpus")
