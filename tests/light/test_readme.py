"""The README's commands that translate with a model in the repository work on a light install."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.helpers import plain_folder

ROOT = plain_folder.DEMO.parents[1]
COMMANDS = re.findall(
    r"^outrider (translate --model demo/.*)$", (ROOT / "README.md").read_text("utf-8"), re.M
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_readme_command_translates(command: str) -> None:
    line = [sys.executable, "-m", "outrider", *shlex.split(command, comments=True)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_readme_has_such_commands() -> None:
    assert any("demo/zh-en" in command for command in COMMANDS)
