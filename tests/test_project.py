"""The project as a whole: what is promised in one place is kept in another."""

import importlib
import os
import pkgutil
import re
import resource
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
import torch

import outrider
from outrider import yaml12
from outrider.cli.config import run_fields
from outrider.config import as_yaml, build_config, load_config
from outrider.nn.attention import HeadShape, attention_kinds
from outrider.training.run_config import RunConfig

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
def test_every_module_imports_and_has_what_it_exports(name: str) -> None:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", []):
        assert hasattr(module, public), f"{name}.__all__ names {public}, which is not there"


def test_the_package_itself_keeps_torch_out() -> None:
    line = "import sys, outrider; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line]).returncode == 0


def test_no_file_names_a_machine() -> None:
    wrong = re.compile(
        r"(?<![\w.$~])/(?:work|home|root|opt|Users)/\w|(?:localhost|127\.0\.0\.1):\d{4}"
    )
    for path in sorted((ROOT / "src").rglob("*.py")) + CONFIGS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            assert not wrong.search(line), f"{path}:{number}: {line.strip()}"


# --- configs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_loads_and_its_printout_reads_back(path: Path) -> None:
    run = load_config(RunConfig, path)
    assert build_config(RunConfig, yaml12.parse(as_yaml(run))) == run


def test_every_key_has_a_meaning() -> None:
    assert [field.key for field in run_fields() if not field.text] == []


# --- docs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", attention_kinds())
def test_every_attention_has_a_page_that_says_its_name(kind: str) -> None:
    page = ROOT / "docs" / "attention" / f"{kind}.md"
    assert f"kind: {kind}" in page.read_text(encoding="utf-8")


def test_the_changelog_knows_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, re.MULTILINE)
    assert released[0] == outrider.__version__


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md"])
def test_links_between_files_lead_somewhere(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), f"{path} links to {target}"


def test_the_attention_of_the_tutorial_works() -> None:
    text = (ROOT / "docs" / "add-an-attention.md").read_text(encoding="utf-8")
    (source,) = blocks(text, "python")
    module = ModuleType("outrider.nn.attention.dilated")
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
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("\n## Quickstart\n")[2].partition("\n## ")[0]
    for folder in ("configs", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    scripts = sysconfig.get_path("scripts")
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OUTRIDER_BACKEND": "auto"}  # as a user has it

    def run(*line: str) -> str:
        return subprocess.run(
            line, cwd=tmp_path, env=environment, check=True, text=True, stdout=subprocess.PIPE
        ).stdout

    before = processor_seconds()
    printed = [run("bash", "-euo", "pipefail", "-c", block) for block in blocks(section, "bash")]
    # Two minutes on two cores; the clock on the wall also counts what else the machine does.
    assert processor_seconds() - before < 240
    assert printed[1] == blocks(section, "text")[0], "the README shows another translation"
    (bleu,) = re.findall(r"bleu\W+([\d.]+)", printed[2], re.IGNORECASE)
    assert float(bleu) > 90
    for block in blocks(section, "python"):
        assert run(sys.executable, "-c", block) == "Der alte Mann braucht das kleine Buch.\n"
