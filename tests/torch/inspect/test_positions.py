"""Position maps equal the effect of positions on embeddings and scores."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from outrider.cli.main import build_app
from outrider.errors import ConfigError
from outrider.show.positions import draw_positions
from outrider.torch.inspect.positions import (
    CALCULATED,
    calculated_positions,
    read_positions,
)
from outrider.torch.models import LanguageModel
from outrider.torch.nn.position import Positions
from tests.helpers import tiny

LENGTH = 20


def scores(model: LanguageModel, query_HK: Tensor, key_HK: Tensor) -> Tensor:
    """Scores of one query and one key at all positions, through the model's projections."""
    attention = model.decoder.blocks[0].attention
    heads, width = attention.heads, attention.head_width
    weight = torch.cat([query_HK.flatten(), key_HK.flatten(), torch.zeros(heads * width)])
    attention.qkv.weight.data.zero_()
    attention.qkv.bias.data.copy_(weight)
    x = torch.zeros(1, LENGTH, heads * width)
    q, k, _ = attention.project(x, Positions.upto(LENGTH, x.device))
    return (q[0] @ k[0].transpose(-1, -2) / q.shape[-1] ** 0.5).detach()


@pytest.mark.parametrize("kind", ["alibi", "relative"])
def test_bias_is_added_to_scores(kind: str) -> None:
    model = tiny.language_model(position=kind)
    for one in model.parameters():
        torch.nn.init.normal_(one.data)
    (found,) = read_positions(model, LENGTH)
    nothing = torch.zeros(2, model.config.head_width)
    wanted = scores(model, nothing, nothing)
    for head in range(2):
        for back in range(LENGTH):
            mine = float(found.by_distance_HT[head, back])
            assert mine == pytest.approx(float(wanted[head, -1, LENGTH - 1 - back]), abs=1e-5)


def test_rotary_equals_the_scores_of_equal_tokens() -> None:
    """All pairs of a head are equal, so each frequency has the same weight."""
    model = tiny.language_model(position="rotary")
    (found,) = read_positions(model, LENGTH)
    same = torch.ones(2, model.config.head_width)
    wanted = scores(model, same, same)[0, -1].flip(-1)
    torch.testing.assert_close(found.by_distance_HT[0], wanted / wanted[0], rtol=0, atol=1e-5)


def test_codes_are_compared_by_their_angle() -> None:
    (found,) = calculated_positions("sinusoidal", LENGTH)
    assert found.codes_TD is not None
    sin, cos = math.sin(3.0), math.cos(3.0)
    assert float(found.codes_TD[3, 0]) == pytest.approx(sin, abs=1e-6)
    assert float(found.codes_TD[3, 64]) == pytest.approx(cos, abs=1e-6)
    # The similarity of two sine codes is the mean of cos(d f); it depends on the distance only.
    wanted = [sum(math.cos(d * 10_000 ** (-k / 64)) for k in range(64)) / 64 for d in range(LENGTH)]
    assert found.by_distance_HT[0].tolist() == pytest.approx(wanted, abs=1e-5)


def test_both_parts_of_a_translator() -> None:
    encoder, decoder = read_positions(tiny.seq2seq(position="alibi"), LENGTH)
    assert (encoder.part, encoder.kind, len(encoder.by_distance_HT)) == ("encoder", "sinusoidal", 1)
    assert (decoder.part, decoder.kind, len(decoder.by_distance_HT)) == ("decoder", "alibi", 2)
    assert decoder.codes_TD is None
    buckets = read_positions(tiny.seq2seq(position="bucketed"), LENGTH)
    assert [one.kind for one in buckets] == ["bucketed"] * 2


def test_unsupported_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="'learned' is learned; give a model"):
        calculated_positions("learned", LENGTH)
    with pytest.raises(ConfigError, match=r"or a kind \(did you mean 'rotary'\?\)"):
        calculated_positions("rotari", LENGTH)
    with pytest.raises(ConfigError, match="'none': it has no positions"):
        read_positions(tiny.language_model(position="none"), LENGTH)


@pytest.mark.parametrize("kind", CALCULATED)
def test_every_kind_can_be_drawn(kind: str, tmp_path: Path) -> None:
    draw_positions(calculated_positions(kind, LENGTH), tmp_path / "p.png", title=kind)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_the_command(tmp_path: Path) -> None:
    model = tiny.language_model(position="learned")
    model.save_pretrained(tmp_path / "model")
    result = CliRunner().invoke(
        build_app(), ["show", "positions", str(tmp_path / "model"), "--length", "16"]
    )
    assert result.exit_code == 0, result.output
    assert "decoder, learned" in " ".join(result.stdout.split())
