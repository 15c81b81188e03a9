"""Upper limits on the size of the product and on the code that runs for one sentence.

A limit is raised only with a reason in the commit message.
"""

import ast
import io
import json
import os
import re
import socket
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ROOT / "src" / "outrider"
HEAVY = re.compile(r"^\s*(?:import|from) (torch|transformers|accelerate|pyarrow)\b", re.M)
FILES, CODE, LINES = 390, 43_500, 61_500
MEDIAN, P90 = 7, 20
DOCS_WORDS, README_WORDS = 36_500, 700
MODULES, MODULE_LINES = 58, 10_600
WALKS: dict[str, tuple[list[str], dict[str, int]]] = {
    "plain": (
        ["translate", "--model", "demo/zh-en", "请问最近的地铁站在哪里？"],
        {"files": 38, "functions": 328, "package_changes": 78},
    ),
    "tandem": (
        ["translate", "--model", "demo/en-de", "--mode", "tandem", "Where is the station?"],
        {"files": 42, "functions": 388, "package_changes": 108},
    ),
}
POST = '{"q": "你好。", "source": "zh", "target": "en"}'
POSTED = {"files": 35, "functions": 238}
COUNT = """
import sys
from pathlib import Path
from outrider.cli.main import run
run(["translate", "--model", "demo/zh-en", "你好。"])
found = [m for name, m in sys.modules.items() if name.partition(".")[0] == "outrider"]
print(len(found), sum(len(Path(m.__file__).read_text().splitlines()) for m in found))
"""


def code_lines(text: str) -> int:
    """Count the lines with a token other than comments and docstrings."""
    kept: set[int] = set()
    statement = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            continue
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            statement = False
        elif statement or token.type != tokenize.STRING:
            statement = True
            kept.update(range(token.start[0], token.end[0] + 1))
    return len(kept)


def test_the_size_of_the_product() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(PRODUCT.rglob("*.py"))]
    assert len(texts) <= FILES
    assert sum(map(code_lines, texts)) <= CODE
    assert sum(text.count("\n") for text in texts) <= LINES
    lengths = sorted(
        node.end_lineno - node.lineno + 1
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    )
    assert lengths[len(lengths) // 2] <= MEDIAN
    assert lengths[len(lengths) * 9 // 10] <= P90


def test_only_outrider_torch_imports_pytorch() -> None:
    leaks = [
        f"{path.relative_to(PRODUCT)}: {name}"
        for path in PRODUCT.rglob("*.py")
        for name in HEAVY.findall(path.read_text(encoding="utf-8"))
        if (package := path.relative_to(PRODUCT).parts[0]) != "torch"
        and not (name == "pyarrow" and package in ("data", "jobs"))
    ]
    assert leaks == []


def test_the_length_of_the_documentation() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if not page.name.endswith(".zh.md")]
    assert sum(len(page.read_text("utf-8").split()) for page in pages) <= DOCS_WORDS
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= README_WORDS


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment in which the native core caches packed weights."""
    pytest.importorskip("outrider_native", reason="outrider-native is not installed")
    path = os.pathsep.join(filter(None, sys.path))
    cache = str(tmp_path_factory.mktemp("cache"))
    kept = {key: value for key, value in os.environ.items() if key != "OUTRIDER_BACKEND"}
    return kept | {"PYTHONPATH": path, "OUTRIDER_CACHE": cache}


def last_line(words: list[str], environment: dict[str, str]) -> str:
    """Run a Python command line and return the last line of its output."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout, done.stderr
    return done.stdout.splitlines()[-1]


def test_one_sentence_imports_few_modules(environment: dict[str, str]) -> None:
    modules, lines = map(int, last_line(["-c", COUNT], environment).split())
    assert modules <= MODULES
    assert lines <= MODULE_LINES


@pytest.mark.parametrize("name", WALKS)
def test_one_sentence_runs_through_few_functions(name: str, environment: dict[str, str]) -> None:
    words, ceiling = WALKS[name]
    for _ in range(2):  # the first run packs the weights
        found = json.loads(last_line(["tests/helpers/walk.py", *words], environment))
    assert {key for key in ceiling if found[key] > ceiling[key]} == set(), found


def test_one_request_runs_through_few_functions(environment: dict[str, str]) -> None:
    pytest.importorskip("fastapi", reason="needs outrider[serve]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ["--post", POST, "serve", "zh-en=demo/zh-en", "--port", port]
    found = json.loads(last_line(["tests/helpers/walk.py", *words], environment))
    assert {key for key in POSTED if found[key] > POSTED[key]} == set(), found
