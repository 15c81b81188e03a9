"""The small studies of `lab/studies/` run at toy size."""

import importlib.util
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch

import outrider
from outrider.catalog import Catalog, Pair
from outrider.text.tokenizer import load_tokenizer
from outrider.torch.models import Drafter, DrafterConfig, load_model
from tests.helpers import bergamot_tiny
from tests.helpers.drafted import TEXT, save_language_model, save_translator

BENCHMARKS = Path(__file__).parents[3] / "lab/studies"


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
    """Run a script's main; return the JSON that it writes beside a picture."""
    picture, result = folder / "out.png", folder / "out.json"
    with pytest.MonkeyPatch.context() as patch:
        files = ["--png", str(picture), "--json", str(result)]
        patch.setattr(sys, "argv", ["script", *arguments, *files])
        # Restore settings of the process that a script changes.
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
def test_gradients_equal_finite_differences(gradients: ModuleType, name: str) -> None:
    """The norm at a position is the steepest slope of the loss when its embedding changes."""
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


def test_share_of_skipped_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every letter has a count of 100, except `t` with 1: a threshold above 1 leaves it out."""
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


@pytest.fixture
def writer(tmp_path: Path) -> Path:
    """A language model whose LSTM drafter has all tokens as candidates."""
    folder = save_language_model(tmp_path / "model", core="gru", position="none", drafter=False)
    torch.manual_seed(0)
    parts = {"core": "lstm", "candidates": 64, "block": 6, "train_block": 4}
    config = DrafterConfig.for_target(load_model(folder).config, **parts)
    Drafter(config).save_pretrained(folder / "drafter")
    return folder


def test_gamma_of_text_at_toy_size(writer: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(TEXT), encoding="utf-8")
    sizes = ["--prompt", "4", "--new-tokens", "6", "--draft-tokens", "3", "--order", "3"]
    files = ["--text", str(text), "--judge", str(text)]
    gammas = ["--gammas", "0", "0.5", "1"]
    result = run(script("gamma"), tmp_path, str(writer), *files, *sizes, *gammas)
    exact, _, trusting = result["greedy"]["tandem"]
    assert exact["identical_share"] == 1.0
    assert exact["nats"] == pytest.approx(result["greedy"]["alone"]["ar"]["nats"])
    assert trusting["rounds_per_line"] < exact["rounds_per_line"]
    assert [row["gamma"] for row in result["drawn"]["tandem"]] == [0, 0.5, 1]
    assert result["held_out"][0]["perplexity"] == pytest.approx(math.exp(result["people"]["nats"]))
    assert result["people"]["judge_nats"] < exact["judge_nats"]


def test_gamma_of_text_mixes_the_two_halves(writer: Path) -> None:
    """The probabilities of both halves; p_NAR does not depend on tokens within its block."""
    gamma, model = script("gamma"), outrider.load(writer, dtype="float32")
    ids = model.tokenizer.encode(TEXT[2])
    given = [gamma.Passage(ids[:4], ids[4:10]), gamma.Passage(ids[5:9], ids[9:15])]
    p_AR, p_NAR = gamma.chances(model, given, 3)
    network = load_model(writer).eval()
    with torch.inference_mode():
        logits = network(input_ids=torch.tensor([[model.backend.start, *ids[:9]]])).logits
    wanted = logits.softmax(-1)[0, 4:10].gather(1, torch.tensor(ids[4:10])[:, None])[:, 0]
    assert p_AR[0] == pytest.approx(wanted.tolist(), rel=1e-4)
    other = gamma.Passage(ids[:4], [ids[4], *ids[9:11], *ids[7:10]])
    assert gamma.chances(model, [other], 3)[1][0][0] == pytest.approx(p_NAR[0][0])
    half = gamma.held_out(p_AR, p_NAR, [0.0, 0.5], 3)[1]
    pairs = [pair for row in zip(p_AR, p_NAR, strict=True) for pair in zip(*row, strict=True)]
    nats = [-math.log((p + q) / 2) for p, q in pairs]
    assert half["perplexity"] == pytest.approx(math.exp(sum(nats) / len(nats)))
    places = [math.log(one) for one in half["perplexity_by_place"]]
    assert sum(places) / 3 == pytest.approx(math.log(half["perplexity"]))


def test_gamma_of_text_names_missing_options(writer: Path, tmp_path: Path) -> None:
    gamma, text = script("gamma"), str(tmp_path / "text.txt")
    Path(text).write_text("\n".join(TEXT), encoding="utf-8")
    with pytest.raises(SystemExit, match="give --text and --judge"):
        run(gamma, tmp_path, str(writer), "--source", text)
    files = ["--text", text, "--judge", text]
    with pytest.raises(SystemExit, match="no paragraph has 260 tokens"):
        run(gamma, tmp_path, str(writer), *files)
    config = DrafterConfig.for_target(load_model(writer).config, core="lstm", candidates=2)
    Drafter(config).save_pretrained(writer / "drafter")
    with pytest.raises(SystemExit, match="names a few tokens only"):
        run(gamma, tmp_path, str(writer), *files, "--prompt", "4", "--new-tokens", "6")


def test_busy_neighbour_measures_each_setting_alone_and_with_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, seen = script("busy_neighbour"), []
    loops = 0

    @contextmanager
    def counted(count: int) -> Iterator[None]:
        nonlocal loops
        loops = count
        yield
        loops = 0

    def train(data: Path, updates: int, variables: dict[str, str]) -> float:
        seen.append((loops, updates, variables))
        return 1.0 + len(variables) + loops

    monkeypatch.setattr(study, "neighbours", counted)
    monkeypatch.setattr(study, "train", train)
    monkeypatch.setattr(study.time, "sleep", lambda _: None)
    result = tmp_path / "out.json"
    options = ["--updates", "9", "--rounds", "2", "--neighbours", "0", "3", "--json", str(result)]
    monkeypatch.setattr(sys, "argv", ["script", *options])
    study.main()
    settings = list(study.SETTINGS.values())
    turn = [(count, 9, one) for count in (0, 3) for one in settings]
    assert seen[1:] == [*turn, *turn[::-1]]
    rows = json.loads(result.read_text(encoding="utf-8"))["rows"]
    assert [row["median"] for row in rows] == [2, 1, 2, 2, 5, 4, 5, 5]
    assert rows[5]["of_one_thread"] == 0.8


def test_busy_neighbour_trains_a_run_and_ends_its_loops(tmp_path: Path) -> None:
    study = script("busy_neighbour")
    with study.neighbours(1) as loops:
        assert loops[0].poll() is None
    assert loops[0].poll() is not None
    assert study.train(tmp_path / "data", study.WARM + 1, {"OMP_NUM_THREADS": "1"}) > 0


def test_install_time_lists_a_folder_that_serve_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    tiny, listed = tmp_path / "tiny", tmp_path / "listed"
    bergamot_tiny.write_folder(tiny)
    listed.mkdir()
    script("install_time").write_list(listed, tiny, "en-pt")
    folder = Catalog(str(listed), offline=True).find(Pair("en", "pt"))
    assert outrider.load(folder, backend="native").translate("the cat sees the dog")
