"""`outrider translate` with files and pipes: nothing is overwritten, errors are one line."""

import gzip
import io
import os
import resource
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from outrider.data.config import TokenizerConfig
from outrider.data.lines import LINE_BYTES
from outrider.data.tokenizer_training import train_tokenizer
from outrider.runtime import Translator, load
from outrider.torch.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig

TEXT = ["a small dog runs", "two men play", "where is the station?"]
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
MAIN = "from outrider.cli.main import main; main()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("translator")
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64))
    tokenizer.save(folder)
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        vocab_size=tokenizer.vocab_size, encoder_layers=1, decoder_layers=1, **SIZES
    )
    Seq2Seq(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def language_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("generator")
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64), verbatim=True)
    tokenizer.save(folder)
    config = LanguageModelConfig(vocab_size=tokenizer.vocab_size, layers=1, **SIZES)
    LanguageModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{text}\n" for text in TEXT))
    return path


@pytest.fixture(scope="module")
def expected(folder) -> str:
    return "".join(f"{text}\n" for text in load(folder, device="cpu").translate(TEXT))


def started(*arguments: object, **streams: object) -> subprocess.Popen:
    line = [sys.executable, "-c", MAIN, *map(str, arguments)]
    return subprocess.Popen(line, **streams)  # type: ignore[call-overload]


# --- the input is not overwritten ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["in.txt", "soft", "hard", "s/../in.txt", "loop/in.txt"])
def test_the_input_is_not_overwritten_under_any_name(command, folder, source, name) -> None:
    place = source.parent
    (place / "s").mkdir()
    (place / "soft").symlink_to(source)
    (place / "hard").hardlink_to(source)
    (place / "loop").symlink_to(place)
    before = source.read_text()
    line = ("translate", "--no-guard", "--model", folder, "--in", source, "--out", place / name)
    code, out, err = command(*line)
    assert (code, out) == (2, "")
    assert err.endswith(f"--out: {place / name} is also the input and would be overwritten\n")
    assert source.read_text() == before


def test_standard_input_is_not_overwritten(folder, source) -> None:
    before = source.read_text()
    with source.open() as stdin:
        line = ("translate", "--no-guard", "--model", folder, "--out", source)
        done = started(*line, stdin=stdin, stderr=subprocess.PIPE, text=True)
        _, err = done.communicate(timeout=60)
    assert done.returncode == 2
    assert "is also the input and would be overwritten" in err
    assert source.read_text() == before


@pytest.mark.parametrize("option", ["--output", "--json"])
def test_evaluate_does_not_overwrite_its_input(command, folder, source, option) -> None:
    before, link = source.read_text(), source.parent / "link"
    link.symlink_to(source)
    line = ("evaluate", folder, "--source", source, "--reference", source, option, link)
    code, _, err = command(*line)
    assert code == 2
    assert f"{option}: {link} is also the input and would be overwritten" in err
    assert source.read_text() == before


def test_evaluate_does_not_write_both_outputs_to_one_file(command, folder, source) -> None:
    both = source.parent / "both"
    line = ("evaluate", folder, "--source", source, "--reference", source)
    code, _, err = command(*line, "--output", both, "--json", both)
    assert (code, "--json: " in err) == (2, True)


# --- complete output or none --------------------------------------------------------------------


def test_a_link_is_followed(command, folder, source, expected) -> None:
    place = source.parent
    (place / "real").write_text("old")
    (place / "link").symlink_to("real")
    code, *_ = command(
        "translate", "--no-guard", "--model", folder, "--in", source, "--out", place / "link"
    )
    assert code == 0
    assert (place / "link").is_symlink()
    assert (place / "real").read_text() == expected


@pytest.mark.parametrize("before", [None, "what was there\n"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=repr)
def test_an_interruption_keeps_the_previous_file(
    command, folder, source, monkeypatch, before, error
) -> None:
    out = source.parent / "out" / "out.txt"
    out.parent.mkdir()
    if before is not None:
        out.write_text(before)

    def results_iter(self, lines, **_):
        yield self.results([next(lines)])[0]
        raise error

    monkeypatch.setattr(Translator, "results_iter", results_iter)
    code, _, err = command(
        "translate", "--no-guard", "--model", folder, "--in", source, "--out", out
    )
    assert code == (130 if isinstance(error, KeyboardInterrupt) else 2)
    if code == 130:
        assert "1 of 3 lines are done; the same command continues\n" in err
    assert (out.read_text() if out.exists() else None) == before
    there = ["out.txt", "out.txt.partial"] if before else ["out.txt.partial"]
    assert sorted(path.name for path in out.parent.iterdir()) == there


@pytest.mark.parametrize("before", [None, "what was there\n"])
def test_a_full_disk_names_the_file_and_its_state(command, folder, source, before) -> None:
    out = source.parent / "out.txt"
    if before:
        out.write_text(before)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        code, _, err = command(
            "translate", "--no-guard", "--model", folder, "--in", source, "--out", out
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2
    left = f"{out} is as it was" if before else "nothing was written"
    assert f"{out}: the disk is full or a quota is reached; {left}; free some space" in err
    assert (out.read_text() if out.exists() else None) == before
    assert not [path for path in out.parent.iterdir() if path.name not in ("in.txt", "out.txt")]


def test_devices_and_pipes_are_written_directly(command, folder, source, expected) -> None:
    line = ("translate", "--no-guard", "--model", folder, "--in", source, "--out")
    assert command(*line, "/dev/null") == (0, "", "")
    assert Path("/dev/null").is_char_device()
    pipe = source.parent / "pipe"
    os.mkfifo(pipe)
    heard: list[str] = []
    listener = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    listener.start()
    assert command(*line, pipe)[0] == 0
    listener.join(timeout=30)
    assert heard == [expected]
    assert pipe.is_fifo()


def test_standard_output_by_path_is_not_replaced(folder, source, expected) -> None:
    log = source.parent / "log"
    log.write_text("before\n")
    with log.open("a") as stdout:
        line = (
            "translate",
            "--no-guard",
            "--model",
            folder,
            "--in",
            source,
            "--out",
            "/dev/stdout",
        )
        assert started(*line, stdout=stdout).wait(timeout=120) == 0
    assert log.read_text() == f"before\n{expected}"


@pytest.mark.parametrize("option", ["--in", "--shards"])
def test_a_missing_folder_is_named_and_not_created(command, source, option) -> None:
    place = source.parent / "missing" / "folder"
    line = ("translate", "--model", "nowhere", option, source, "--out", place / "x")
    message = f"{place / 'x'}: the folder {place} does not exist; create it first"
    assert command(*line) == (2, "", f"outrider: {message}\n")
    assert not place.parent.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_reported_before_the_model_is_loaded(command, source) -> None:
    place = source.parent / "closed"
    place.mkdir(mode=0o500)
    line = ("translate", "--model", "nowhere", "--in", source, "--out", place / "x")
    assert "no permission to write" in command(*line)[2]


# --- input --------------------------------------------------------------------------------------


def damaged(name: str) -> tuple[str, bytes]:
    zipped = gzip.compress("".join(f"{text}\n" for text in TEXT).encode() * 200)
    return {
        "truncated": ("in.gz", zipped[:-9]),
        "truncated without its name": ("in", zipped[:-9]),
        "flipped": ("in.gz", zipped[:60] + b"\xff\xff\xff\xff" + zipped[64:]),
        "garbage behind": ("in.gz", zipped + b"garbage"),
    }[name]


@pytest.mark.parametrize(
    "name", ["truncated", "truncated without its name", "flipped", "garbage behind"]
)
@pytest.mark.parametrize("how", ["translate", "evaluate", "prepare"])
def test_a_damaged_gzip_gives_one_error_message(command, folder, tmp_path, name, how) -> None:
    file, content = damaged(name)
    path = tmp_path / file
    path.write_bytes(content)
    lines = {
        "translate": (
            "translate",
            "--no-guard",
            "--model",
            folder,
            "--in",
            path,
            "--out",
            tmp_path / "out",
        ),
        "evaluate": ("evaluate", folder, "--source", path, "--reference", path, "--beams", "1"),
        "prepare": ("prepare", _run_file(tmp_path, path), "-q"),
    }
    code, out, err = command(*lines[how])
    assert (code, out) == (2, "")
    assert f"{path}: damaged gzip file (" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def _run_file(place: Path, corpus: Path) -> Path:
    run = place / "run.yaml"
    data = f"{{folder: {place}/d, valid_rows: 1, train: {{source: {corpus}, target: {corpus}}}}}"
    run.write_text(f"name: a\nfolder: {place}/run\ndata: {data}\n")
    return run


@pytest.mark.parametrize("how", ["--in", "stdin", "gzip"])
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"PK\x03\x04\x14\0\6\0 word/document.xml", "is a zip archive (docx, odt, epub, ...)"),
        (b"1\n00:00:01,000 --> 00:00:02,500\na dog\n", "is a subtitle file (SubRip)"),
        (bytes(range(256)), "is a binary file"),
    ],
)
def test_files_that_are_not_plain_text_are_refused(
    command, folder, tmp_path, monkeypatch, content, fault, how
) -> None:
    path, out = tmp_path / "report.txt", tmp_path / "out.txt"
    path.write_bytes(gzip.compress(content) if how == "gzip" else content)
    line = ["translate", "--no-guard", "--model", folder, "--out", out]
    if how == "stdin":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        name = "standard input"
    else:
        line, name = [*line, "--in", path], str(path)
    code, _, err = command(*line)
    expected = f"outrider: {name}: {fault}; give plain text in UTF-8, one text per line\n"
    assert (code, err) == (2, expected)
    assert not out.exists()


def test_gzip_is_detected_by_its_bytes(command, folder, tmp_path, expected) -> None:
    path = tmp_path / "in.txt"  # compressed, without .gz
    path.write_bytes(gzip.compress("".join(f"{text}\n" for text in TEXT).encode()))
    assert command("translate", "--no-guard", "--model", folder, "--in", path) == (0, expected, "")
    plain = tmp_path / "in.gz"  # not compressed, with .gz
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert command("translate", "--no-guard", "--model", folder, "--in", plain) == (0, expected, "")


def test_a_byte_order_mark_is_removed(command, folder, tmp_path, expected) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "".join(f"{text}\r\n" for text in TEXT).encode())
    assert command("translate", "--no-guard", "--model", folder, "--in", path) == (0, expected, "")
    path.write_bytes(TEXT[0].encode("utf-16"))
    assert (
        "is UTF-16, expected UTF-8"
        in command("translate", "--no-guard", "--model", folder, "--in", path)[2]
    )


@pytest.mark.parametrize("how", ["translate", "evaluate"])
def test_an_endless_line_is_refused_with_its_number(command, folder, tmp_path, how) -> None:
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(b"a dog\n" + b"a" * (4 * LINE_BYTES), compresslevel=1))
    lines = {
        "translate": ("translate", "--no-guard", "--model", folder, "--in", path),
        "evaluate": ("evaluate", folder, "--source", path, "--reference", path),
    }
    code, _, err = command(*lines[how])
    assert code == 2
    assert f"{path}, line 2: is longer than 16,777,216 bytes; break it into lines" in err


def test_an_endless_prompt_is_refused(language_model, command, monkeypatch) -> None:
    reader, writer = os.pipe()
    feeding = threading.Thread(target=_feed, args=(writer, b"a\n" * (LINE_BYTES // 2 + 1)))
    feeding.start()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reader, "r"))
    code, _, err = command("generate", "--model", language_model)
    sys.stdin.close()
    feeding.join(timeout=30)
    assert code == 2
    assert "standard input: a prompt of more than 16,777,216 bytes" in err


def _feed(writer: int, data: bytes) -> None:
    with os.fdopen(writer, "wb") as pipe:
        try:
            pipe.write(data)
        except BrokenPipeError:
            return


@pytest.mark.parametrize("words", [("translate", "--model", "x"), ("generate", "--model", "x")])
@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_closed_streams_give_one_error_message(words, closed, language_model) -> None:
    model = str(language_model) if words[0] == "generate" else "x"
    line = ["bash", "-c", f'"$0" "$@" {closed}', sys.executable, "-c", MAIN, words[0], "-m", model]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 2
    what = "input" if closed == "<&-" else "output"
    assert done.stderr.startswith(f"outrider: standard {what} is closed; ")
    assert done.stderr.count("\n") == 1


def test_a_line_on_an_open_pipe_is_translated_immediately(folder, expected) -> None:
    line = ("translate", "--no-guard", "--model", folder)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started(*line, **pipes) as done:
        assert done.stdin is not None
        assert done.stdout is not None
        for text, answer in zip(TEXT, expected.splitlines(keepends=True), strict=True):
            done.stdin.write(f"{text}\n".encode())
            done.stdin.flush()
            assert select.select([done.stdout], [], [], 120)[0], "no answer while the pipe is open"
            assert done.stdout.readline().decode() == answer
        done.stdin.close()
        assert done.wait(timeout=60) == 0
