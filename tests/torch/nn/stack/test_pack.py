"""Packing equals loops over rows."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.torch.nn.position import Positions
from outrider.torch.nn.stack.pack import Pack

masks = st.builds(
    lambda rows, length, share, seed: (
        torch.rand(rows, length, generator=torch.Generator().manual_seed(seed)) < share
    ),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    st.integers(0, 999),
)


def places(row_T: Tensor) -> list[int]:
    return row_T.nonzero()[:, 0].tolist()


@settings(max_examples=60)
@given(active=masks, shrink=st.booleans())
def test_gathers_the_active_tokens_in_order_and_puts_them_back(active, shrink) -> None:
    rows, length = active.shape
    pack = Pack.of(active, shrink=shrink)
    most = int(active.sum(1).max())
    assert pack.tokens == (most if shrink or not most else length)
    x, y = torch.randn(rows, length, 2, 3), torch.randn(rows, pack.tokens, 2, 3)
    packed = pack.gather(x)
    scattered, added = pack.scatter(x, y), pack.add(x, y)
    for row in range(rows):
        at = places(active[row])
        slots = at if pack.whole else list(range(len(at)))
        assert torch.equal(packed[row, slots], x[row, at])
        assert pack.active_BA[row].nonzero()[:, 0].tolist() == slots
        wanted, more = x[row].clone(), x[row].clone()
        wanted[at], more[at] = y[row, slots], x[row, at] + y[row, slots]
        assert torch.equal(scattered[row], wanted)
        assert torch.equal(added[row], more)


@settings(max_examples=60)
@given(active=masks, data=st.data())
def test_a_nested_pack_returns_the_original_positions(active, data) -> None:
    outer = Pack.of(active)
    if not outer.tokens:
        return
    share = data.draw(st.sampled_from([0.0, 0.4, 1.0]))
    still = outer.active_BA & (torch.rand(outer.place_BA.shape) < share)
    inner = Pack.of(still)
    pack = outer.through(inner)
    x = torch.randn(*active.shape, 2)
    assert torch.equal(pack.gather(x), inner.gather(outer.gather(x)))
    for row in range(len(active)):
        wanted = [at for at, on in zip(places(active[row]), still[row], strict=False) if on]
        if outer.whole:
            wanted = places(still[row])
        found = pack.place_BA[row][pack.active_BA[row]].tolist()
        assert found == wanted


def test_gradients_reach_packed_and_other_tokens() -> None:
    active = torch.tensor([[True, False, True, True], [False, True, False, False]])
    pack = Pack.of(active)
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)

    def work(x: Tensor) -> tuple[Tensor, Tensor]:
        y = pack.gather(x).sin()
        return pack.scatter(x, y), pack.add(x, y)

    assert torch.autograd.gradcheck(work, x)


def test_positions_are_those_of_the_tokens() -> None:
    active = torch.tensor([[False, True, False, True], [True, True, False, True]])
    packed = Pack.of(active).positions(Positions.upto(4, active.device))
    assert packed.end == 4
    assert packed.index_BT[0, :2].tolist() == [1, 3]
    assert packed.index_BT[1].tolist() == [0, 1, 3]
