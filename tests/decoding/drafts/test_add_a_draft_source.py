"""`docs/add-a-draft-source.md`, followed literally in a copy of the package."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

CHECK = """
from outrider.decoding import DecodeConfig, Request, Statistics
from outrider.decoding.drafts.history import repeat
from tests.helpers.loops import greedy, tandem
from tests.helpers.reference_backend import ReferenceBackend

assert repeat([5, 6, 7, 8, 5, 6], 3) == [7, 8, 5]
assert repeat([5, 6, 7, 8], 3) == repeat([5, 5], 3) == repeat([5], 3) == []
stats = Statistics()
requests = [Request(source=(n,), max_new_tokens=40) for n in range(9)]
for k in (None, 1, 6):
    config = DecodeConfig(mode="tandem", draft="history", draft_tokens=k, min_new_tokens=30)
    backend = ReferenceBackend(4)
    expected = greedy(backend, requests, DecodeConfig(min_new_tokens=30))
    assert tandem(backend, requests, config, stats=stats) == expected
assert sum(stats.drafted)
"""


def test_the_source_of_the_page_drafts(repository: Path, tmp_path: Path) -> None:
    page = (repository / "docs" / "add-a-draft-source.md").read_text(encoding="utf-8")
    shutil.copytree(repository / "src", tmp_path / "src")
    source, command = re.findall(r"```\w+\n(.*?)```", page, flags=re.DOTALL)
    (file,) = re.findall(r"^`(\S+)`; its name", page, flags=re.MULTILINE)
    (tmp_path / file).write_text(source, encoding="utf-8")
    (line,) = re.findall(r"Add `(\S+)` after `(\S+)` in `(\S+)`", page)
    name, after, table = line
    text = (tmp_path / table).read_text(encoding="utf-8")
    assert text.count(after) == 1
    (tmp_path / table).write_text(text.replace(after, f"{after}, {name}"), encoding="utf-8")

    path = os.pathsep.join([str(tmp_path / "src"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}

    def run(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    run("-c", CHECK)
    words = shlex.split(command)[1:]
    plain = [word for word in words if word != "--stats"][: words.index("--mode")]
    assert run("-m", "outrider", *words) == run("-m", "outrider", *plain, words[-1])
