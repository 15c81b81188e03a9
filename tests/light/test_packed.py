"""Packed weights are cached: a second start reuses them, and a bad cache file changes no output."""

import mmap
import os
import random
import shutil
import sys
import time
from pathlib import Path

import pytest

import outrider
from outrider.backends import native, packed
from outrider.cli.main import run
from outrider.errors import ResourceError
from outrider.files.writing import VARIABLE, cache_folder
from outrider.formats.spec import Seq2SeqSpec
from outrider.runtime.backend import export_native
from tests.helpers import plain_folder

TEXTS = ["Where is the station?", "It is late."]
FLIPS = int(os.environ.get("OUTRIDER_FLIPS", "100"))
"""Bits that are flipped; 1,000 take two minutes."""


@pytest.fixture
def model(demo: Path, tmp_path: Path) -> Path:
    return shutil.copytree(demo, tmp_path / "model")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def start(folder: Path, **options: object) -> tuple[bool, list[str]]:
    """Return whether packed weights were found, and the translations."""
    loaded = outrider.load(folder)
    return loaded.backend.core.mapped, loaded.translate(TEXTS, **options or {"draft_tokens": 4})


def test_a_second_start_reuses_packed_weights(model: Path, cache: Path) -> None:
    first, second = start(model), start(model)
    assert (first[0], second[0]) == (False, True)
    assert first[1] == second[1]
    assert len(list(cache.glob("*.packed"))) == 1


def test_other_weights_are_packed_again(model: Path, cache: Path) -> None:
    start(model)
    path = model / "model.safetensors"
    before, first = path.stat(), path.read_bytes()
    raw = bytearray(first)
    raw[-200_000:] = bytes(200_000)
    path.write_bytes(raw)
    assert not start(model)[0]
    raw[-100_000] = 1
    path.write_bytes(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not start(model)[0], "size and time are the same"
    path.write_bytes(first)
    assert start(model)[0], "the first weights again"


def reverse_rows(path: Path) -> None:
    """Reverse eight rows in the middle of the embeddings; checksum, size and time stay the same."""
    from outrider.formats.safetensors import read_safetensors

    table = read_safetensors(path)["tokens.weight"].data
    middle = len(table) // 2
    rows = [row.tobytes() for row in table[middle : middle + 8]]
    before, raw = path.stat(), path.read_bytes()
    assert raw.count(b"".join(rows)) == 1
    path.write_bytes(raw.replace(b"".join(rows), b"".join(reversed(rows))))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_rows_in_another_order_are_packed_again(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_native(model)
    assert start(model)[0]
    reverse_rows(model / "model.safetensors")
    found = start(model)
    assert not found[0], "model.packed is stale"
    assert start(model) == (True, found[1]), "from the cache"
    monkeypatch.setenv(VARIABLE, "off")
    (model / packed.FILE).unlink()
    assert start(model) == (False, found[1])


@pytest.mark.parametrize("name", ["model.safetensors", "drafter/model.safetensors", "config.json"])
def test_every_byte_changes_the_identity(model: Path, name: str) -> None:
    path, dice = model / name, random.Random(0)
    raw, seen = path.read_bytes(), {packed.identity(packed_parts(model))}
    parts = packed_parts(model)
    for _ in range(20):
        changed = bytearray(raw)
        changed[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
        path.write_bytes(changed)
        seen.add(packed.identity(parts))
    assert len(seen) == 21
    path.write_bytes(raw)
    assert packed.identity(parts) in seen


def test_a_checksum_is_computed_once(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import outrider_native

    read: list[str] = []
    checksum = outrider_native.checksum

    def counted(path: Path) -> int:
        read.append(path.name)
        return checksum(path)

    monkeypatch.setattr(outrider_native, "checksum", counted)
    start(model)
    start(model)
    assert len(read) > 6, "files that are this new may change again and keep their times"
    monkeypatch.setattr(packed, "SETTLED_SECONDS", -1)
    expected = start(model)
    read.clear()
    assert start(model) == expected
    assert not read
    (model / "model.safetensors").touch()
    assert start(model) == expected
    assert read == ["model.safetensors"]


@pytest.mark.parametrize("damage", ["empty", "noise", "another", "bytes", "folder", "pipe"])
def test_damaged_checksums_are_computed_again(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(packed, "SETTLED_SECONDS", -1)
    expected = start(model)[1]
    found = list(cache.glob("*.checksum"))
    assert len(found) == 6, "config and weights of the model, its drafter and its CTC decoder"
    for path in found:
        text = path.read_text()
        path.unlink()
        if damage == "folder":
            path.mkdir()
        elif damage == "pipe":
            if not hasattr(os, "mkfifo"):
                pytest.skip("this system has no named pipes")
            os.mkfifo(path)
        else:
            other = text.replace(text[0], "0" if text[0] != "0" else "1", 1)
            texts = {"empty": "", "noise": "f" * 90, "another": other, "bytes": "\xff"}
            path.write_bytes(texts[damage].encode("latin-1"))
    assert start(model) == (True, expected)


def test_weights_that_change_while_they_are_packed_are_not_kept(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, path = native.weights, model / "model.safetensors"

    def slow(parts: packed.Parts, *, screened: bool) -> object:
        found = weights(parts, screened=screened)
        moved = path.with_name("new")
        shutil.copyfile(path, moved)
        reverse_rows(moved)
        moved.replace(path)
        return found

    monkeypatch.setattr(native, "weights", slow)
    start(model)
    assert not list(cache.glob("*.packed*"))
    with pytest.raises(ResourceError, match="the weights changed while they were packed; run the"):
        export_native(model)
    assert not (model / packed.FILE).exists()


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    folder = plain_folder.save(tmp_path / "model", small())
    path = export_native(folder)
    raw, expected = path.read_bytes(), start(folder, max_new_tokens=8)
    assert expected[0]
    dice, found = random.Random(0), 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as bits:
        for _ in range(FLIPS):
            place, bit = dice.randrange(len(raw)), 1 << dice.randrange(8)
            bits[place] ^= bit
            mapped, said = start(folder, max_new_tokens=8)
            assert said == expected[1], f"bit {bit} of byte {place}"
            found += not mapped
            bits[place] ^= bit
    assert found > 0.98 * FLIPS, "the others are between the weights"
    assert start(folder, max_new_tokens=8) == expected


def test_a_damaged_file_beside_the_model_is_ignored(model: Path, cache: Path) -> None:
    path = export_native(model)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    first = start(model)
    assert not first[0]
    assert start(model) == (True, first[1]), "from the cache"


def test_another_drafter_is_packed_again(model: Path, cache: Path) -> None:
    start(model)
    shutil.rmtree(model / "drafter")
    loaded = outrider.load(model)
    assert not loaded.backend.core.mapped
    assert outrider.load(model).backend.core.mapped


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "another", "folder"])
def test_a_damaged_cache_file_is_written_again(model: Path, cache: Path, damage: str) -> None:
    expected = start(model)[1]
    (path,) = cache.glob("*.packed")
    raw = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "another":  # its header names this model, its content is another
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


def small() -> Seq2SeqSpec:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    return Seq2SeqSpec(vocab_size=plain_folder.WORDS, encoder_layers=1, decoder_layers=1, **sizes)


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


def test_the_cache_is_in_the_system_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "outrider"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "outrider"


def test_unused_cache_files_are_removed(model: Path, cache: Path) -> None:
    cache.mkdir()
    old, new = cache / "a.packed", cache / "b.packed"
    for path in (old, new):
        path.touch()
    long_ago = time.time() - packed.UNUSED_SECONDS - 10
    os.utime(old, (long_ago, long_ago))
    start(model)
    assert (old.exists(), new.exists()) == (False, True)


def test_packed_weights_may_be_stored_beside_the_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(model), "--to", "native"]) == 0
    assert capsys.readouterr().out == f"wrote {model / packed.FILE}\n"
    assert start(model)[0]
    moved = shutil.copytree(model, tmp_path / "moved", copy_function=shutil.copyfile)
    assert start(moved) == start(model), "a copy is the same model, whatever its time"


def test_export_errors_name_their_cause(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(model), str(model / "new"), "--to", "native"]) == 2
    assert "FOLDER: has no effect with --to native" in capsys.readouterr().err
    assert run(["export", str(model)]) == 2
    assert "FOLDER: is missing; name the new folder" in capsys.readouterr().err
    if os.geteuid():  # root may write anywhere
        model.chmod(0o500)
        with pytest.raises(ResourceError, match="cannot be written"):
            export_native(model)
