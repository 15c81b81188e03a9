"""The examples run, and compute what they say."""

import gzip
import json
import math
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ACT, SEE = 3, 8


@pytest.fixture(scope="module")
def digits() -> Iterator[ModuleType]:
    pytest.importorskip("sklearn")
    yield from script("images", "digits")


@pytest.fixture(scope="module")
def train() -> Iterator[ModuleType]:
    pytest.importorskip("gymnasium")
    yield from script("memory-rl", "train")


def script(folder: str, name: str) -> Iterator[ModuleType]:
    """Import a script as Python does that runs it: with its folder in front."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES / folder)
        yield import_module(name)


def run(script: ModuleType, folder: Path, *arguments: str) -> dict:
    """Run a script's main; return the JSON it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        png, result = folder / "out.png", folder / "out.json"
        files = ["--png", str(png), "--json", str(result)]
        patch.setattr(sys, "argv", ["script", *arguments, *files])
        script.main()
    assert png.read_bytes().startswith(b"\x89PNG")
    return json.loads(result.read_text(encoding="utf-8"))


# --- images -------------------------------------------------------------------------------------


def test_digits_quick(digits: ModuleType, tmp_path: Path) -> None:
    result = run(digits, tmp_path, "--quick")
    plain, *sparse = (model["pairs"] for model in result["models"])
    assert plain == 1
    assert max(sparse) < 0.6
    assert all(model["bits_per_pixel"] < math.log2(28) for model in result["models"])


def test_the_parts_share_no_image(digits: ModuleType) -> None:
    images = digits.load_images(digits.Settings())
    assert [len(part) for part in images] == [1297, 200, 300]
    rows = torch.cat(images)
    assert rows.shape == (1797, 65)
    assert torch.equal(rows[:, 0].unique(), torch.arange(17, 27))
    assert rows[:, 1:].unique().tolist() == list(range(17))
    train, test = ({tuple(row) for row in part.tolist()} for part in (images.train, images.test))
    assert not train & test


@pytest.mark.parametrize("name", ["causal", "image-transformer", "sparse-strided", "sparse-fixed"])
def test_no_pixel_looks_at_itself_or_ahead(digits: ModuleType, name: str) -> None:
    _, config = digits.read_model(name)
    model = digits.LanguageModel(config).double().eval()
    at = 44
    seen = digits.look(model, at).flatten()
    assert seen[at:].eq(0).all()
    row = torch.randint(17, (65,))
    changed = (row + torch.cat([torch.zeros(64, 1), torch.eye(64)], dim=1).long()) % 17
    logits = model(torch.cat([row[None], changed])[:, :-1]).logits[:, at]
    moved = (logits[1:] - logits[0]).abs().amax(-1) > 1e-12
    assert not moved[at:].any(), "what is written depends on what comes after"
    assert moved[seen > 0].all(), "the picture shows a pixel that is not seen"


def test_bits_of_a_model_that_knows_nothing(digits: ModuleType) -> None:
    _, config = digits.read_model("causal")
    model = digits.LanguageModel(config)
    torch.nn.init.zeros_(model.head.weight)
    rows = digits.load_images(digits.QUICK).valid[:3]
    bits = digits.bits_per_image(model, rows, "cpu")
    torch.testing.assert_close(bits, torch.full((3,), 64 * math.log2(28)))


def test_bits_without_context_count_levels_by_digit_and_place(digits: ModuleType) -> None:
    images = digits.load_images(digits.Settings(images=100))
    expected = []
    for digit, *pixels in images.test.tolist():
        same = images.train[images.train[:, 0] == digit, 1:]
        odds = [
            ((same[:, place] == level).sum().item() + 1) / (len(same) + 17)
            for place, level in enumerate(pixels)
        ]
        expected.append(-sum(map(math.log2, odds)))
    torch.testing.assert_close(digits.bits_without_context(images), torch.tensor(expected))


def test_completions_keep_what_was_given(digits: ModuleType) -> None:
    _, config = digits.read_model("sparse-strided")
    model = digits.LanguageModel(config).eval()
    given = digits.load_images(digits.QUICK).test[:3, :33]
    images = digits.write(model, given, seed=0)
    assert images.shape == (3, 8, 8)
    assert torch.equal(images.flatten(1)[:, :32], given[:, 1:])
    assert images.min() >= 0
    assert images.max() < 17
    assert torch.equal(images, digits.write(model, given, seed=0))
    assert not torch.equal(images, digits.write(model, given, seed=1))


# --- memory -------------------------------------------------------------------------------------


def test_memory_quick(train: ModuleType, tmp_path: Path) -> None:
    result = run(train, tmp_path, "--quick")
    assert len({(run["name"], run["rate"]) for run in result["runs"]}) == 6
    assert all(len(run["curves"]) == 2 for run in result["runs"])


def test_the_maze_is_an_environment(train: ModuleType) -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(import_module("maze").Maze(), skip_render_check=True)


def test_who_remembers_the_cue_is_paid(train: ModuleType) -> None:
    maze = import_module("maze")
    one, sides = maze.Maze(corridor=3), []
    for seed in range(20):
        seen, _ = one.reset(seed=seed)
        sides.append(maze.RIGHT if seen[maze.CUE] > 0 else maze.LEFT)
        for _ in range(4):
            assert seen[maze.JUNCTION] == 0
            seen, reward, ended, _, _ = one.step(maze.ON)
            assert reward == 0
            assert not ended
        assert seen[maze.JUNCTION] == 1
        assert one.step(sides[-1])[1:3] == (1.0, True)
    assert set(sides) == {maze.LEFT, maze.RIGHT}
    one.reset()
    assert one.step(maze.LEFT)[1] < 0


@pytest.mark.parametrize("name", ["transformer", "gtrxl", "gtrxl-closed"])
def test_acting_and_reading_give_the_same(train: ModuleType, name: str) -> None:
    torch.manual_seed(0)
    _, config = train.read_model(name)
    policy = train.Policy(config, SEE, ACT).double()
    torch.nn.init.normal_(policy.actor.weight)
    seen = torch.randn(4, 9, SEE, dtype=torch.float64)
    logits, value = policy(seen)
    state = policy.open(4, 9)
    for t in range(9):
        one_logits, one_value = policy.extend(seen[:, t], state)
        torch.testing.assert_close(one_logits, logits[:, t])
        torch.testing.assert_close(one_value, value[:, t])


SEGMENTS = [{"max_positions": 4, "memory": memory} for memory in (0, 3, 4, 8)]


@pytest.mark.parametrize("changes", SEGMENTS, ids=lambda changes: f"memory-{changes['memory']}")
@pytest.mark.parametrize("name", ["transformer", "gtrxl"])
def test_acting_and_reading_in_segments_give_the_same(
    train: ModuleType, name: str, changes: dict[str, int]
) -> None:
    policy = segmented(train, name, changes)
    seen = torch.randn(3, 11, SEE, dtype=torch.float64)
    logits, value = policy(seen)
    state = policy.open(3, 11)
    for t in range(11):
        one_logits, one_value = policy.extend(seen[:, t], state)
        torch.testing.assert_close(one_logits, logits[:, t])
        torch.testing.assert_close(one_value, value[:, t])


@pytest.mark.parametrize(("memory", "reached"), [(0, 0), (3, 3), (4, 4), (8, 4)], ids=str)
def test_the_last_segment_knows_what_its_memory_holds(
    train: ModuleType, memory: int, reached: int
) -> None:
    """Two layers reach twice as far as the memory, and no gradient goes where they reach."""
    policy = segmented(train, "gtrxl", {"max_positions": 4, "memory": memory})
    seen = torch.randn(1, 12, SEE, dtype=torch.float64, requires_grad=True)
    before = policy(seen)[0][:, -1]
    (gradient,) = torch.autograd.grad(before.sum(), seen)
    assert gradient[0, :8].eq(0).all(), "gradients leave their segment"
    assert gradient[0, 8:].ne(0).any(dim=-1).all()
    moved = []
    for t in range(4):
        changed = seen.detach().clone()
        changed[:, t] += 1
        moved.append(not torch.equal(policy(changed)[0][:, -1], before))
    assert sum(moved) == reached


def segmented(train: ModuleType, name: str, changes: dict[str, int]) -> torch.nn.Module:
    """Build a policy that reads in segments and whose actions differ."""
    torch.manual_seed(0)
    policy = train.Policy(train.read_model(name, changes)[1], SEE, ACT).double()
    torch.nn.init.normal_(policy.actor.weight)
    return policy


def test_memory_of_segments_quick(train: ModuleType, tmp_path: Path) -> None:
    result = run(train, tmp_path, "--quick", "--segment", "2", "--memory", "0", "4")
    tried = [(run["name"], run["model"]["memory"]) for run in result["runs"]]
    assert tried == [(name, m) for m in (0, 4) for name in ("Transformer", "GTrXL, gate bias 2")]
    assert {run["model"]["max_positions"] for run in result["runs"]} == {2}


def test_a_memory_without_segments_is_refused(train: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--memory is of earlier segments"):
        run(train, tmp_path, "--quick", "--memory", "4")


def test_advantages_are_sums_of_surprises(train: ModuleType) -> None:
    settings = train.Settings(discount=0.9, trace=0.7)
    value, reward = torch.randn(2, 3, 6, dtype=torch.float64)
    after = torch.cat([value[:, 1:], value.new_zeros(3, 1)], dim=1)
    surprise = reward + 0.9 * after - value
    expected = torch.stack(
        [sum((0.9 * 0.7) ** (s - t) * surprise[:, s] for s in range(t, 6)) for t in range(6)], dim=1
    )
    torch.testing.assert_close(train.advantages(value, reward, settings), expected)


def test_a_gradient_step_makes_what_paid_likelier(train: ModuleType) -> None:
    torch.manual_seed(0)
    _, config = train.read_model("transformer")
    policy = train.Policy(config, SEE, ACT)
    seen, action = torch.randn(8, 5, SEE), torch.randint(ACT, (8, 5))
    logits, value = policy(seen)
    log_prob = logits.log_softmax(-1).gather(-1, action[..., None])[..., 0].detach()
    paid = torch.randn(8, 5)
    played = train.Episodes(seen, action, log_prob, value.detach(), torch.zeros(8, 5))
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    train.loss_of(policy, played, paid, train.Settings(critic=0.0, entropy=0.0)).backward()
    optimizer.step()
    after = policy(seen)[0].log_softmax(-1).gather(-1, action[..., None])[..., 0]
    gain = (after - log_prob) * (paid - paid.mean())
    assert gain.mean() > 0


def test_the_corpus_to_tune_on_is_split_by_its_english(tmp_path: Path) -> None:
    """A sentence with two translations is in one split only, and lines of other sources nowhere."""
    sources = [("docs", "other")[number % 4 == 3] for number in range(800)]
    columns = {
        "en": [f"Call it {number // 2} times." for number in range(800)],
        "zh": [f"调用它 {number} 次。" for number in range(800)],
        "source": sources,
    }
    for name, lines in columns.items():
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / f"train.{name}.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES / "tuning")
        arguments = [str(tmp_path), str(tmp_path / "out"), "--source", "docs:999"]
        patch.setattr(sys, "argv", ["make_corpus.py", *arguments])
        import_module("make_corpus").main()
    found = {
        name: [
            (tmp_path / "out" / f"{name}.{side}").read_text().splitlines() for side in ("en", "zh")
        ]
        for name in ("train", "valid", "test")
    }
    assert sum(len(english) for english, _ in found.values()) == sources.count("docs")
    texts = [set(english) for english, _ in found.values()]
    assert all(texts)
    assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2]
    for english, chinese in found.values():
        for pair in zip(english, chinese, strict=True):
            numbers = [int("".join(filter(str.isdigit, text))) for text in pair]
            assert numbers[0] == numbers[1] // 2, "a pair was torn apart"
