"""`outrider show tandem`, `bench exact` and the options for modes, through the command line."""

import io
import json

import pytest
from rich.console import Console

from outrider.cli.show import print_tandem
from outrider.decoding.statistics import Round
from outrider.runtime import load
from outrider.show.tandem_trace import trace
from tests.helpers.drafted import TEXT, save_language_model, save_translator

WORDS = ["", " Wo", " ist", " das", "?"]
ROUNDS = (Round((1, 3), 1, 2), Round((4,), 1, 0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("translator"))


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    return save_language_model(tmp_path_factory.mktemp("generator"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("plain"), drafter=False)


def printed(**console) -> str:
    def decode(ids) -> str:
        return "".join(WORDS[i] for i in ids).strip()

    traced = trace("Where is it?", "Wo ist?", ROUNDS, decode=decode, ends=[0])
    file = io.StringIO()
    print_tandem(traced, Console(file=file, width=80, highlight=False, **console))
    return file.getvalue()


def test_without_colours_marks_distinguish_tokens() -> None:
    lines = printed().splitlines()
    assert lines[:6] == ["Where is it?", "", "1  Wo [-das-] {+ist+}", "2  ? (+■+)", "", "Wo ist?"]
    assert "4 tokens in 2 rounds: 2.00 tokens a round" in lines
    assert lines[-2].endswith("100%")
    assert lines[-1].endswith(" 0%")


def test_with_colours_refused_tokens_are_struck_through() -> None:
    text = printed(force_terminal=True, color_system="standard", no_color=False)
    assert "\x1b[9;31mdas" in text
    assert "[-" not in text


def test_show_prints_draws_and_writes(command, folder, tmp_path) -> None:
    png, html = tmp_path / "t.png", tmp_path / "t.html"
    options = ("--png", png, "--html", html, "--draft-tokens", 3, "--max-new-tokens", 9)
    code, out, err = command("show", "tandem", TEXT[0], "--model", folder, *options)
    expected = load(folder, device="cpu").translate(TEXT[0], max_new_tokens=9)
    assert (code, err) == (0, f"wrote {png}\nwrote {html}\n")
    assert out.splitlines()[0] == TEXT[0]
    assert expected in out
    assert png.read_bytes().startswith(b"\x89PNG")
    page = html.read_text(encoding="utf-8")
    assert "<!DOCTYPE html>" in page
    assert "place 3 of the draft, confidence" in page


def test_show_continues_a_prompt(command, language_model) -> None:
    code, out, _ = command(
        "show", "tandem", "two ", "--model", language_model, "--max-new-tokens", 6, "--gamma", 1
    )
    assert code == 0
    assert "tokens a round" in out


@pytest.mark.parametrize("name", ["translate", "generate"])
def test_modes_on_the_command_line(command, folder, language_model, name) -> None:
    model = folder if name == "translate" else language_model
    common = (name, "--model", model, *TEXT[:2], "--max-new-tokens", 9)
    expected = command(*common)[1]
    code, out, err = command(*common, "--mode", "tandem", "--draft-tokens", 4, "--stats")
    assert (code, out) == (0, expected)
    assert "tokens per round" in err
    assert "seconds in verify" in err
    assert command(*common, "--mode", "tandem", "--strict")[:2] == (0, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mode", "tandm"), "--mode: got 'tandm'"),
        (("--mode", "ar", "--gamma", 0.5), "--gamma: 0.5 has no effect with mode 'ar'"),
        (("--gamma", 2), "--gamma"),
        (("--mode", "tandem", "--beams", 4), "--beams: 4 has no effect with mode 'tandem'"),
        (("--mode", "tandem", "--draft-tokens", 99), "draft_tokens: got 99, but this drafter"),
    ],
)
def test_mistakes_are_one_line(command, folder, arguments, message) -> None:
    code, out, err = command("translate", "--no-guard", "--model", folder, "a", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [("translate", "a", "--mode", "tandem"), ("show", "tandem", "a")])
def test_a_model_without_a_drafter_is_refused(command, plain, words) -> None:
    code, _, err = command(*words, "--model", plain)
    assert code == 2
    assert "this model has no drafter, which mode tandem needs; make one with outrider" in err


def test_bench_exact_counts_lines(command, folder, tmp_path) -> None:
    source, result = tmp_path / "source.txt", tmp_path / "result.json"
    source.write_text("".join(f"{line}\n" for line in TEXT), encoding="utf-8")
    options = ("--json", result, "--batch", 2, "--max-new-tokens", 9, "--draft-tokens", 3)
    code, out, _ = command("lab", "bench", "exact", folder, "--source", source, *options)
    assert code == 0
    assert "4 of 4 lines are identical (100.00%), float32" in " ".join(out.split())
    written = json.loads(result.read_text(encoding="utf-8"))
    assert (written["lines"], written["identical"], written["differing"]) == (4, 4, [])
    assert written["settings"] == {
        "batch": 2,
        "draft_tokens": 3,
        "strict": False,
        "max_new_tokens": 9,
    }
    assert set(written["weights_sha256"]) == {"model.safetensors", "drafter/model.safetensors"}
    assert written["data"]["source"]["file"] == "source.txt"


def test_bench_exact_accepts_prompts(command, language_model, tmp_path) -> None:
    source = tmp_path / "prompts.txt"
    source.write_text("two \na\n", encoding="utf-8")
    code, out, _ = command(
        "lab",
        "bench",
        "exact",
        language_model,
        "--source",
        source,
        "--max-new-tokens",
        5,
        "--strict",
    )
    assert code == 0
    assert "2 of 2 lines are identical" in out


@pytest.mark.parametrize(
    ("batch", "reference", "message"),
    [
        ("1,x", "a\nb\n", "--batch: got '1,x', expected numbers such as 1,8,32"),
        ("1", "a\n", "has 2 lines and"),
        ("1", "", "the file is empty"),
    ],
)
def test_bench_modes_refuses_wrong_input(
    command, folder, tmp_path, batch, reference, message
) -> None:
    source, target = tmp_path / "s", tmp_path / "r"
    source.write_text("a\nb\n", encoding="utf-8")
    target.write_text(reference, encoding="utf-8")
    options = ("--source", source, "--reference", target, "--batch", batch)
    code, _, err = command("lab", "bench", "modes", folder, *options)
    assert code == 2
    assert message in err


def test_an_interrupt_reports_progress(command, folder, tmp_path, monkeypatch) -> None:
    source, result = tmp_path / "source.txt", tmp_path / "result.json"
    source.write_text("".join(f"{line}\n" for line in TEXT), encoding="utf-8")

    def compare(loaded, lines, *, advance, **_):
        advance(3)
        raise KeyboardInterrupt

    def measure(*_, report, **__):
        report("speed at batch 8")
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider_lab.bench.modes.exactness.compare_with_greedy", compare)
    monkeypatch.setattr("outrider_lab.bench.modes.measure.measure_modes", measure)
    options = ("--source", source, "--json", result)
    code, out, err = command("lab", "bench", "exact", folder, *options)
    assert (code, out) == (130, "")
    assert "stopped (3 of 4 lines were compared); no result was written" in err
    code, out, err = command("lab", "bench", "modes", folder, "--reference", source, *options)
    assert (code, out) == (130, "")
    assert "stopped (speed at batch 8); no result was written" in err
    assert not result.exists()
