"""The command line as a user meets it: what it returns and prints."""

from collections.abc import Callable

import pytest

from outrider.cli.main import run


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run one line; returns its exit code, stdout and stderr."""

    def invoke(*arguments: object) -> tuple[int, str, str]:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke
