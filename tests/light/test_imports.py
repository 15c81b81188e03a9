"""Decoding with the native core does not import packages that only training needs."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    *("torch", "transformers", "pyarrow", "datasets", "accelerate", "sacrebleu", "matplotlib"),
    *("sentencepiece", "safetensors", "huggingface_hub", "yaml", "filelock"),
)
RUN = f"""
import sys
from outrider.cli.main import run
code = run(sys.argv[1:])
heavy = {HEAVY!r}
found = sorted({{name.partition(".")[0] for name in sys.modules}} & set(heavy))
sys.exit(f"imports {{', '.join(found)}}" if found else code)
"""
TEXT = "Where is the station? I would like to know."
LINES: dict[str, list[str]] = {
    "greedy": ["translate", "--model", "DEMO", TEXT],
    "tandem": ["translate", "--model", "DEMO", "--mode", "tandem", TEXT],
    "drafts of a fixed length": ["translate", "--model", "DEMO", "--draft-tokens", "6", TEXT],
    "leaning": ["translate", "--model", "DEMO", "--gamma", "0.25", "--stats", TEXT],
    "beam": ["translate", "--model", "DEMO", "--beams", "3", "--n-best", "2", TEXT],
    "sampling": ["translate", "--model", "DEMO", "--temperature", "0.7", "--seed", "3", TEXT],
    "tandem sampling": [
        *("translate", "--model", "DEMO", "--mode", "tandem", "--temperature", "0.7", TEXT),
    ],
    "parallel by ctc": ["translate", "--model", "DEMO", "--mode", "parallel", TEXT],
    "parallel by the drafter": [
        *("translate", "--model", "DEMO", "--decoder", "drafter", "--iterations", "3", TEXT),
    ],
    "stdin": ["translate", "--model", "DEMO"],
    "generate": ["generate", "--model", "WRITER", "--max-new-tokens", "5", TEXT],
    "show": ["show", "tandem", "--model", "DEMO", TEXT],
    "doctor": ["doctor", "DEMO"],
    "help": ["--help"],
    "a wrong option": ["translate", "--model", "DEMO", "--beams", "0", TEXT],
}


@pytest.mark.parametrize("name", LINES)
def test_decoding_imports_nothing_heavy(name: str, demo: Path, writer: Path) -> None:
    places = {"DEMO": str(demo), "WRITER": str(writer)}
    line = [places.get(word, word) for word in LINES[name]]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *line], input=TEXT, capture_output=True, text=True, timeout=120
    )
    expected = 2 if name == "a wrong option" else 0
    assert done.returncode == expected, done.stderr


PLAIN = """
import outrider
texts = outrider.load(sys.argv[1]).translate([sys.argv[2]], **eval(sys.argv[3]))
code = not texts[0]
"""


def check_without_pydantic(code: str, line: list[str]) -> None:
    code = code.replace("heavy = (", "heavy = ('pydantic', 'rich', 'importlib_metadata', ")
    done = subprocess.run(
        [sys.executable, "-c", code, *line], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "options", ["--threads 1", "--beams 4", "--mode tandem --draft-tokens 3", "--candidates 2"]
)
def test_a_plain_line_imports_nothing_that_checks_or_decorates(demo: Path, options: str) -> None:
    check_without_pydantic(RUN, ["translate", "--model", str(demo), *options.split(), TEXT])


@pytest.mark.parametrize("options", [{}, {"beams": 4}, {"gamma": 0.5}, {"temperature": 0.7}])
def test_a_call_imports_nothing_that_checks(demo: Path, options: dict[str, float]) -> None:
    run = RUN.replace("from outrider.cli.main import run\ncode = run(sys.argv[1:])\n", PLAIN)
    assert run != RUN
    check_without_pydantic(run, [str(demo), TEXT, repr(options)])


def test_a_folder_on_a_disk_is_translated_without_the_packages_of_stores(
    demo: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text(f"{TEXT}\n")
    heavy = {*HEAVY, "fsspec", "ray"} - {"filelock"}  # the lock needs it
    code = RUN.replace(f"heavy = {HEAVY!r}", f"heavy = {heavy!r}")
    line = ["translate", "--model", str(demo), "--shards", str(tmp_path / "in")]
    done = subprocess.run(
        [sys.executable, "-c", code, *line, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "translated.json").exists()


def test_the_library_imports_nothing_heavy(demo: Path) -> None:
    code = f"""
import sys, outrider
model = outrider.load({str(demo)!r})
model.translate(["Where is it?", "Good morning."], mode="tandem")
sys.exit(", ".join({set(HEAVY)!r} & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
