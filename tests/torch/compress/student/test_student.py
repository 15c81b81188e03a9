"""`outrider student` end to end, with interruptions."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.cli.main import run
from outrider.config import load_config
from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.formats.weights import read_weights
from outrider.run_config import RunConfig
from outrider.runtime import Translator, load
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.sentencepiece_export import write_sentencepiece
from outrider.torch.compress.student import StudentConfig
from outrider.torch.models import load_model
from tests.helpers.chat_server import Server, said
from tests.helpers.speaker import ending_model, texts


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "model"
    lines = [*texts(200), *"abcdefghinorst"]
    tokenizer = train_tokenizer(iter(lines), TokenizerConfig(kind="unigram", vocab_size=400))
    write_sentencepiece(tokenizer, folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "decoder_layers": 3}
    model = ending_model(tokenizer.vocab_size, eos=tokenizer.eos_id, longest=600, **sizes)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def config(teacher: Path, tmp_path: Path) -> Path:
    lines = [f"{number} {line}.\n" for number, line in enumerate(texts(150))]
    (tmp_path / "mono.txt").write_text("".join(lines))
    path = tmp_path / "student.yaml"
    path.write_text(f"""
name: little
folder: {tmp_path / "little"}
teacher: {teacher}
text: mono.txt
root: {tmp_path}
valid_rows: 16
clean: {{drop_duplicates: false, max_ratio: null, max_tokens: 500}}
shape: {{decoder: [0, 2], words: 365}}
word_level: 0.5
train:
  {{steps: 12, batch_tokens: 256, save_every: 4, evaluate_every: 6, warmup: 2, average: 1}}
tests: {{news: {{source: test.src, reference: test.ref}}}}
attribution: Made for a test.
""")
    for name in ("test.src", "test.ref"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in texts(8)))
    return path


def test_a_teacher_and_text_become_a_student(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["student", str(config), "--threads", "1"]) == 0
    said = capsys.readouterr()
    model = tmp_path / "little" / "small"
    assert said.out == f"{model}\n"
    assert "translating 150 of 150 sentences" in said.err
    student = load_model(model)
    assert (student.config.decoder_layers, student.config.vocab_size) == (2, 365)
    card = (model / "README.md").read_text()
    assert "Made for a test." in card
    assert card.count("## Beside its teacher") == 1
    assert "See [Beside its teacher](#beside-its-teacher)." in card
    assert "Not evaluated" not in card
    assert "| times the teacher |" in card
    compared = json.loads((model / "student.json").read_text())
    assert {"news_bleu", "teacher_news_chrf", "megabytes", "teacher_megabytes"} <= compared.keys()
    assert card.count("\n| cat") > 0, "sentences are shown"
    assert {row["engine"] for row in compared["speed"]} >= {"student-native-int8"}
    assert all(row["sentences_per_second"] > 0 for row in compared["speed"])
    loaded = load(model)
    assert isinstance(loaded, Translator)
    assert len(loaded.translate(texts(3))) == 3
    assert run(["student", str(config), "sentences=100"]) == 2
    assert "was started with another sentences; remove" in capsys.readouterr().err
    assert run(["student", str(config), "shape.words=364"]) == 2
    assert (
        "shape.json: was started with another shape; choose another folder"
        in capsys.readouterr().err
    )


def test_export_is_small_and_equals_the_trained_student(config: Path, tmp_path: Path) -> None:
    line = ["shape.int4=[embeddings,feedforward]", "tests={}", "train.steps=4"]
    assert run(["student", str(config), *line, "-q"]) == 0
    folder = tmp_path / "little"
    start, learnt, small = (read_weights(folder / name) for name in ("start", "model", "small"))
    kinds = {name: weight.kind for name, weight in small.items() if len(weight.shape) == 2}
    for name, kind in kinds.items():
        table, product = name.endswith("tokens.weight"), ".feedforward." in name
        assert (kind == "int4") == (table or product), name
        if table:  # rounded at the start and then frozen
            for before in (start, learnt):
                np.testing.assert_array_equal(before[name].as_float32(), small[name].as_float32())
    assert (start["decoder.blocks.0.cross.q.weight"].data
            != learnt["decoder.blocks.0.cross.q.weight"].data).any()  # fmt: skip
    assert (folder / "small" / "README.md").is_file()
    assert len(load(folder / "small", backend="native").translate(texts(3))) == 3
    written = (folder / "small" / "model.safetensors").stat()
    assert run(["student", str(config), *line, "-q"]) == 0
    assert (folder / "small" / "model.safetensors").stat() == written, "once is enough"


def test_students_share_translations(config: Path, tmp_path: Path) -> None:
    shared = f"work={tmp_path / 'shared'}"
    for name, words in (("one", 365), ("two", 364)):
        line = [
            f"folder={tmp_path / name}",
            shared,
            f"shape.words={words}",
            "word_level=0",
            "tests={}",
            "-q",
        ]
        assert run(["student", str(config), *line]) == 0
        assert load_model(tmp_path / name / "model").config.vocab_size == words
        assert not (tmp_path / name / "teacher").exists()
    assert not (tmp_path / "two" / "work").exists()


def test_an_impossible_shape_names_its_key(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["student", str(config), "shape.words=9"]) == 2
    assert "shape.words: got 9, expected over" in capsys.readouterr().err
    assert run(["student", str(config), "shape.decoder=[0,7]"]) == 2
    assert "shape.decoder: got [0, 7], expected some of 0 to 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("translate", "key"),
    [
        ("{strategy: sample}", "translate.consensus: is required to choose one of several"),
        ("{consensus: 4}", "translate.consensus: greedy finds one text"),
        ("{strategy: beam, consensus: 6}", "translate.consensus: got 6, but there are 4 beams"),
    ],
)
def test_a_choice_needs_several_candidates(
    config: Path, translate: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["student", str(config), f"translate={translate}"]) == 2
    assert key in capsys.readouterr().err


def test_the_best_of_several_samples(config: Path, tmp_path: Path) -> None:
    draws = "translate={strategy: sample, consensus: 3, temperature: 0.7}"
    assert run(["student", str(config), draws, "tests={}", "-q"]) == 0
    manifest = json.loads((tmp_path / "little/work/translated/manifest.json").read_text())
    assert manifest["origin"]["decode"]["choose"] == "consensus"


def test_remote_teacher_with_another_start_model(
    config: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(body: dict[str, Any], _: int) -> tuple[int, Any]:
        return 200, said(" ".join(body["messages"][0]["content"].split()[::-1][:5]))

    server = Server(answer)
    try:
        address = f"teacher={{url: '{server.url}', model: big}}"
        line = ["student", str(config), address, "word_level=0"]
        assert run(line) == 2
        assert "start: is required: a remote teacher" in capsys.readouterr().err
        assert run([*line, f"start={teacher}"]) == 2
        assert "tests: a remote teacher is not measured" in capsys.readouterr().err
        line.append("tests={}")
        assert run([*line, f"start={teacher}", "-q"]) == 0
        asked = len(server.asked)
        assert asked == 150
        assert run([*line, f"start={teacher}", "-q"]) == 0
        assert len(server.asked) == asked
    finally:
        server.http.shutdown()
        server.http.server_close()
    student = load_model(tmp_path / "little" / "model")
    assert (student.config.decoder_layers, student.config.vocab_size) == (2, 365)
    assert run(["student", str(config), address, f"start={teacher}", "tests={}"]) == 2
    assert "word_level: needs a local teacher" in capsys.readouterr().err


def test_a_student_starts_from_an_earlier_one(config: Path, tmp_path: Path) -> None:
    """The second student has a smaller vocabulary; its teacher is cut to the same."""
    shared = [f"work={tmp_path / 'work'}", "tests={}", "-q"]
    assert run(["student", str(config), *shared]) == 0
    changes = ["start=" + str(tmp_path / "little/model"), f"folder={tmp_path / 'less'}"]
    shape = "shape={decoder: [1], words: 362, feedforward: 8}"
    assert run(["student", str(config), *shared, *changes, shape]) == 0
    models = [tmp_path / "less" / name for name in ("start", "teacher", "model")]
    start, teacher, model = (load_model(path).config for path in models)
    assert (start.decoder_layers, teacher.decoder_layers, model.decoder_layers) == (1, 3, 1)
    assert {one.vocab_size for one in (start, teacher, model)} == {362}
    names = [load_tokenizer(path).names for path in models]  # type: ignore[attr-defined]
    assert names[0] == names[1] == names[2]


def test_start_with_another_vocabulary_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line.upper() for line in texts(200)]
    tokenizer = train_tokenizer(iter(lines), TokenizerConfig(kind="unigram", vocab_size=400))
    write_sentencepiece(tokenizer, tmp_path / "other")
    ending_model(tokenizer.vocab_size, eos=tokenizer.eos_id, longest=600).save_pretrained(
        tmp_path / "other"
    )
    line = [f"start={tmp_path / 'other'}", "shape={}", "tests={}"]
    assert run(["student", str(config), *line]) == 2
    assert "word_level: the teacher and the student's start" in capsys.readouterr().err


def test_the_teacher_is_named_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["student", str(config), "train.teacher=other"]) == 2
    assert "train.teacher: is set by word_level" in capsys.readouterr().err


def test_too_little_text_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["student", str(config), "sentences=20"]) == 2
    assert "text: 20 sentences are too few to hold out 16" in capsys.readouterr().err


def test_the_example_config_is_valid(repository: Path) -> None:
    example = load_config(StudentConfig, repository / "examples" / "student" / "opus-mt-zh-en.yaml")
    assert example.shape.decoder == (0, 1, 2, 4, 5)
    assert example.shape.int4 == ("embeddings", "feedforward")
    assert example.word_level
    assert example.clean.drop_equal


def test_the_example_config_of_the_other_direction_is_valid(repository: Path) -> None:
    path = repository / "examples" / "student" / "opus-mt-en-zh.yaml"
    example = load_config(RunConfig, path)
    assert example.data.tokenizer.folder == example.model.start
    (back,) = example.data.more
    assert back.tag in example.data.tokenizer.new_tokens
    assert (back.source_column, back.target_column) == ("target", "source")


@pytest.mark.slow
def test_a_killed_run_resumes(config: Path, tmp_path: Path) -> None:
    """Killed in every stage and resumed, it writes the weights of an undisturbed run."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(name: str) -> "subprocess.Popen[bytes]":
        line = ["student", str(config), f"folder={tmp_path / name}", "--threads", "1", "-q"]
        code = f"import sys; from outrider.cli.main import run; sys.exit(run({line!r}))"
        return subprocess.Popen([sys.executable, "-c", code], env=environment)

    assert start("whole").wait(300) == 0
    kills = 0
    for sign in (
        "plan.json",
        "sentences.txt",
        "translated/manifest.json",
        "../start/config.json",
        "../teacher/config.json",
    ):
        process = start("broken")
        while process.poll() is None and not (tmp_path / "broken" / "work" / sign).exists():
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(60)
    assert kills >= 3
    assert start("broken").wait(300) == 0
    name = "model/model.safetensors"
    assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
