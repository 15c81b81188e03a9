"""Preparation from end to end; each fault of a corpus gives one error message and no files."""

import errno
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from outrider.data import shards
from outrider.data.config import PrepareConfig, Task
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import ConfigError, DataError, ResourceError
from tests.helpers.corpus import Configure, sentences


def run(config: PrepareConfig, task: Task = "translation", **options: bool) -> Prepared:
    return prepare(config, task=task, progress=False, **options)


def left_behind(config: PrepareConfig) -> list[str]:
    folder = Path(config.folder)
    return [path.name for path in folder.parent.iterdir() if path.name.startswith(folder.name)]


# --- output -------------------------------------------------------------------------------------


def test_several_corpora_are_joined_each_with_its_tag(tmp_path: Path, configure: Configure) -> None:
    (tmp_path / "back.tsv").write_text("machine\thuman\nmore\tmehr\n")
    more = [
        {"pairs": "back.tsv", "source_column": 1, "target_column": 0, "tag": "<bt>"},
        {"pairs": "back.tsv", "source_column": 0, "target_column": 1},
    ]
    config = configure(["a", "b"], ["A", "B"], more=more)
    table = pq.read_table(run(config).folder / "train-00000.parquet")
    assert table["source"].to_pylist() == ["a", "b", "<bt> human", "<bt> mehr", "machine", "more"]
    assert table["target"].to_pylist() == ["A", "B", "machine", "more", "human", "mehr"]
    assert run(config).reused
    (tmp_path / "back.tsv").write_text("machine\thuman\n")
    with pytest.raises(DataError, match=r"back\.tsv changed"):
        run(config)


def test_incompatible_corpora_are_refused(configure: Configure) -> None:
    with pytest.raises(ConfigError, match=r"data\.more\.0\.target: either all corpora"):
        run(configure(more=[{"source": "train.en"}]))
    with pytest.raises(ConfigError, match=r"data\.train\.tag: a language model has no source"):
        run(configure(train={"target": "train.en", "tag": "<x>"}), "language_model")


def test_shards_hold_text_and_ids(configure: Configure) -> None:
    prepared = run(configure(shard_rows=64, tokenizer={"vocab_size": 450}))
    split = prepared.manifest.splits["train"]
    assert [shard.rows for shard in split.shards] == [64, 64, 64, 64, 44]
    table = pq.read_table(prepared.folder / "train-00000.parquet")
    names = ["source", "target", "source_ids", "target_ids", "source_length", "target_length"]
    assert table.column_names == names
    assert table["source"].to_pylist() == sentences(300)[:64]
    for side in ("source", "target"):
        ids = table[f"{side}_ids"].to_pylist()
        assert ids == prepared.tokenizer.encode_batch(table[side].to_pylist())
        assert table[f"{side}_length"].to_pylist() == [len(row) for row in ids]
    assert split.shards[0].source_tokens == sum(table["source_length"].to_pylist())


def test_the_manifest_is_complete(configure: Configure) -> None:
    config = configure(["a", "a", "", "b", *sentences(9)], ["x", "x", "y", "z" * 99, *sentences(9)])
    prepared = run(config)
    manifest = json.loads((prepared.folder / "manifest.json").read_text())
    assert manifest["task"] == "translation"
    assert [file["name"] for file in manifest["inputs"]] == ["train.en", "train.de"]
    split = manifest["splits"]["train"]
    assert split["rows_read"] == 13
    assert {k: v["count"] for k, v in split["dropped"].items()} == {
        "duplicate": 1,
        "empty": 1,
        "length ratio": 1,
    }
    assert split["dropped"]["empty"]["example"].endswith("train.en, line 3:  | y")
    assert manifest["tokenizer"]["kind"] == "char"
    assert sorted(p.name for p in prepared.folder.iterdir()) == [
        "manifest.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "train-00000.parquet",
    ]


def test_a_validation_set_is_kept_whole(configure: Configure, tmp_path: Path) -> None:
    (tmp_path / "valid.tsv").write_text("a\ta\na\ta\nb\t" + "x" * 99 + "\n")
    config = configure(valid={"pairs": "valid.tsv"}, clean={"drop_equal": True, "max_ratio": 2})
    assert run(config).manifest.splits["valid"].rows == 3


@pytest.mark.parametrize(("held", "count"), [({"valid_rows": 7}, 7), ({"valid_fraction": 0.1}, 30)])
def test_held_out_pairs_are_spread_evenly(
    configure: Configure, held: dict[str, Any], count: int
) -> None:
    sources = [f"{n:03d}" for n in range(300)]
    prepared = run(configure(sources, sources, **held))
    texts = {
        split: pq.read_table(prepared.folder / f"{split}-00000.parquet")["source"].to_pylist()
        for split in ("train", "valid")
    }
    assert sorted(texts["train"] + texts["valid"]) == sources
    numbers = [int(text) for text in texts["valid"]]
    assert len(numbers) == count
    gaps = [b - a for a, b in pairwise(numbers)]
    assert max(gaps) - min(gaps) <= 1


def test_pairs_of_many_tokens_are_dropped(configure: Configure) -> None:
    prepared = run(
        configure(["x" * 9, "y" * 10, "z"], ["a" * 9, "bbb", "c"], clean={"max_tokens": 9})
    )
    split = prepared.manifest.splits["train"]
    assert split.rows == 2
    assert split.dropped["too many tokens"].example == (
        f"data.train cleaned, line 2: {'y' * 10} | bbb"
    )


def test_an_existing_tokenizer_is_used(configure: Configure, tmp_path: Path) -> None:
    first = run(configure())
    config = configure(folder=str(tmp_path / "two"), tokenizer={"folder": str(first.folder)})
    second = run(config)
    assert second.manifest.tokenizer["kind"] == "given"
    ids = [shard.sha256 for shard in first.manifest.splits["train"].shards]
    assert [shard.sha256 for shard in second.manifest.splits["train"].shards] == ids


def test_preparing_is_reproducible(configure: Configure, tmp_path: Path) -> None:
    values = {"tokenizer": {"vocab_size": 450}, "shard_rows": 100, "valid_rows": 5}
    one = run(configure(folder=str(tmp_path / "one"), **values)).manifest
    two = run(configure(folder=str(tmp_path / "two"), **values)).manifest
    assert one.splits == two.splits


def test_running_text_is_joined_and_cut(configure: Configure, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc\n\nd")
    (tmp_path / "b.txt").write_text("xy\r\n")
    config = configure(train={"target": ["a.txt", "b.txt"]}, sequence_length=5)
    prepared = run(config, "language_model")
    table = pq.read_table(prepared.folder / "train-00000.parquet")
    assert table.column_names == ["target", "target_ids", "target_length"]
    assert table["target"].to_pylist() == ["abc\n", "\ndx", "y\n"]
    assert table["target_length"].to_pylist() == [4, 4, 3]
    assert [row.count(1) for row in table["target_ids"].to_pylist()] == [0, 1, 1]


# --- repeated preparation -----------------------------------------------------------------------


def test_a_second_run_with_the_same_settings_does_nothing(configure: Configure) -> None:
    config = configure()
    first = run(config)
    before = (first.folder / "manifest.json").stat().st_mtime_ns
    again = run(config)
    assert not first.reused
    assert again.reused
    assert (again.folder / "manifest.json").stat().st_mtime_ns == before


def test_touched_or_missing_corpora_count_as_unchanged(
    configure: Configure, tmp_path: Path
) -> None:
    config = configure()
    run(config)
    (tmp_path / "train.en").touch()
    assert run(config).reused
    (tmp_path / "train.en").unlink()
    assert run(config).reused


def test_new_parts_are_refused_and_removed_parts_accepted(
    configure: Configure, tmp_path: Path
) -> None:
    lines = ["one house\tein Haus\n", "two houses\tzwei H\u00e4user\n"] * 40
    for number in range(2):
        (tmp_path / f"part-{number}.tsv").write_text("".join(f"{number} {one}" for one in lines))
    config = configure(train={"pairs": "part-*.tsv"}, clean={"drop_duplicates": False})
    assert [file.name for file in run(config).manifest.inputs] == ["part-0.tsv", "part-1.tsv"]
    assert run(config).reused
    (tmp_path / "part-2.tsv").write_text("a\tb\n")
    with pytest.raises(DataError, match=r"differently \(.*part-2.tsv is new\)"):
        run(config)
    for path in tmp_path.glob("part-*.tsv"):
        path.unlink()
    assert run(config).reused


def test_other_settings_are_refused_and_named(configure: Configure) -> None:
    run(configure())
    changed = configure(clean={"max_ratio": 3.0})
    with pytest.raises(
        DataError, match=r"differently \(data.clean.max_ratio was 9.0, is now 3.0\)"
    ):
        run(changed)
    with pytest.raises(DataError, match="task was translation, is now language_model"):
        run(configure(train={"target": "train.de"}), "language_model")
    assert run(changed, force=True).manifest.config["clean"]["max_ratio"] == 3.0
    assert left_behind(changed) == ["prepared"]


def test_other_text_is_refused_and_named(configure: Configure) -> None:
    run(configure())
    changed = configure(sentences(300, seed=7))
    with pytest.raises(
        DataError, match=r"differently \(.*train.en changed\); prepare with --force"
    ):
        run(changed)
    assert not run(changed, force=True).reused


def test_a_foreign_folder_is_never_replaced(configure: Configure, tmp_path: Path) -> None:
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "precious").touch()
    for force in (False, True):
        with pytest.raises(DataError, match=r"prepared: not a prepared folder .no manifest.json."):
            run(configure(), force=force)
    assert (tmp_path / "prepared" / "precious").exists()


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "content", "message"),
    [
        ("en", b"", r"train.en: the file is empty"),
        ("en", None, r"train.en: no such file"),
        ("de", b"x\n" * 299, r"train.en has 300 lines but .*train.de has 299"),
        ("de", b"x\n" * 7 + b"\xff\n" + b"x\n" * 292, r"train.de, line 8: not UTF-8; fix"),
        ("en", b"x\n" * 7 + b"\0\n" + b"x\n" * 292, r"train.en, line 8: NUL byte; fix the line"),
        ("en", b"\n" * 300, r"data.train: no pair is left of 300 after cleaning \(300 empty\)"),
    ],
)
def test_a_bad_corpus_gives_one_error_message_and_no_files(
    configure: Configure, tmp_path: Path, side: str, content: bytes | None, message: str
) -> None:
    config = configure()
    (tmp_path / f"train.{side}").unlink()
    if content is not None:
        (tmp_path / f"train.{side}").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        run(config)
    assert "\n" not in str(caught.value)
    assert left_behind(config) == []


def test_bad_lines_can_be_dropped_and_are_counted(configure: Configure, tmp_path: Path) -> None:
    config = configure(clean={"on_bad_text": "drop"})
    lines = (tmp_path / "train.en").read_bytes().split(b"\n")
    lines[3], lines[5], lines[7] = b"\xff", b"a\0b", "é".encode() * 200_000
    (tmp_path / "train.en").write_bytes(b"\n".join(lines))
    dropped = run(config).manifest.splits["train"].dropped
    assert {reason: entry.count for reason, entry in dropped.items()} == {
        "not UTF-8": 1,
        "NUL byte": 1,
        "too long": 1,
    }
    assert len(dropped["too long"].example) < 300


def test_a_long_line_is_always_dropped(configure: Configure) -> None:
    prepared = run(configure(["x" * 200_000, *sentences(5)], sentences(6)))
    split = prepared.manifest.splits["train"]
    assert (split.rows, split.dropped["too long"].count) == (5, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"one\n\xff\n", "text, line 2: not UTF-8"), (b"\0", "text, line 1: NUL byte")],
)
def test_bad_running_text_gives_one_error_message(
    configure: Configure, tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "text").write_bytes(content)
    config = configure(train={"target": "text"})
    with pytest.raises(DataError, match=message):
        run(config, "language_model")
    assert left_behind(config) == []


def test_running_text_of_bad_lines_only(configure: Configure, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff\n")
    config = configure(train={"target": "text"}, clean={"on_bad_text": "drop"})
    with pytest.raises(DataError, match=r"data.train: no text is left after cleaning"):
        run(config, "language_model")


@pytest.mark.parametrize("full_after", range(0, 14, 3))
def test_a_full_disk_gives_one_error_message_and_no_files(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, full_after: int
) -> None:
    """The disk is full at the n-th block or file."""
    config = configure(shard_rows=50, tokenizer={"vocab_size": 450})
    left = [full_after]

    def fill(*_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    for owner, name in ((shards._OpenShard, "write"), (shards._OpenShard, "close")):
        original = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *args, original=original: (fill(), original(*args))[1]
        )
    with pytest.raises(ResourceError, match="prepared: the disk is full or a quota is reached"):
        run(config)
    assert left_behind(config) == []


def test_an_interruption_leaves_no_files(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure()

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider.data.prepare.train_tokenizer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(config)
    assert left_behind(config) == []


def test_more_held_out_pairs_than_pairs(configure: Configure) -> None:
    with pytest.raises(
        DataError, match=r"data.valid_rows: 300 pairs cannot be held out of the 300"
    ):
        run(configure(valid_rows=300))


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        ("translation", {"train": {"target": "a"}}, "data.train.source: is required to translate"),
        ("translation", {"sequence_length": 9}, "data.sequence_length: has no effect on transl"),
        ("language_model", {}, "data.train.source: a language model has only target text"),
        (
            "language_model",
            {"train": {"target": "a"}, "valid_rows": 3},
            "data.valid_rows: counts pairs; give valid_fraction",
        ),
        (
            "language_model",
            {"train": {"target": "a"}, "clean": {"max_ratio": 3}},
            "data.clean.max_ratio: has no effect on a language model",
        ),
    ],
)
def test_settings_without_effect_are_refused(
    configure: Configure, task: Task, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(configure(**values), task)


# --- opening ------------------------------------------------------------------------------------


def test_opening_checks_the_files(configure: Configure) -> None:
    folder = run(configure()).folder
    shard = folder / "train-00000.parquet"
    shard.write_bytes(shard.read_bytes() + b"x")
    open_prepared(folder)
    with pytest.raises(DataError, match=r"train-00000.parquet: changed since it was written"):
        open_prepared(folder, verify=True)
    shard.unlink()
    with pytest.raises(DataError, match=r"train-00000.parquet: missing; run outrider prepare"):
        open_prepared(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "manifest.json: is not JSON"),
        ("[]", "manifest.json: must hold one JSON object, not a list"),
        ("{}", "manifest.json: has format None, this version reads 1"),
        ('{"format": 99}', "manifest.json: has format 99, this version reads 1"),
        ('{"format": 1}', "manifest.json: damaged at task"),
    ],
)
def test_a_damaged_manifest_is_named(configure: Configure, content: str, message: str) -> None:
    folder = run(configure()).folder
    (folder / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=message):
        open_prepared(folder)


def edit_settings(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    change(values["config"])
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("key", ["shard_rows", "tokenizer", "clean.drop_equal", "train.split"])
def test_a_key_missing_from_older_settings_has_its_default(configure: Configure, key: str) -> None:
    config = configure(tokenizer={"kind": "unigram"})
    folder = run(config).folder
    section, _, name = key.rpartition(".")
    edit_settings(folder, lambda values: (values[section] if section else values).pop(name))
    assert run(config).reused
    changed = config.model_copy(
        update={"shard_rows": 7, "clean": config.clean.model_copy(update={"drop_equal": True})}
    )
    with pytest.raises(DataError, match=r"was prepared differently .*is now"):
        run(changed)


def test_a_key_of_a_newer_version_is_a_difference(configure: Configure) -> None:
    config = configure()
    edit_settings(run(config).folder, lambda values: values.update(colour="red"))
    with pytest.raises(DataError, match=r"data\.colour was 'red', which this version"):
        run(config)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: not a prepared folder .no manifest.json.; run"):
        open_prepared(tmp_path / "nowhere")


@pytest.mark.parametrize("task", ["translation", "language_model"])
def test_a_saved_config_with_all_its_defaults_prepares_the_same(
    configure: Configure, task: Task
) -> None:
    config = configure(shard_rows=50)
    if task == "language_model":
        config = configure(train={"target": "train.de"})
    written = PrepareConfig.model_validate(config.model_dump(mode="json"))
    assert run(config, task).manifest == run(written, task).manifest
    assert run(written, task).reused
