"""Unusual text input: many scripts, invalid bytes, damaged archives, closed streams."""

import gzip
import os
from pathlib import Path

import pytest

from tests.helpers.forked import attack, attack_each

STRANGE = {
    "empty": "",
    "blank": "   \t ",
    "nul": "a\0b",
    "controls": "\x01\x02\x1b[31mred\x7f",
    "combining": "a" + "\u0301" * 3000,
    "zalgo": "Z̸̢̛̺͔͋͌a̷̘͐l̴̢̈́g̶̫̏o̷̙͝ " * 30,
    "emoji": "👩‍👩‍👧‍👦" * 50,
    "flags": "🇩🇪" * 100,
    "right to left": "\u202eabc\u202c שלום عليكم",
    "surrogate": "\ud800",
    "private": "\ue000\uf8ff\U0010ffff",
    "no characters": "\ufffe\uffff",
    "bom": "\ufefftext",
    "separators": "a\u2028b\u2029c\x0bd\x0ce\x85f",
    "special": "</s><pad><unk><s>",
    "unknown": "漢字かな交じり文",
    "hangul": "한국어 문장입니다. " * 20,
    "thai": "ภาษาไทยไม่มีช่องว่าง" * 30,
    "long word": "a" * 20_000,
    "long line": "a dog runs. " * 2_000,
    "dots": "." * 5_000,
    "quotes": '"' * 2_000,
    "stops": "。！？" * 1_000,
    "brackets": "(" * 2_000 + ")" * 2_000,
    "digits": "1.2.3.4.5. " * 300,
    "markup": "<b>bold</b> [red]x[/red] [/] [link=file:///etc/passwd]",
    "format": "%s %n {0} ${HOME} `id` $(id)",
    "newlines": "\n\n\r\n\r a \n",
}

REFUSED = {"nul": "is a binary file", "surrogate": "is not UTF-8 text"}


@pytest.mark.parametrize("text", STRANGE)
def test_unusual_text(translator: Path, tmp_path: Path, text: str) -> None:
    raw = (STRANGE[text].replace("\n", " ") + "\n").encode("utf-8", "surrogatepass")
    (tmp_path / "in.txt").write_bytes(raw)
    given = ("translate", "-m", translator, "--in", "in.txt", "--max-new-tokens", "10", "--mode")
    for outcome in attack_each([(*given, m) for m in ("ar", "tandem", "parallel")], tmp_path):
        if text in REFUSED:
            assert (outcome.code, outcome.out) == (2, "")
            assert REFUSED[text] in outcome.err
            continue
        assert outcome.code == 0, outcome.err
        assert outcome.out.count("\n") == 1


@pytest.mark.parametrize("text", STRANGE)
def test_unusual_prompts(language_model: Path, tmp_path: Path, text: str) -> None:
    raw = STRANGE[text].encode("utf-8", "surrogatepass")
    arguments = ("--model", language_model, "--max-new-tokens", "5")
    assert attack("generate", *arguments, folder=tmp_path, stdin=raw).code == 0


LINES = b"a small dog runs\ntwo men play\n"
ZIPPED = gzip.compress(LINES * 500, mtime=0)
INPUTS = {
    "truncated": ZIPPED[:-20],
    "corrupt": ZIPPED[:30] + b"\xff\xff\xff\xff" + ZIPPED[34:],
    "wrong checksum": ZIPPED[:-8] + bytes(8),
    "only a header": ZIPPED[:10],
    "one byte": b"\x1f",
    "two members": gzip.compress(LINES) + gzip.compress(LINES),
    "garbage behind": gzip.compress(LINES) + b"garbage",
    "not zipped": LINES,
    "empty": b"",
    "noise": bytes(range(256)) * 20,
    "utf-16": LINES.decode().encode("utf-16"),
    "latin-1": "für\n".encode("latin-1"),
}


@pytest.mark.parametrize("name", ["in.gz", "in.txt"])
@pytest.mark.parametrize("kind", INPUTS)
def test_files_of_text(translator: Path, tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / name).write_bytes(INPUTS[kind])
    arguments = ("--model", translator, "--max-new-tokens", "3", "--in", name, "--out", "out.txt")
    outcome = attack("translate", *arguments, folder=tmp_path)
    if kind in ("truncated", "corrupt", "wrong checksum", "only a header"):
        assert outcome.code == 2, "text is missing and nothing says so"
        assert name in outcome.err
        assert not (tmp_path / "out.txt").exists()
    if kind in ("two members", "not zipped"):
        assert outcome.code == 0, outcome.err
        lines = 4 if kind == "two members" else 2
        assert (tmp_path / "out.txt").read_text().count("\n") == lines


def test_a_line_larger_than_memory(translator: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "in.gz", "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(b"a " * (1 << 19))
    arguments = ("--model", translator, "--max-new-tokens", "3", "--in", "in.gz")
    outcome = attack("translate", *arguments, folder=tmp_path, memory=600 << 20)
    assert "line 1" in outcome.err


@pytest.mark.parametrize("kind", ["folder", "fifo", "loop", "dangling", "secret"])
@pytest.mark.parametrize("option", ["--in", "--out"])
def test_paths_that_are_not_files(translator: Path, tmp_path: Path, option: str, kind: str) -> None:
    path = tmp_path / "place"
    make = {
        "folder": path.mkdir,
        "fifo": lambda: os.mkfifo(path),
        "loop": lambda: path.symlink_to(path),
        "dangling": lambda: path.symlink_to("nowhere/at/all"),
        "secret": lambda: (path.parent / "x").symlink_to("/proc/1/mem"),
    }
    make[kind]()
    if kind == "fifo":
        pytest.skip("reading a pipe waits for its writer")
    arguments = ("--model", translator, "--max-new-tokens", "3", option, path)
    text = ("text",) if option == "--out" else ()
    attack("translate", *arguments, *text, folder=tmp_path)


@pytest.mark.parametrize("command", ["translate", "generate"])
def test_a_closed_input(
    translator: Path, language_model: Path, tmp_path: Path, command: str
) -> None:
    model = translator if command == "translate" else language_model
    attack(command, "--model", model, folder=tmp_path, stdin=None)


SAME = ["link", "hard link", "detour", "name", "relative"]


@pytest.mark.parametrize("way", SAME)
def test_the_input_is_never_the_output(translator: Path, tmp_path: Path, way: str) -> None:
    source = tmp_path / "in.txt"
    source.write_bytes(LINES)
    (tmp_path / "s").mkdir()
    target = {
        "link": tmp_path / "link",
        "hard link": tmp_path / "hard",
        "detour": tmp_path / "s" / ".." / "in.txt",
        "name": source,
        "relative": Path("./in.txt"),
    }[way]
    if way == "link":
        target.symlink_to(source)
    if way == "hard link":
        target.hardlink_to(source)
    arguments = ("--model", translator, "--in", source, "--out", target)
    outcome = attack("translate", *arguments, folder=tmp_path)
    assert outcome.code == 2
    assert source.read_bytes() == LINES
