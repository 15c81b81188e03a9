"""Feed-forwards in 4 bits: what rounding one input changes, the inputs behind it make up for.

Input by input, W is rounded, and the columns not yet rounded are changed so that y = W h changes
least over the tokens that were seen: GPTQ (Frantar et al., ICLR 2023, arXiv:2210.17323), which is
the optimal brain surgeon for whole columns in a fixed order. With U'U = H^-1, the error of column c
divided by U_cc, times row c of U, is what the columns behind it change by.
"""

from collections.abc import Mapping

import torch
from rich.console import Console
from torch import Tensor

from outrider.formats.quantised import GROUP, check_width, int4_groups
from outrider.torch.compress.student.moments import damped, lost, with_bias
from outrider.torch.models import Seq2Seq
from outrider.torch.models.reshape import rebuild

__all__ = ["round_columns", "round_feedforwards"]


@torch.no_grad()
def round_feedforwards(
    model: Seq2Seq, moments: Mapping[str, Tensor], *, console: Console | None = None
) -> Seq2Seq:
    """Return a model whose feed-forwards int4 holds exactly, given H of every product."""
    console = console or Console(quiet=True)
    weights = dict(model.state_dict())
    for name, its_moments in moments.items():
        before = with_bias(weights, name)
        check_width(f"{name}.weight", before.shape[1] - 1)
        after = round_columns(before, its_moments)
        said = f"{lost(before, after, its_moments):.2%} of what it says is lost"
        console.print(f"{name}: 4 bits, {said}", highlight=False)
        after = after.to(before.dtype)
        weights[f"{name}.weight"] = after[:, :-1].contiguous()
        weights[f"{name}.bias"] = after[:, -1].contiguous()
    return rebuild(model, weights)


def round_columns(weight: Tensor, moments: Tensor) -> Tensor:
    """Round a product to int4 but for its last column, the bias.

    Args:
        weight: (out, inputs + 1).
        moments: (inputs + 1, inputs + 1), the sum of h h'.
    """
    upper = torch.linalg.cholesky(torch.linalg.inv(damped(moments)), upper=True)
    left = weight.double().clone()
    for begin in range(0, weight.shape[1] - 1, GROUP):
        end = begin + GROUP
        _, scales = int4_groups(left[:, begin:end].float().cpu().numpy())
        scale = torch.from_numpy(scales[:, 0].copy()).to(left)
        errors = left.new_empty(len(left), GROUP)
        for c in range(begin, end):
            rounded = (left[:, c] / scale).round().clamp(-8, 7) * scale
            errors[:, c - begin] = error = (left[:, c] - rounded) / upper[c, c]
            left[:, c] = rounded
            left[:, c + 1 : end] -= torch.outer(error, upper[c, c + 1 : end])
        left[:, end:] -= errors @ upper[begin:end, end:]
    return left
