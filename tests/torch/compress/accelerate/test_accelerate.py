"""`outrider accelerate` end to end, with interruptions."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outrider.cli.main import run
from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import DataError, ModelError
from outrider.runtime import Translator, load
from outrider.torch.compress.accelerate import plan as planning
from outrider.torch.compress.accelerate import run as running
from outrider.torch.compress.accelerate import run as training
from outrider.torch.compress.accelerate.plan import read_sentences, sample
from tests.helpers import tiny
from tests.helpers.speaker import ending_model, texts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "plain"
    tokenizer = train_tokenizer(iter(texts(200)), TokenizerConfig(kind="unigram", vocab_size=400))
    model = ending_model(tokenizer.vocab_size, eos=tokenizer.eos_id, longest=64)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "mono.txt.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{number} {line}.\n" for number, line in enumerate(texts(150)))
    return path


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "HELD_OUT", 16)
    monkeypatch.setattr(running, "HELD_OUT", 16)
    monkeypatch.setattr(planning, "FEWEST", 100)
    monkeypatch.setattr(training, "EPOCHS", 1)


def test_a_model_and_text_become_a_faster_folder(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fast"
    line = ["accelerate", str(model), "--text", str(text), "--out", str(out), "--minutes", "1"]
    assert run([*line, "--threads", "1"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}\n"
    assert "translating all 150 sentences" in said.err
    assert "training a drafter: " in said.err
    assert "one sentence at a time, with drafts: " in said.err
    report = json.loads((out / "accelerate.json").read_text(encoding="utf-8"))
    assert report["curve"]
    assert set(report["minutes"]) == {"plan", "translate", "train", "measure"}
    tandem = [row for row in report["rows"] if row["mode"] == "tandem"]
    assert {row["batch"] for row in tandem} == {1, 8, 32}
    assert all(row["identical_to_own_greedy"] == 1.0 for row in tandem)
    assert "## How much faster" in (out / "README.md").read_text(encoding="utf-8")
    assert (out / "accelerate.png").is_file()
    assert not (tmp_path / "fast.work").exists()

    plain, fast = load(model), load(out)
    assert isinstance(plain, Translator)
    assert isinstance(fast, Translator)
    wanted = plain.translate(texts(9))
    assert fast.translate(texts(9), mode="tandem", draft_tokens=4) == wanted
    assert run(line) == 2
    assert f"{out}: exists already; name a new folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_run_resumes(model: Path, text: Path, tmp_path: Path) -> None:
    """Killed in every stage and resumed, it writes the weights of an undisturbed run."""
    script = f"""
import sys
from pathlib import Path
from outrider.torch.compress.accelerate import accelerate, plan, run
plan.HELD_OUT = run.HELD_OUT = 16
plan.FEWEST, run.EPOCHS = 100, 4
run._time = lambda *_: (0.5, "float32")
run.measure = lambda *_: {{"rows": [], "machine": {{}}}}
accelerate({str(model)!r}, [Path({str(text)!r})], Path(sys.argv[1]), minutes=9, threads=1)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(out: Path) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", script, str(out)], env=environment)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start(whole).wait(300) == 0
    work, kills = tmp_path / "broken.work", 0
    for sign in ("plan.json", "sentences.txt", "translated/manifest.json", "run/checkpoints/*/*"):
        process = start(broken)
        while process.poll() is None and not list(work.glob(sign)):
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(60)
    assert kills >= 3
    if not broken.exists():
        assert start(broken).wait(300) == 0
    name = "drafter/model.safetensors"
    assert (broken / name).read_bytes() == (whole / name).read_bytes()


def test_resumed_plan_requires_the_same_arguments(model: Path, text: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    first = planning.load_or_make_plan(model, [text], work, minutes=5, threads=1)
    assert planning.load_or_make_plan(model, [text], work, minutes=5, threads=1) == first
    with pytest.raises(DataError, match="was started with another minutes; remove"):
        planning.load_or_make_plan(model, [text], work, minutes=6, threads=1)


def test_text_is_cut_to_the_time_limit(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "probe", lambda *_: (4.0, "int8"))
    plan = planning.load_or_make_plan(model, [text], tmp_path / "work", minutes=4, threads=1)
    assert plan.sentences == int(0.15 * 4 * 60 * 4)
    assert plan.translating_minutes + plan.training_minutes == pytest.approx(4)


def test_too_little_text_is_refused(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("one sentence.\n")
    with pytest.raises(DataError, match="1 sentences are too few, give at least 100"):
        planning.load_or_make_plan(model, [path], tmp_path / "work", minutes=5, threads=1)


def test_a_language_model_is_refused(text: Path, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(iter(texts(200)), TokenizerConfig(kind="unigram", vocab_size=400))
    folder = tmp_path / "lm"
    tiny.language_model(vocab_size=tokenizer.vocab_size).save_pretrained(folder)
    tokenizer.save(folder)
    with pytest.raises(ModelError, match="is a language model; accelerate needs a translation"):
        planning.load_or_make_plan(folder, [text], tmp_path / "work", minutes=5, threads=1)


def test_sentences_are_taken_evenly(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("今天很好。我们走吧！\n\nHello there. How are you?\nx\n", encoding="utf-8")
    found = list(read_sentences([path]))
    assert found == ["今天很好。", "我们走吧！", "Hello there.", "How are you?"]
    assert sample(found, 2, of=4) == ["我们走吧！", "How are you?"]
    assert sample(found, 4, of=4) == found
