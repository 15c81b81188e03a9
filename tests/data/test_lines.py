"""Lines of files: line ends, limits and invalid files."""

import gzip
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.data.lines import (
    PIPE_WAIT,
    Line,
    Lines,
    decode,
    open_file,
    open_lines,
    read_lines,
)
from outrider.errors import DataError


def read(path: Path, limit: int = 1000) -> list[Line]:
    with open_file(path) as stream:
        return list(read_lines(stream, path, limit))


@given(lines=st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b" ")), min_size=1))
def test_only_a_newline_byte_ends_a_line(tmp_path_factory, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("lines") / "text"
    path.write_bytes(b"x" + b"\n".join(lines) + b"\n")
    found = read(path)
    expected = [line.rstrip(b"\r") for line in (b"x" + b"\n".join(lines)).split(b"\n")]
    assert [line.raw for line in found] == expected
    assert all(line.whole for line in found)


def test_unicode_separators_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("a\u2028b\x0cc\x85d\ne", encoding="utf-8")
    assert [decode(line) for line in read(path)] == [("a\u2028b\x0cc\x85d", ""), ("e", "")]


@pytest.mark.parametrize("length", [9, 10, 11, 12, 100_000])
def test_a_long_line_is_truncated(tmp_path: Path, length: int) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"first\n" + b"x" * length + b"\nlast")
    found = read(path, limit=10)
    assert [line.raw for line in found if line.whole and line.raw[:1] != b"x"] == [
        b"first",
        b"last",
    ]
    assert found[1].whole == (length <= 10)
    assert len(found[1].raw) <= 11


def test_windows_line_ends_and_a_byte_order_mark_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert [line.raw for line in read(path)] == [b"one", b"two"]


def test_gzip_is_detected_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(gzip.compress(b"one\n", mtime=0) + gzip.compress(b"two\n"))
    assert [line.raw for line in read(path)] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (Line(b"a\xffb"), "not UTF-8"),
        (Line(b"\xed\xa0\x80"), "not UTF-8"),
        (Line(b"a\0b"), "NUL byte"),
        (Line(b"abc", whole=False), "too long"),
    ],
)
def test_faults_are_named(line: Line, fault: str) -> None:
    text, found = decode(line)
    assert found == fault
    assert "\0" not in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "text: the file is empty"),
        (gzip.compress(b"", mtime=0), "text: the file is empty"),
        ("häh".encode("utf-16"), "text: is UTF-16, expected UTF-8"),
        (gzip.compress(b"some text " * 99, mtime=0)[:-12], "text: damaged gzip file"),
        (gzip.compress(b"some text " * 99, mtime=0)[:20] + b"\xff" * 9, "text: damaged gzip file"),
    ],
)
def test_bad_files_give_one_error_message(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(path)


def test_a_missing_file_suggests_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "train.en.gz").touch()
    with pytest.raises(DataError, match=r"train.en: no such file \(did you mean 'train.en.gz'\?\)"):
        read(tmp_path / "train.en")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read(tmp_path)


# --- lines of streams ---------------------------------------------------------------------------


@given(
    pieces=st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\x1f", b"")), max_size=8),
    limit=st.integers(60, 200),
)
def test_lines_do_not_depend_on_the_chunks(pieces: list[bytes], limit: int) -> None:
    text = b"x" + b"\n".join(pieces)
    with Piped() as (pipe, write):
        write(text, end=True)
        lines = Lines(pipe, "pipe", limit=limit)
        expected = text.split(b"\n")
        if expected[-1] == b"":
            expected.pop()
        if max(map(len, expected)) > limit:
            with pytest.raises(DataError, match=r"pipe, line \d+: is longer than \d+ bytes"):
                list(lines)
        else:
            assert list(lines) == [line.removesuffix(b"\r") for line in expected]


class Piped:
    """A pipe as a reader and a function that writes."""

    def __enter__(self):
        reader, self.writer = os.pipe()
        self.pipe = os.fdopen(reader, "rb")
        return self.pipe, self.write

    def write(self, data: bytes, *, end: bool = False) -> None:
        os.write(self.writer, data)
        if end:
            os.close(self.writer)
            self.writer = -1

    def __exit__(self, *_) -> None:
        self.pipe.close()
        if self.writer >= 0:
            os.close(self.writer)


def test_a_pipe_is_ready_with_a_whole_line() -> None:
    with Piped() as (pipe, write):
        lines = Lines(pipe, "pipe")
        write(b"one\ntwo\nthr")
        assert next(lines) == b"one"
        assert lines.ready()
        assert next(lines) == b"two"
        assert not lines.ready()  # without waiting for the rest
        write(b"ee\n")
        assert lines.ready()
        assert next(lines) == b"three"
        assert not lines.ready()
        write(b"last", end=True)
        assert lines.ready()
        assert next(lines) == b"last"
        assert lines.ready()  # for the end of the file
        assert list(lines) == []


def test_a_slow_pipe_is_waited_for_once() -> None:
    """A pipe that pauses before every line does not delay a window for minutes."""
    with Piped() as (pipe, write):
        lines, ready = Lines(pipe, "pipe"), 0
        write(b"first\n")
        assert next(lines) == b"first"
        for _ in range(100):
            timer = threading.Timer(PIPE_WAIT / 2, write, [b"more\n"])
            timer.start()
            is_ready = lines.ready()
            timer.join()
            if not is_ready:
                break
            ready += 1
            assert next(lines) == b"more"
        assert ready <= 3


def test_a_file_and_a_gzip_are_always_ready(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for content in (b"one\ntwo", gzip.compress(b"one\ntwo", mtime=0)):
        path.write_bytes(content)
        with open_lines(path) as lines:
            found = []
            for line in lines:
                assert lines.ready()
                found.append(line)
        assert found == [b"one", b"two"]
    path.write_bytes(b"")
    with open_lines(path) as lines:
        assert list(lines) == []


def test_errors_of_the_caller_are_not_errors_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("one\n")
    with pytest.raises(PermissionError), open_file(path):
        raise PermissionError(13, "Permission denied", "another file")
