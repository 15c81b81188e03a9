"""Narrower feed-forwards: units that the others can stand in for are left out.

    y = W h          h = f(W1 x) of one token, with a 1 behind it, so that the bias is a column of W
    H = sum h h'     over many tokens

Leaving out unit j and changing the columns of the others so that y changes least costs
|w_j|^2 / [H^-1]_jj: the optimal brain surgeon (Hassibi and Stork, NIPS 1992) for whole units. The
cheapest goes first, then the cheapest of the others.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from outrider.data.batches import BatchStream
from outrider.data.prepared import Prepared
from outrider.errors import ConfigError
from outrider.models import Seq2Seq
from outrider.models.reshape import rebuild
from outrider.nn.layer.feedforward import FeedForward
from outrider.nn.loss import IGNORED

__all__ = ["inner_moments", "narrow", "narrow_by", "spared_units"]

TOKENS, BATCH = 48_000, 2048
"""Target tokens that say which units are needed, and how many of them go at once."""
STEP, POOL = 16, 128
"""Units that are left out at once, and among how many they are chosen."""
DAMPING = 1e-3
"""Added to H, as a share of its mean diagonal: texts never seen are not quite like those seen."""


def narrow(
    model: Seq2Seq, prepared: Prepared, width: int, *, console: Console | None = None
) -> Seq2Seq:
    """Return a model whose feed-forwards have `width` inner units each.

    Args:
        model: The wide model.
        prepared: Pairs in its words.
        width: Units that stay, as many in every layer.
        console: Where to say what it costs; by default nowhere.
    """
    return narrow_by(model, inner_moments(model, _batches(model, prepared)), width, console=console)


@torch.no_grad()
def narrow_by(
    model: Seq2Seq, moments: Mapping[str, Tensor], width: int, *, console: Console | None = None
) -> Seq2Seq:
    """Return a narrower model, given H of every feed-forward by its name."""
    console, config = console or Console(quiet=True), model.config
    if not 1 <= width <= config.intermediate_size:
        expected = f"expected 1 to {config.intermediate_size}, which are all"
        raise ConfigError("feedforward", f"got {width} inner units, {expected}")
    weights = dict(model.state_dict())
    for name, its_moments in moments.items():
        down = torch.cat([weights[f"{name}.down.weight"], weights[f"{name}.down.bias"][:, None]], 1)
        kept, columns = spared_units(down, its_moments, width)
        error = _lost(down, kept, columns, its_moments)
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
    damped = moments.double().clone()
    damped.diagonal().add_(DAMPING * damped.diagonal().mean())
    inverse, columns = torch.linalg.inv(damped), down.double()
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


def _batches(model: Seq2Seq, prepared: Prepared) -> Iterator[dict[str, Tensor]]:
    """Training pairs, drawn at random."""
    config = model.config
    stream = BatchStream(
        prepared,
        tokens=BATCH,
        seed=0,
        max_length=config.longest_source,
        source_end=config.source_end,
    )
    seen = 0
    for batch in stream:
        yield batch.tensors
        seen += int((batch.tensors["labels"] != IGNORED).sum())
        if seen >= TOKENS:
            return


@torch.no_grad()
def inner_moments(model: Seq2Seq, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Run the pairs through the model and return H of every feed-forward, by its name."""
    sums: dict[str, Tensor] = {}
    shown: dict[str, Tensor] = {}
    device, was_training = next(model.parameters()).device, model.training

    def add(name: str, part: FeedForward, given: tuple[Any, ...]) -> None:
        h_ND = part.inner(given[0][shown[name.split(".")[0]]])
        h_ND = torch.cat([h_ND, h_ND.new_ones(len(h_ND), 1)], dim=1)
        sums[name] = sums.get(name, 0) + (h_ND.T @ h_ND).double()

    with _watched(model.eval(), add):
        for batch in batches:
            inputs = {key: value.to(device) for key, value in batch.items()}
            shown["encoder"] = inputs["attention_mask"].bool()
            shown["decoder"] = inputs["labels"] != IGNORED
            model(**inputs)
    model.train(was_training)
    return sums


@contextmanager
def _watched(model: nn.Module, look: Any) -> Iterator[None]:
    """Call `look(name, part, arguments)` before every feed-forward runs."""
    handles = [
        part.register_forward_pre_hook(partial(look, name))
        for name, part in model.named_modules()
        if isinstance(part, FeedForward)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _lost(down: Tensor, kept: Tensor, columns: Tensor, moments: Tensor) -> float:
    """Return the mean square of what changed, as a share of the mean square of all."""
    moments = moments.double()
    change = down.double().clone()
    change[:, [*kept.tolist(), -1]] -= columns
    return float((change @ moments * change).sum() / (down.double() @ moments * down).sum())
