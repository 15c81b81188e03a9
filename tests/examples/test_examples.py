"""The examples run, and their functions compute what their descriptions state."""

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
def colour() -> Iterator[ModuleType]:
    pytest.importorskip("sklearn")
    yield from script("images", "colour")


@pytest.fixture(scope="module")
def train() -> Iterator[ModuleType]:
    pytest.importorskip("gymnasium")
    yield from script("memory-rl", "train")


def script(folder: str, name: str) -> Iterator[ModuleType]:
    """Import a script with its folder first on the path, as Python does."""
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


def test_the_splits_share_no_image(digits: ModuleType) -> None:
    images = digits.load_images(digits.Settings())
    assert [len(part) for part in images] == [1297, 200, 300]
    rows = torch.cat(images)
    assert rows.shape == (1797, 65)
    assert torch.equal(rows[:, 0].unique(), torch.arange(17, 27))
    assert rows[:, 1:].unique().tolist() == list(range(17))
    train, test = ({tuple(row) for row in part.tolist()} for part in (images.train, images.test))
    assert not train & test


@pytest.mark.parametrize("name", ["causal", "image-transformer", "sparse-strided", "sparse-fixed"])
def test_no_pixel_attends_to_itself_or_ahead(digits: ModuleType, name: str) -> None:
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


def test_bits_of_a_uniform_model(digits: ModuleType) -> None:
    _, config = digits.read_model("causal")
    model = digits.LanguageModel(config)
    torch.nn.init.zeros_(model.head.weight)
    rows = digits.load_images(digits.QUICK).valid[:3]
    bits = digits.bits_per_image(model, rows, "cpu")
    torch.testing.assert_close(bits, torch.full((3,), 64 * math.log2(28)))


def test_bits_without_context_count_levels_by_digit_and_position(digits: ModuleType) -> None:
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


def test_completions_keep_the_given_pixels(digits: ModuleType) -> None:
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


# --- images in colour ---------------------------------------------------------------------------


def test_colour_quick(colour: ModuleType, tmp_path: Path) -> None:
    result = run(colour, tmp_path, "--quick")
    assert result["images"] == {"train": 64, "valid": 64, "test": 64}
    plain, local = result["models"]
    assert plain["pairs"] == 1
    assert local["pairs"] < 0.6
    for model in (plain, local):
        mean = sum(model["bits_of_red_green_blue"]) / 3
        assert mean == pytest.approx(model["bits_per_channel"])
    difference = local["bits_per_channel"] - plain["bits_per_channel"]
    assert local["more_than_first"]["bits_per_channel"] == pytest.approx(difference, abs=1e-5)
    without = result["without_model"]
    assert without["truth"]["absolute_error"] == 0
    assert without["truth"]["off_the_mix"] < 0.3, "what rounding does"
    assert without["each_channel_for_itself"]["drawn"]["off_the_mix"] > 0.5


def coloured(colour: ModuleType, count: int = 20) -> tuple[torch.Tensor, object]:
    """Return grey digits, and the same digits in colour."""
    grey = colour.digits.load_images(colour.digits.Settings()).test[:count, 1:]
    return grey, colour.colour(grey, torch.Generator().manual_seed(0))


def test_colours_mix_paper_and_ink_and_sources_are_their_means(colour: ModuleType) -> None:
    grey, pictures = coloured(colour)
    assert (pictures.inks[:, 0] - pictures.inks[:, 1]).norm(dim=1).min() >= colour.CONTRAST
    for levels, some, (paper, ink) in zip(grey, pictures.large, pictures.inks, strict=True):
        picture = some.view(8, 8, 3)
        for place, level in enumerate(levels.tolist()):
            expected = (paper + (ink - paper) * level / 16).round().long()
            assert torch.equal(picture[place // 8, place % 8], expected)
    for some, small in zip(pictures.large, pictures.small, strict=True):
        picture, little = some.view(8, 8, 3).float(), small.view(4, 4, 3)
        for y in range(4):
            for x in range(4):
                mean = picture[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].mean((0, 1))
                assert torch.equal(little[y, x], mean.round().long())
    again = colour.colour(grey, torch.Generator().manual_seed(0))
    assert all(map(torch.equal, pictures, again))


def test_channels_have_separate_tokens_in_order(colour: ModuleType) -> None:
    _, pictures = coloured(colour)
    for levels in (pictures.small, pictures.large):
        tokens = colour.as_tokens(levels)
        assert torch.equal(tokens % 8, levels)
        assert torch.equal(tokens // 8, (torch.arange(levels.shape[1]) % 3).expand_as(levels))
        assert tokens.max() < colour.START


def test_nearest_repeats_each_pixel_of_the_source(colour: ModuleType) -> None:
    _, pictures = coloured(colour)
    large = colour.enlarge(pictures.small, "nearest").view(-1, 8, 8, 3)
    small = pictures.small.view(-1, 4, 4, 3)
    assert torch.equal(large, small.repeat_interleave(2, 1).repeat_interleave(2, 2))


def test_levels_are_counted_by_position_and_source(colour: ModuleType) -> None:
    grey, _ = coloured(colour, 5)
    settings = colour.Settings(colourings=1, seed=3)
    odds = colour.count_levels(grey, settings)
    pictures = colour.colour(grey, torch.Generator().manual_seed(3))
    place = (4 * 8 + 1) * 3 + 1  # green of row 4, column 1; in the source row 2, column 0
    level = pictures.small[0, 25].item()
    same = pictures.large[pictures.small[:, 25] == level, place]
    count = torch.bincount(same, minlength=8) + 1.0
    torch.testing.assert_close(odds[place, level], count / count.sum())


def test_distance_from_the_mixtures_of_paper_and_ink(colour: ModuleType) -> None:
    inks = torch.tensor([[[1.0, 2, 3], [7, 2, 3]]])
    large = torch.tensor([[4, 2, 3, 0, 2, 4, 7, 5, 7]])
    expected = torch.tensor([[0.0, 1.0, 5.0]])
    torch.testing.assert_close(colour.off_the_mix(large, inks), expected)


@pytest.mark.parametrize("name", ["colour-causal", "colour-local"])
def test_channels_are_generated_in_order_from_their_logits(colour: ModuleType, name: str) -> None:
    """Generating step by step takes the argmax of the same logits that are scored."""
    config = colour.Seq2SeqConfig(**colour.digits.read_spec(name, colour.Seq2SeqConfig)["model"])
    torch.manual_seed(0)
    model = colour.Seq2Seq(config).double().eval()
    torch.nn.init.normal_(model.head.weight)
    _, pictures = coloured(colour, 3)
    large = colour.write(model, pictures.small)
    assert large.min() >= 0
    assert large.max() < 8
    source, target = colour.as_tokens(pictures.small), colour.as_tokens(large)
    logits = model(source, decoder_input_ids=model.shift_right(target)).logits
    own = logits[..., : colour.START].unflatten(-1, (3, 8))
    own = own[:, torch.arange(192), torch.arange(192) % 3]
    assert torch.equal(own.argmax(-1), large)
    other = pictures._replace(small=(pictures.small + 1) % 8)
    assert not torch.equal(colour.write(model, other.small), large), "the source is not read"
    bits = colour.bits_per_channel(model, pictures._replace(large=large), "cpu")
    expected = -logits.log_softmax(-1).gather(-1, target[..., None])[..., 0] / math.log(2)
    torch.testing.assert_close(bits, expected)


# --- memory -------------------------------------------------------------------------------------


def test_memory_quick(train: ModuleType, tmp_path: Path) -> None:
    result = run(train, tmp_path, "--quick")
    assert len({(run["name"], run["rate"]) for run in result["runs"]}) == 6
    assert all(len(run["curves"]) == 2 for run in result["runs"])


def test_the_maze_is_an_environment(train: ModuleType) -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(import_module("maze").Maze(), skip_render_check=True)


def test_following_the_cue_is_rewarded(train: ModuleType) -> None:
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
def test_step_by_step_equals_the_whole_sequence(train: ModuleType, name: str) -> None:
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
def test_step_by_step_equals_segments(
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
def test_the_last_segment_depends_on_its_memory(
    train: ModuleType, memory: int, reached: int
) -> None:
    """Two layers reach twice as far as the memory, but gradients stay in their segment."""
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
    """Build a policy that reads in segments and whose actions have different logits."""
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


def test_advantages_are_sums_of_temporal_differences(train: ModuleType) -> None:
    settings = train.Settings(discount=0.9, trace=0.7)
    value, reward = torch.randn(2, 3, 6, dtype=torch.float64)
    after = torch.cat([value[:, 1:], value.new_zeros(3, 1)], dim=1)
    surprise = reward + 0.9 * after - value
    expected = torch.stack(
        [sum((0.9 * 0.7) ** (s - t) * surprise[:, s] for s in range(t, 6)) for t in range(6)], dim=1
    )
    torch.testing.assert_close(train.advantages(value, reward, settings), expected)


def test_a_gradient_step_raises_the_probability_of_rewarded_actions(train: ModuleType) -> None:
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


def test_the_tuning_corpus_is_split_by_english_sentence(tmp_path: Path) -> None:
    """All translations of a sentence are in one split; lines of other sources are in none."""
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
