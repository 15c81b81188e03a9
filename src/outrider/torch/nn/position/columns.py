"""What positions that bias the score have in common: further columns of queries and keys."""

from torch import Tensor, nn

from outrider.torch.nn.position import Positions

__all__ = ["Columns"]


class Columns(nn.Module):
    """A bias of the scores that is a product a_i . b_j of something per query and per key.

    Attention divides by the root of the width it sees, K + E. So a_i comes multiplied by that
    root: a variant that must be exact in few bits rounds only after the multiplication.
    """

    def __init__(self, extra: int, *, head_width: int) -> None:
        super().__init__()
        self.extra = extra
        """Columns that are added, E."""
        self.root: float = (head_width + extra) ** 0.5

    def content(self, q_BHTK: Tensor) -> Tensor:
        """Return what meets the keys themselves."""
        return q_BHTK

    def forward(
        self, q_BHTK: Tensor, k_BGTK: Tensor, positions: Positions
    ) -> tuple[Tensor, Tensor]:
        """Return `root` a_i of every query, [B, H, T, E], and b_j of every key, [B, G, T, E]."""
        raise NotImplementedError
