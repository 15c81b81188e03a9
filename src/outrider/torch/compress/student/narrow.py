"""Narrower feed-forwards: units that the others can stand in for are left out.

With y = W h and H as in `moments`, h being the inner units, leaving out unit j and changing the
columns of the others so that y changes least costs |w_j|^2 / [H^-1]_jj: the optimal brain surgeon
(Hassibi and Stork, NIPS 1992) for whole units. The cheapest goes first, then the cheapest of the
others.
"""

from collections.abc import Mapping

import torch
from rich.console import Console
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.compress.student.moments import damped, lost, with_bias
from outrider.torch.models import Seq2Seq
from outrider.torch.models.reshape import rebuild

__all__ = ["narrow", "spared_units"]

STEP, POOL = 16, 128
"""Units that are left out at once, and among how many they are chosen."""


@torch.no_grad()
def narrow(
    model: Seq2Seq, moments: Mapping[str, Tensor], width: int, *, console: Console | None = None
) -> Seq2Seq:
    """Return a model whose feed-forwards have `width` inner units each.

    Args:
        model: The wide model.
        moments: H of every product of its feed-forwards (`input_moments`).
        width: Units that stay, as many in every layer.
        console: Where to say what it costs; by default nowhere.
    """
    console, config = console or Console(quiet=True), model.config
    if not 1 <= width <= config.intermediate_size:
        expected = f"expected 1 to {config.intermediate_size}, which are all"
        raise ConfigError("feedforward", f"got {width} inner units, {expected}")
    weights = dict(model.state_dict())
    downs = {name.removesuffix(".down"): one for name, one in moments.items() if "down" in name}
    for name, its_moments in downs.items():
        down = with_bias(weights, f"{name}.down")
        kept, columns = spared_units(down, its_moments, width)
        after = torch.zeros_like(down, dtype=columns.dtype)
        after[:, [*kept.tolist(), -1]] = columns
        error = lost(down, after, its_moments)
        console.print(f"{name}: {width} units, {error:.1%} of what it says is lost")
        rows = torch.cat([kept, kept + config.intermediate_size]) if config.gated else kept
        for part in ("weight", "bias"):
            weights[f"{name}.up.{part}"] = weights[f"{name}.up.{part}"][rows]
        weights[f"{name}.down.weight"] = columns[:, :-1].to(down.dtype).contiguous()
        weights[f"{name}.down.bias"] = columns[:, -1].to(down.dtype).contiguous()
    return rebuild(model, weights, intermediate_size=width)


def spared_units(down: Tensor, moments: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Choose the inner units that stay, and fit what is made of them.

    Args:
        down: (out, units + 1), the second product of a feed-forward with its bias as last column.
        moments: (units + 1, units + 1), the sum of h h'.
        width: Units that stay.

    Returns:
        Their numbers, in order, and (out, width + 1): the new second product and bias.
    """
    inverse, columns = torch.linalg.inv(damped(moments)), down.double()
    kept = torch.arange(len(moments), device=moments.device)
    while (excess := len(kept) - 1 - width) > 0:
        leaving = _cheapest(columns, inverse, min(STEP, excess))
        staying = torch.ones(len(kept), dtype=torch.bool, device=kept.device)
        staying[leaving] = False
        among = torch.linalg.inv(inverse[leaving][:, leaving]) @ inverse[leaving][:, staying]
        columns = columns[:, staying] - columns[:, leaving] @ among
        inverse = inverse[staying][:, staying] - inverse[staying][:, leaving] @ among
        kept = kept[staying]
    return kept[:-1], columns


def _cheapest(columns: Tensor, inverse: Tensor, count: int) -> Tensor:
    """Choose units one after the other, each where those chosen before it are already gone.

    Two that say the same are both cheap, but not both together. Only among the cheapest of all is
    the cost counted anew each time.
    """
    cost = (columns.square().sum(0) / inverse.diagonal())[:-1]
    pool = cost.topk(min(POOL, len(cost)), largest=False).indices
    columns, inverse = columns[:, pool], inverse[pool][:, pool]
    chosen = list[int]()
    for _ in range(count):
        cost = columns.square().sum(0) / inverse.diagonal()
        cost[chosen] = torch.inf
        chosen.append(one := int(cost.argmin()))
        among = inverse[one] / inverse[one, one]
        columns = columns - torch.outer(columns[:, one], among)
        inverse = inverse - torch.outer(inverse[:, one], among)
    return pool[chosen]
