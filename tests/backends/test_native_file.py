"""Packed models saved to a file and memory-mapped from it: the results are the same."""

import mmap
import random
import struct
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import native_tiny
from tests.helpers.native_answers import answers, parts, same

core = pytest.importorskip("outrider_native", reason="outrider-native is not installed")


def save(given: dict[str, Any], path: Path, about: str = "") -> Any:
    model = core.Engine(**given)
    model.save(path, about)
    return model


def load(given: dict[str, Any], path: Path, **changes: Any) -> Any:
    return core.Engine(**given | {"weights": core.PackedFile(path)} | changes)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("kind", native_tiny.SEQ2SEQ)
def test_a_saved_model_gives_the_same_numbers_on_every_instruction_set(
    kind, dtype, tmp_path: Path
) -> None:
    given, path = parts(kind, dtype), tmp_path / "packed"
    expected = answers(save(given, path))
    for name in core.instruction_sets():
        found = load(given, path, instruction_set=name, threads=2)
        assert found.mapped
        assert same(answers(found), expected)


def test_saving_a_loaded_model_gives_the_same_file(tmp_path: Path) -> None:
    given, path, again = parts("marian", "int8"), tmp_path / "one", tmp_path / "two"
    save(given, path, "about")
    load(given, path).save(again, "about")
    assert again.read_bytes() == path.read_bytes()


def test_side_decoders_may_be_left_out_when_loading(tmp_path: Path) -> None:
    given, path = parts("marian", "int8"), tmp_path / "packed"
    save(given, path)
    plain = load(given, path, drafter=None, ctc=None)
    with pytest.raises(ValueError, match="no drafter"):
        plain.encode([[3]], [4], True, False, [])


def test_the_file_holds_a_description_of_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "größer"
    save(parts("plain", "int8"), path, '{"source": "größer"}')
    assert core.PackedFile(path).about == '{"source": "größer"}'


def test_a_mapped_model_remains_usable_after_its_file_is_removed(tmp_path: Path) -> None:
    given, path = parts("marian", "int8"), tmp_path / "packed"
    expected = answers(save(given, path))
    found = load(given, path)
    path.unlink()
    assert same(answers(found), expected)


def test_a_file_for_another_model_is_refused(tmp_path: Path) -> None:
    given, path = parts("plain", "int8"), tmp_path / "packed"
    core.Engine(**given | {"drafter": None, "ctc": None}).save(path, "")
    with pytest.raises(ValueError, match=r"the packed model lacks 'drafter\."):
        load(given, path)
    plain = given | {"drafter": None, "ctc": None}
    with pytest.raises(ValueError, match=r"lacks 'encoder.blocks.0.attention.qkv.weight.floa"):
        load(plain, path, model=given["model"] | {"dtype": "float32"})
    with pytest.raises(ValueError, match="is packed for another model"):
        load(plain, path, model=given["model"] | {"vocab_size": 99})


def test_files_that_cannot_be_opened_or_written_give_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        core.PackedFile(tmp_path / "nothing")
    with pytest.raises(OSError, match="Invalid argument"):
        core.PackedFile(tmp_path)
    with pytest.raises(FileNotFoundError):
        save(parts("plain", "int8"), tmp_path / "no" / "folder")
    if Path("/dev/full").exists():
        with pytest.raises(OSError, match="No space left"):
            save(parts("plain", "int8"), Path("/dev/full"))


HEAD = struct.Struct("<8sIIQQ")
ENTRY = struct.Struct("<QQQII")


def broken_heads(data: bytes) -> dict[str, tuple[bytes, str]]:
    """Files with an invalid header, and the error message of each."""
    magic, version, count, size, about = HEAD.unpack_from(data)
    body = data[HEAD.size :]

    def head(*values: Any) -> bytes:
        return HEAD.pack(*values) + body

    def entry(index: int, value: int) -> bytes:
        first = list(ENTRY.unpack_from(body))
        first[index] = value
        return data[: HEAD.size] + ENTRY.pack(*first) + body[ENTRY.size :]

    return {
        "empty": (b"", "is truncated"),
        "short": (data[:20], "is truncated"),
        "cut": (data[:-64], "wrong file size"),
        "longer": (data + bytes(64), "wrong file size"),
        "magic": (head(b"safetens", version, count, size, about), "wrong magic number"),
        "version": (head(magic, 77, count, size, about), "has version 77, expected"),
        "count": (head(magic, version, 2**32 - 1, size, about), "is truncated"),
        "about": (head(magic, version, count, size, 2**64 - 1), "is truncated"),
        "offset": (entry(0, 2**63), "out of range"),
        "odd offset": (entry(0, ENTRY.unpack_from(body)[0] + 1), "out of range"),
        "bytes": (entry(1, 2**64 - 1), "out of range"),
        "type": (entry(3, 77), "unknown type"),
        "name": (entry(4, 2**32 - 1), "is truncated"),
        "checksum": (entry(2, 0), "wrong checksum of the header"),
        "older": (head(magic, 2, count, size, about), "has version 2, expected 3"),
    }


def test_an_invalid_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    save(parts("plain", "int8"), path, "about")
    for name, (data, message) in broken_heads(path.read_bytes()).items():
        path.write_bytes(data)
        with pytest.raises(ValueError, match=message):
            pytest.fail(f"{name}: {core.PackedFile(path)}")


@cache
def checksum(data: bytes, piece: Path) -> int:
    piece.write_bytes(data)
    return int(core.checksum(piece))


def seal(data: bytearray, piece: Path) -> None:
    """Recompute the checksums of all sections that can still be located."""

    def put(at: int, count: int, place: int) -> None:
        data[place : place + 8] = struct.pack("<Q", checksum(bytes(data[at : at + count]), piece))

    with suppress(struct.error):
        _, _, count, _, about = HEAD.unpack_from(data)
        front = HEAD.size + ENTRY.size * count + about
        if front + 8 <= len(data):
            for n in range(count):
                place = HEAD.size + ENTRY.size * n
                offset, size, _, _, name = ENTRY.unpack_from(data, place)
                put(offset, size, place + 16)
                front += name
            put(0, front, front)


def test_checksums_are_those_of_xxhash(tmp_path: Path) -> None:
    known = {b"": 0xEF46DB3751D8E999, b"abc": 0x44BC2CF5AD770999}
    path = tmp_path / "file"
    for data, expected in known.items():
        path.write_bytes(data)
        assert core.checksum(path) == expected
    xxhash = pytest.importorskip("xxhash", reason="xxhash is not installed")
    dice = random.Random(0)
    for size in [*range(70), 1 << 20, (1 << 20) + 33, (3 << 20) + 7]:
        data = dice.randbytes(size)
        path.write_bytes(data)
        assert core.checksum(path) == xxhash.xxh64_intdigest(data)


def test_damaged_numbers_are_refused_before_a_model_is_built(tmp_path: Path) -> None:
    given, path = parts("marian", "int8"), tmp_path / "packed"
    save(given, path)
    file = core.PackedFile(path)
    file.verify()
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    for call in (lambda: core.PackedFile(path).verify(), lambda: load(given, path)):
        with pytest.raises(ValueError, match="wrong checksum of a section"):
            call()


def test_changed_bytes_give_an_error_or_other_numbers(
    tmp_path: Path,
) -> None:
    """Changed bytes with matching checksums give an error or other numbers, never a crash."""
    given, path, dice = parts("marian", "int8"), tmp_path / "packed", random.Random(0)
    save(given, path, "about")
    data = path.read_bytes()
    refused = 0
    for _ in range(150):
        changed = bytearray(data)
        front = dice.random() < 0.7
        for _ in range(dice.randint(1, 4)):
            changed[dice.randrange(3000 if front else len(data))] = dice.randrange(256)
        seal(changed, tmp_path / "piece")
        path.write_bytes(changed[: dice.randrange(len(data))] if dice.random() < 0.1 else changed)
        try:
            answers(load(given, path))
        except ValueError:
            refused += 1
    assert 20 < refused < 150


SHARED = """
import re, sys
sys.path[:0] = sys.argv[2:]
import outrider_native as core
file = core.PackedFile(sys.argv[1])
smaps = open("/proc/self/smaps").read()
(found,) = re.findall(r"^\\S+ (\\S+) .*%s\\n" % re.escape(sys.argv[1]), smaps, re.M)
print(found)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="this system does not tell")
def test_pages_of_the_file_are_shared_and_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    save(parts("plain", "int8"), path)
    assert path.stat().st_size > mmap.PAGESIZE
    found = subprocess.run(
        [sys.executable, "-c", SHARED, str(path), *sys.path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "r--s"
