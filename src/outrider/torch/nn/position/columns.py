"""Base class of position biases that are further columns of queries and keys."""

from torch import Tensor, nn

from outrider.torch.nn.position import Positions


class Columns(nn.Module):
    """A score bias a_i . b_j, a product of a vector per query and a vector per key.

    Attention divides by the root of the width it gets, K + E. So a_i is multiplied by that root;
    a variant that must be exact in low precision rounds only after the multiplication.
    """

    def __init__(self, extra: int, *, head_width: int) -> None:
        super().__init__()
        self.extra = extra
        """E: added columns."""
        self.root: float = (head_width + extra) ** 0.5

    def content(self, q_BHTK: Tensor) -> Tensor:
        """Return the queries to multiply with the keys themselves."""
        return q_BHTK

    def forward(
        self, q_BHTK: Tensor, k_BGTK: Tensor, positions: Positions
    ) -> tuple[Tensor, Tensor]:
        """Return `root` a_i of every query, [B, H, T, E], and b_j of every key, [B, G, T, E]."""
        raise NotImplementedError
