"""The plane of heads preserves distances, and the similarity of layers equals its definition."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.show.attention import draw_head_plane
from outrider.torch.inspect.attention_maps import AttentionMaps, Maps, head_plane, in_a_plane


@given(count=st.integers(1, 9), seed=st.integers(0, 1000))
def test_points_of_a_plane_are_recovered(count: int, seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    points = torch.randn(count, 2, generator=dice, dtype=torch.float64)
    distance = torch.cdist(points, points)
    found, kept = in_a_plane(distance)
    assert found.shape == (count, 2)
    torch.testing.assert_close(torch.cdist(found, found), distance, rtol=0, atol=1e-6)
    assert kept == pytest.approx(1)


def maps(layers: list[list[int]]) -> Maps:
    """Attention maps in which each head attends to a single key."""
    weights = torch.zeros(len(layers), len(layers[0]), 3, 6)
    for layer, keys in enumerate(layers):
        for head, key in enumerate(keys):
            weights[layer, head, :, key] = 1
    return Maps("encoder", "looks", ("a", "b", "c"), tuple("abcdef"), weights)


def test_layers_with_similar_heads() -> None:
    plane = head_plane(maps([[0, 1, 2], [0, 0, 1], [5, 5, 5]]))
    torch.testing.assert_close(plane.alike_L, torch.tensor([0.0, 1 / 3, 1.0]).double())
    assert plane.trend == pytest.approx(1)
    assert head_plane(maps([[5, 5, 5], [0, 0, 1], [0, 1, 2]])).trend == pytest.approx(-1)
    torch.testing.assert_close(plane.points_LH2[2, 0], plane.points_LH2[2, 2])
    apart = (plane.points_LH2[0, 0] - plane.points_LH2[0, 1]).norm()
    assert apart > 0.5
    assert 0 < plane.kept < 1, "five places, all as far from each other, fit no plane"


def test_one_head_and_one_layer() -> None:
    plane = head_plane(maps([[1]]))
    assert plane.points_LH2.tolist() == [[[0, 0]]]
    assert (plane.trend, plane.alike_L.tolist()) == (0, [1])


def test_the_plane_can_be_drawn(tmp_path: Path) -> None:
    parts = (maps([[0, 1], [2, 2]]), maps([[0, 1]]))
    draw_head_plane(AttentionMaps("a", None, parts), tmp_path / "plane.png")
    assert (tmp_path / "plane.png").read_bytes().startswith(b"\x89PNG")
