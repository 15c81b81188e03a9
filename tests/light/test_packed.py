"""Packed weights are kept: a second start packs nothing, and nothing that is kept can do harm."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

import outrider
import plain_folder
from outrider.backends import packed
from outrider.cli.main import run
from outrider.errors import ResourceError
from outrider.files.cache import VARIABLE, cache_folder
from outrider.formats.description import Seq2SeqDescription
from outrider.runtime.export_native import export_native

TEXTS = ["Where is the station?", "It is late."]


@pytest.fixture
def model(demo: Path, tmp_path: Path) -> Path:
    return shutil.copytree(demo, tmp_path / "model")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def start(folder: Path) -> tuple[bool, list[str]]:
    """Whether packed weights were found, and what is said with them."""
    loaded = outrider.load(folder)
    return loaded.backend.core.mapped, loaded.translate(TEXTS, draft_tokens=4)


def test_a_second_start_packs_nothing_and_says_the_same(model: Path, cache: Path) -> None:
    first, second = start(model), start(model)
    assert (first[0], second[0]) == (False, True)
    assert first[1] == second[1]
    assert len(list(cache.iterdir())) == 1


def test_other_weights_are_packed_again(model: Path, cache: Path) -> None:
    start(model)
    path = model / "model.safetensors"
    before, raw = path.stat(), bytearray(path.read_bytes())
    raw[-200_000:] = bytes(200_000)
    path.write_bytes(raw)
    assert not start(model)[0], "the time of the file is another"
    path.write_bytes(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not start(model)[0], "the time is the same, but not what the file says"


def test_another_drafter_is_packed_again(model: Path, cache: Path) -> None:
    start(model)
    shutil.rmtree(model / "drafter")
    loaded = outrider.load(model)
    assert not loaded.backend.core.mapped
    assert outrider.load(model).backend.core.mapped


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "another", "folder"])
def test_what_is_damaged_is_as_good_as_none(model: Path, cache: Path, damage: str) -> None:
    expected = start(model)[1]
    (path,) = cache.iterdir()
    raw = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "another":  # it says it is of this model, and is not
        about = packed.identity(packed_parts(model)).encode()
        other = plain_folder.save(model.parent / "other", small())
        tiny = packed_parts(other)
        core = outrider.load(other, backend="native").backend.core
        core.save(path, about.decode())
        assert packed.identity(tiny) != about.decode()
    else:
        path.write_bytes({"empty": b"", "cut": raw[:-9], "noise": bytes(range(256)) * 40}[damage])
    assert start(model) == (False, expected)
    if damage != "folder":
        assert start(model) == (True, expected), "it was written again"


def small() -> Seq2SeqDescription:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    return Seq2SeqDescription(
        vocab_size=plain_folder.WORDS, encoder_layers=1, decoder_layers=1, **sizes
    )


def packed_parts(folder: Path):
    from outrider.formats.folder import read_parts

    return read_parts(folder)


def test_a_cache_that_cannot_be_written_to_is_no_error(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    long, absent = "n" * 300, "~no-such-user/cache"
    below = tmp_path / "file" / "below"
    for place in ("off", "", str(below), "/proc/nowhere", absent, long, str(tmp_path / long)):
        monkeypatch.setenv(VARIABLE, place)
        assert not start(model)[0]
        assert not start(model)[0]


def test_the_cache_is_where_the_system_keeps_such_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "outrider"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "outrider"


def test_what_nobody_uses_is_removed_in_the_end(model: Path, cache: Path) -> None:
    cache.mkdir()
    old, new = cache / "a.packed", cache / "b.packed"
    for path in (old, new):
        path.touch()
    long_ago = time.time() - packed.UNUSED_SECONDS - 10
    os.utime(old, (long_ago, long_ago))
    start(model)
    assert (old.exists(), new.exists()) == (False, True)


def test_packed_weights_may_lie_beside_the_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(model), "--to", "native"]) == 0
    assert capsys.readouterr().out == f"wrote {model / packed.FILE}\n"
    assert start(model)[0]
    moved = shutil.copytree(model, tmp_path / "moved", copy_function=shutil.copyfile)
    assert start(moved) == start(model), "a copy is the same model, whatever its time"


def test_export_says_what_is_wrong(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(model), str(model / "new"), "--to", "native"]) == 2
    assert "FOLDER: has no effect with --to native" in capsys.readouterr().err
    assert run(["export", str(model)]) == 2
    assert "FOLDER: is missing; name the new folder" in capsys.readouterr().err
    if os.geteuid():  # a superuser may write anywhere
        model.chmod(0o500)
        with pytest.raises(ResourceError, match="cannot be written"):
            export_native(model)
