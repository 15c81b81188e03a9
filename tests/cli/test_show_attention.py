"""`outrider show pattern` and `outrider show attention`, through the command line."""

import base64
import json
import re

import numpy as np
import pytest

from outrider.runtime import load
from outrider.torch.inspect.attention_maps import read_maps
from tests.helpers.drafted import TEXT, save_language_model, save_translator

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("translator"), drafter=False)


def test_a_pattern_is_printed_and_drawn(command, tmp_path) -> None:
    png = tmp_path / "deep" / "pattern.png"
    code, out, err = command("show", "pattern", "sliding", "window=3", "--length", 40, "--png", png)
    lines = out.splitlines()
    assert (code, err) == (0, f"wrote {png}\n")
    assert lines[:2] == ["sliding  window=3", "in a decoder, 40 tokens"]
    assert [line.rstrip() for line in lines[3:6]] == ["█▄", "▀██▄", "  ▀██▄"]
    shown = out.replace("\n", " ")
    assert "7.3% of the pairs are seen, 100.0% computed one dense pass is faster here" in shown
    assert png.read_bytes().startswith(PNG)


def test_an_encoder_attends_to_both_sides(command) -> None:
    code, out, _ = command("show", "pattern", "sliding", "window=2", "--encoder", "--length", 5)
    assert code == 0
    assert "in an encoder, 5 tokens" in out
    assert "52.0% of the pairs are seen" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("slidng",), "kind: unknown 'slidng' (did you mean 'sliding'?)"),
        (("sliding", "windw=3"), "sliding.windw: unknown option of 'sliding' (did you mean"),
        (("sliding", "window"), "window: an option is written key=value"),
        (("sliding", "window=x"), "sliding.window: got 'x', expected a whole number"),
        (("sliding", "--length", 0), "--length: got 0, expected 1 to"),
    ],
)
def test_mistakes_in_a_pattern_are_one_line(command, words, message) -> None:
    code, _, err = command("show", "pattern", *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_heads_are_printed_drawn_and_written(command, translator, tmp_path) -> None:
    png, html = tmp_path / "a.png", tmp_path / "a.html"
    options = ("--png", png, "--html", html)
    code, out, err = command("show", "attention", translator, TEXT[0], *options)
    assert (code, err) == (0, f"wrote {png}\nwrote {html}\n")
    assert "encoder: the source looks at itself" in out
    assert "cross: the next word looks at the source" in out
    assert png.read_bytes().startswith(PNG)
    page = html.read_text(encoding="utf-8")
    assert not re.search(r"https?:|src=|@import|url\(", page), "the page must need nothing else"


def test_the_page_contains_the_weights(command, translator, tmp_path) -> None:
    html = tmp_path / "a.html"
    command("show", "attention", translator, TEXT[1], "--html", html)
    page = html.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="maps">(.*?)</script>', page, re.DOTALL)[1])
    maps = read_maps(load(translator, device="cpu"), TEXT[1])
    for part, shown in zip(maps.parts, data["parts"], strict=True):
        roots = np.frombuffer(base64.b64decode(shown["weights"]), dtype=np.uint8) / 255
        weights = part.weights_LHTS.numpy()
        assert np.abs(roots.reshape(weights.shape) ** 2 - weights).max() < 0.005
        assert shown["queries"] == list(part.queries)


def test_text_is_escaped_in_the_script(command, translator, tmp_path) -> None:
    html = tmp_path / "a.html"
    code, *_ = command("show", "attention", translator, "</script><b>", "--html", html)
    assert code == 0
    assert html.read_text(encoding="utf-8").count("</script>") == 2


def test_a_language_model_shows_attention_to_its_prompt(
    command, tmp_path_factory, tmp_path
) -> None:
    folder = save_language_model(tmp_path_factory.mktemp("generator"), drafter=False)
    png = tmp_path / "g.png"
    code, out, _ = command("show", "attention", folder, "two $men$", "--png", png)
    assert code == 0
    assert "text: the text looks back at itself" in out
    assert png.read_bytes().startswith(PNG)


def test_two_sentences_are_refused_in_one_line(command, translator) -> None:
    code, _, err = command("show", "attention", translator, "a\nb")
    assert code == 2
    assert "cut into 2 pieces; give one sentence" in err
