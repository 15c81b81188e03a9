"""An interrupted `outrider translate --in FILE --out FILE` continues with the same result."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.jobs import text_file
from outrider.runtime import Translator, load
from outrider.torch.models import Seq2Seq, Seq2SeqConfig

TEXT = [f"{a} small {b} runs" for a in ("a", "the", "no", "one") for b in ("dog", "cat", "man")]
SLOW = """
import sys, time
from outrider.cli.main import main
from outrider.jobs import text_file
from outrider.runtime import Translator
text_file.SAVE_EVERY = 0
usual = Translator.results_iter
def slow(self, lines, **options):
    for results in usual(self, lines, window=1, **options):
        yield results
        time.sleep(0.2)
Translator.results_iter = slow
main()
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[Path]:
    folders = []
    for seed in range(2):
        folder = tmp_path_factory.mktemp("translator")
        tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64))
        tokenizer.save(folder)
        torch.manual_seed(seed)
        sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
        config = Seq2SeqConfig(
            vocab_size=tokenizer.vocab_size, encoder_layers=1, decoder_layers=1, **sizes
        )
        Seq2Seq(config).save_pretrained(folder)
        folders.append(folder)
    return folders


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{text}\n" for text in TEXT))
    return path


def stopping_after(lines: int, monkeypatch, error: BaseException) -> None:
    """Interrupt the next run after `lines` lines; later runs are not interrupted."""
    usual = Translator.results_iter

    def results_iter(self, source, **options):
        monkeypatch.setattr(Translator, "results_iter", usual)
        found = usual(self, source, **options)
        for _ in range(lines):
            yield next(found)
        raise error

    monkeypatch.setattr(Translator, "results_iter", results_iter)


@pytest.mark.parametrize("every", [0.0, 1000.0], ids=["saved often", "saved at the end"])
@pytest.mark.parametrize(
    "options",
    [(), ("--beams", "3", "--n-best", "2"), ("--strategy", "sample", "--seed", "7")],
    ids=["greedy", "n-best", "sampled"],
)
def test_a_run_interrupted_twice_gives_the_same_file(
    command, models, source, monkeypatch, options, every
) -> None:
    monkeypatch.setattr(text_file, "SAVE_EVERY", every)
    out, whole = source.with_name("out.txt"), source.with_name("whole.txt")
    line = (
        "translate",
        "--no-guard",
        "--model",
        models[0],
        "--in",
        source,
        "--max-new-tokens",
        9,
        *options,
    )
    assert command(*line, "--out", whole)[0] == 0
    stopping_after(5, monkeypatch, KeyboardInterrupt())
    code, _, err = command(*line, "--out", out)
    message = "outrider: 5 of 12 lines are done; the same command continues\n"
    assert (code, err) == (130, message)
    assert not out.exists()
    stopping_after(2, monkeypatch, MemoryError())
    code, _, err = command(*line, "--out", out)
    assert code == 2
    assert err.startswith(f"outrider: 5 lines are done in {out}.partial; continuing\n")
    code, _, err = command(*line, "--out", out, "--threads", 1, "--batch-tokens", 64)
    assert (code, err) == (0, f"outrider: 7 lines are done in {out}.partial; continuing\n")
    assert out.read_text() == whole.read_text()
    assert sorted(path.name for path in out.parent.iterdir()) == ["in.txt", "out.txt", "whole.txt"]


@pytest.mark.parametrize("changed", ["input", "options", "model", "text", "state"])
def test_lines_of_another_run_are_not_used(command, models, source, monkeypatch, changed) -> None:
    out = source.with_name("out.txt")
    line = ["translate", "--no-guard", "--model", models[0], "--in", source, "--out", out]
    stopping_after(5, monkeypatch, KeyboardInterrupt())
    assert command(*line)[0] == 130
    partial, reason = source.with_name("out.txt.partial"), "it is damaged"
    model, texts, options = models[0], TEXT, {}
    match changed:
        case "input":
            texts, reason = [*TEXT[1:], TEXT[0]], "the input changed"
            source.write_text("".join(f"{text}\n" for text in texts))
        case "options":
            line, options, reason = [*line, "--beams", "2"], {"beams": 2}, "the options changed"
        case "model":
            model, line[3], reason = models[1], models[1], "the model changed"
        case "text":
            (partial / "text").write_bytes((partial / "text").read_bytes()[::-1])
        case "state":
            (partial / "state.json").write_text(json.dumps({"rows": 5}))
    code, _, err = command(*line)
    assert (code, err) == (0, f"outrider: {partial} is not used: {reason}; starting again\n")
    expected = load(model, device="cpu").translate(texts, **options)
    assert out.read_text() == "".join(f"{text}\n" for text in expected)
    assert not partial.exists()


def test_lines_of_a_killed_run_are_kept(command, models, source) -> None:
    out, whole = source.with_name("out.txt"), source.with_name("whole.txt")
    line = ["translate", "--no-guard", "--model", models[0], "--in", source]
    state = source.with_name("out.txt.partial") / "state.json"
    arguments = [str(word) for word in (*line, "--out", out)]
    with subprocess.Popen([sys.executable, "-c", SLOW, *arguments]) as process:
        deadline = time.monotonic() + 120
        while not (state.exists() and json.loads(state.read_text())["rows"] >= 3):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        code, _, err = command(*line, "--out", out)
        assert (code, "another process is working there" in err) == (2, True)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    done = json.loads(state.read_text())["rows"]
    assert 3 <= done < len(TEXT)
    code, _, err = command(*line, "--out", out)
    assert (code, err) == (0, f"outrider: {done} lines are done in {state.parent}; continuing\n")
    assert command(*line, "--out", whole)[0] == 0
    assert out.read_text() == whole.read_text()
    assert not state.parent.exists()


def test_output_for_standard_input_is_complete_or_absent(
    command, models, source, monkeypatch
) -> None:
    out = source.with_name("out.txt")
    stopping_after(2, monkeypatch, KeyboardInterrupt())
    code, _, err = command("translate", "--no-guard", "--model", models[0], "--out", out, *TEXT)
    assert (code, err) == (130, f"outrider: 2 of 12 lines are done; {out} was not written\n")
    assert [path.name for path in out.parent.iterdir()] == ["in.txt"]


@pytest.mark.parametrize("where", ["file", "pipe"])
def test_a_terminal_shows_finished_lines_and_the_rate(models, source, where) -> None:
    out = source.with_name("out.txt")
    line = [
        sys.executable,
        "-c",
        SLOW,
        "translate",
        "--no-guard",
        "--model",
        str(models[0]),
        "--in",
        str(source),
    ]
    line += ["--out", str(out)] if where == "file" else []
    terminal, stderr = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=stderr, env=environment) as process:
        os.close(stderr)
        shown = b""
        try:
            while piece := os.read(terminal, 1 << 16):
                shown += piece
        except OSError:  # the other end is closed
            pass
        printed = process.communicate(timeout=60)[0]
    os.close(terminal)
    assert process.returncode == 0
    assert b"12 of 12 rows" in shown
    assert b" rows/s" in shown
    assert (out.read_bytes() if where == "file" else printed).count(b"\n") == len(TEXT)
