"""The small studies of `benchmarks/` run, and measure what they say."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from drafted import TEXT, save_translator
from outrider.data.tokenizer import load_tokenizer
from outrider.models import load_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gradients() -> ModuleType:
    return script("gradients")


def run(module: ModuleType, folder: Path, *arguments: str) -> dict:
    """Run a script's main; return the JSON it wrote beside a picture."""
    picture, result = folder / "out.png", folder / "out.json"
    with pytest.MonkeyPatch.context() as patch:
        files = ["--png", str(picture), "--json", str(result)]
        patch.setattr(sys, "argv", ["script", *arguments, *files])
        # Those who run after this get back what a script has changed for its process.
        patch.setattr(torch, "set_num_threads", lambda _: None)
        patch.setattr(torch, "set_flush_denormal", lambda _: None)
        module.main()
    assert picture.read_bytes().startswith(b"\x89PNG")
    return json.loads(result.read_text(encoding="utf-8"))


def test_gradients_at_toy_size(gradients: ModuleType, tmp_path: Path) -> None:
    sizes = ["--lengths", "5", "9", "--length", "6", "--steps", "2", "--seeds", "2", "--rows", "2"]
    result = run(gradients, tmp_path, *sizes)
    assert [row["name"] for row in result["models"]] == list(gradients.MODELS)
    for row in result["models"]:
        assert [one["length"] for one in row["new"]] == [5, 9]
        assert row["new"][1]["distances"] == [0, 1, 2, 4, 8]
        for one in [*row["new"], row["trained"]]:
            assert len(one["norms"]) == len(one["distances"])
            assert len(one["layers"]) == gradients.LAYERS + 1
            assert all(norm > 0 for norm in one["norms"])
        assert len(row["recalled"]) == 2


@pytest.mark.parametrize("name", ["FAST", "dot product", "LSTM"])
def test_gradients_are_those_of_a_small_change(gradients: ModuleType, name: str) -> None:
    """The norm at a place is the steepest slope of the loss as its embedding moves."""
    torch.manual_seed(0)
    model = gradients.MODELS[name]().double()
    tokens, answer = gradients.batch(1, 7, torch.Generator().manual_seed(0))
    norms = gradients.gradients(model, tokens, answer).by_distance_BT[0]
    place, width = 2, model.tokens.weight.shape[1]

    def loss(push: torch.Tensor) -> torch.Tensor:
        def move(_: object, __: object, x: torch.Tensor) -> torch.Tensor:
            return x + torch.nn.functional.one_hot(torch.tensor(place), 7)[:, None] * push

        hook = model.tokens.register_forward_hook(move)
        logits = model.logits(model.hidden(tokens, [])[:, -1])
        hook.remove()
        return torch.nn.functional.cross_entropy(logits, answer)

    step = 1e-6
    with torch.no_grad():
        slopes = [(loss(step * e) - loss(-step * e)) / (2 * step) for e in torch.eye(width)]
    torch.testing.assert_close(torch.stack(slopes).norm(), norms[6 - place], rtol=1e-5, atol=1e-9)


def test_gamma_at_toy_size(tmp_path: Path) -> None:
    folder = save_translator(tmp_path / "model", decoder_core="gru", pair_attention=True)
    source = tmp_path / "source.txt"
    source.write_text("\n".join(TEXT), encoding="utf-8")
    pair = ["--source", str(source), "--reference", str(source), "--draft-tokens", "4"]
    result = run(script("gamma"), tmp_path, str(folder), *pair, "--gammas", "0", "0.5", "1")
    exact, _, trusting = result["tandem"]
    assert exact["identical_share"] == 1.0
    assert exact["bleu"] == result["alone"]["ar"]["bleu"]
    assert trusting["tokens_per_round"] > 2 * exact["tokens_per_round"]
    assert trusting["rounds_per_line"] < exact["rounds_per_line"]


def test_the_share_that_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All letters were seen a hundred times but `t`: it goes where more than one is asked for."""
    folder = save_translator(tmp_path / "model", drafter=False, skip={"below": 0.0005})
    model = load_model(folder)
    assert model.router is not None
    counts = torch.full_like(model.router.count_V, 100)
    letter = load_tokenizer(folder).encode("t")[-1]
    counts[letter] = 1
    model.router.set_counts(counts)
    model.save_pretrained(folder)
    source, result = tmp_path / "source.txt", tmp_path / "out.json"
    source.write_text("at", encoding="utf-8")
    skipped = script("skipped")
    with pytest.MonkeyPatch.context() as patch:
        arguments = [str(folder), "--source", str(source), "--json", str(result)]
        patch.setattr(sys, "argv", ["skipped", *arguments])
        skipped.main()
    found = {row["below"]: row for row in json.loads(result.read_text())["measured"]}
    tokens = len(load_tokenizer(folder).encode("at")) + 1
    assert found[0.0005]["least"] == 1
    assert found[0.0005]["left_out"] == 0
    assert found[0.05]["left_out"] == pytest.approx(1 / tokens)
    assert "| 0.05 |" in capsys.readouterr().out
