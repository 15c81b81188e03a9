"""`outrider models`, `outrider pull`, and `translate` and `serve` with models by name."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import bergamot_tiny
from tests.helpers.model_server import ModelServer


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A server with de-en (tiny and base) and en-zh, and an empty cache."""
    bergamot_tiny.write_folder(tmp_path / "tiny")
    bergamot_tiny.write_folder(tmp_path / "base", shared=False)
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with ModelServer().running() as server:
        rows = [
            server.entry(tmp_path / "tiny", metrics={"flores200-plus": {"comet": 0.87}}),
            server.entry(
                tmp_path / "base",
                architecture="base",
                metrics={"flores200-plus": {"comet": 0.88}},
            ),
        ]
        chinese = server.entry(tmp_path / "base", "en-zh")
        index = server.add_registry({"de-en": rows, "en-zh": [chinese]})
        monkeypatch.setenv("OUTRIDER_INDEX", index)
        yield server


def folder(tmp_path: Path, name: str) -> Path:
    return tmp_path / "cache" / "models" / name


def test_list_pull_and_remove(command, server: ModelServer, tmp_path: Path) -> None:
    code, out, err = command("models", "de-en", "en-zh-Hans")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["pair", "architecture", "MB", "COMET", "licence", "source", "downloaded"]
    assert [line[:2] for line in lines[1:]] == [
        ["de-en", "base"],
        ["de-en", "tiny"],
        ["en-zh", "tiny"],
    ]
    assert lines[1][3:5] == ["0.8800", "MPL-2.0"]
    code, out, err = command("pull", "de-en", "en-zh", "--small")
    tiny = folder(tmp_path, "de-en/tiny")
    assert (code, out) == (0, f"{tiny}\n{folder(tmp_path, 'en-zh/tiny')}\n")
    assert err.startswith("outrider: de-en: downloading from http://127.0.0.1")
    code, out, _ = command("models", "--offline")
    assert code == 0
    assert str(tiny) in out
    assert "base" not in out
    code, out, _ = command("models", "--remove", "de-en")
    assert (code, out) == (0, f"removed {tiny}\n")
    assert not tiny.exists()
    code, _, err = command("models", "--remove", "de-en")
    assert (code, err) == (2, "outrider: de-en: is not downloaded; downloaded are: en-zh\n")


def test_translate_downloads_after_a_message(command, server: ModelServer, tmp_path: Path) -> None:
    words = ("translate", "--no-guard", "--from", "de", "--to", "en", "the cat sees the dog")
    code, _, err = command(*words, "--offline")
    assert code == 2
    assert err.startswith(
        "outrider: --offline: de-en is not on this machine; run outrider pull de-en"
    )
    code, out, err = command(*words)
    assert code == 0
    assert err.startswith("outrider: de-en: downloading from")
    expected = command(
        "translate", "--no-guard", "--model", folder(tmp_path, "de-en/base"), words[-1]
    )
    assert out == expected[1] != ""
    assert command(*words, "--offline") == (0, out, "")
    assert command("translate", "--no-guard", "--model", "de-en", words[-1], "--offline") == (
        0,
        out,
        "",
    )
    assert command(*words, "--small") == (0, out, ""), "what is there is not downloaded again"
    assert command("pull", "--small", "de-en")[0] == 0
    tiny = command("translate", "--no-guard", "--model", folder(tmp_path, "de-en/tiny"), words[-1])
    assert command(*words, "--small") == tiny != (0, out, "")


def test_serve_downloads_before_it_listens(
    command, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi", reason="needs outrider[serve]")
    from outrider.serving import run

    served = []
    monkeypatch.setattr(run, "run", lambda app, *_: served.append(app.state.engine.registry.specs))
    code, _, err = command("serve", "de-en", "en-zh-Hans", "--port", "0")
    assert code == 0, err
    assert err.count("downloading from") == 2
    (specs,) = served
    assert {name: spec.pair for name, spec in specs.items()} == {
        "de-en": ("de", "en"),
        "en-zh": ("en", "zh"),
    }
    assert specs["de-en"].folder == folder(tmp_path, "de-en/base")
    code, _, err = command("serve", "fr-en", "--offline")
    assert code == 2
    assert "fr-en is not on this machine" in err


def test_other_commands_take_a_pair(
    command, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text"
    text.write_text("the cat sees the dog\na bird sings\n")
    quick = ("--lines", "2", "--batches", "1", "--repeats", "1", "--max-new-tokens", "4")
    code, out, err = command("bench", "de-en", "--text", text, *quick)
    assert (code, "ar" in out.split()) == (0, True), out + err
    assert "de-en: downloading from" in err
    files = ("--source", text, "--reference", text, "--beams", "1")
    code, out, err = command("evaluate", "de-en", *files, "--offline")
    assert (code, "bleu" in out) == (0, True), err
    pytest.importorskip("torch", reason="accelerate needs outrider[train]")
    from outrider.torch.compress import accelerate

    given = []
    monkeypatch.setattr(accelerate, "accelerate", lambda model, *_, **__: given.append(model))
    code, _, err = command("accelerate", "de-en", "--text", text, "--out", tmp_path / "fast")
    assert code == 0, err
    assert given == [str(folder(tmp_path, "de-en/base"))]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pull", "german"], "german: is not a pair of languages; give one such as de-en"),
        (["pull", "de-xx"], "de-xx: no list has this pair"),
        (["models", "--remove"], "--remove: needs pairs, such as outrider models --remove de-en"),
        (["models", "xx-yy"], "xx-yy: no list has such a model; outrider models lists all"),
        (["pull", "de-en", "--index", "missing"], "missing/models.json|missing: .* name a folder"),
        (["translate", "--from", "../x", "--to", "y", "a"], r"\.\./x-y: is not a pair"),
    ],
)
def test_mistakes(command, server: ModelServer, words: list[str], message: str) -> None:
    code, _, err = command(*words)
    assert code == 2
    assert re.search(message, err), err
    assert err.count("\n") == 1
