"""Narrower feed-forwards: units that the others can stand in for are left out.

With y = W h and H as in `moments`, h being the inner units, leaving out unit j and changing the
columns of the others so that y changes least costs |w_j|^2 / [H^-1]_jj: the optimal brain surgeon
(Hassibi and Stork, NIPS 1992) for whole units. The cheapest goes first, then the cheapest of the
others.

What the products of a model's feed-forwards are given: which inputs come together, how often.

    y = W h          h is the input of one token, with a 1 behind it: the bias is a column of W
    H = sum h h'     over many tokens

By H it can be said what a change of W changes, without the tokens.

Feed-forwards in 4 bits: what rounding one input changes, the inputs behind it make up for.

Input by input, W is rounded, and the columns not yet rounded are changed so that y = W h changes
least over the tokens that were seen: GPTQ (Frantar et al., ICLR 2023, arXiv:2210.17323), which is
the optimal brain surgeon for whole columns in a fixed order. With U'U = H^-1, the error of column c
divided by U_cc, times row c of U, is what the columns behind it change by.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from outrider.data.prepared import Prepared
from outrider.errors import ConfigError
from outrider.formats.quantised import GROUP, check_width, int4_groups
from outrider.torch.models import Seq2Seq
from outrider.torch.models.reshape import rebuild
from outrider.torch.nn.layer.feedforward import FeedForward
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.batches import BatchStream

__all__ = [
    "damped",
    "draw",
    "input_moments",
    "lost",
    "narrow",
    "round_columns",
    "round_feedforwards",
    "spared_units",
    "with_bias",
]

TOKENS, BATCH = 48_000, 2048
"""Target tokens that are looked at, and how many of them at once."""
DAMPING = 1e-3
"""Added to H, as a share of its mean diagonal: texts never seen are not quite like those seen."""


def draw(model: Seq2Seq, prepared: Prepared) -> Iterator[dict[str, Tensor]]:
    """Training pairs, drawn at random."""
    config = model.config
    stream = BatchStream(
        prepared,
        tokens=BATCH,
        seed=0,
        max_length=config.longest_source,
        source_end=config.source_end,
        right_to_left=config.right_to_left,
    )
    seen = 0
    for batch in stream:
        yield batch.tensors
        seen += int((batch.tensors["labels"] != IGNORED).sum())
        if seen >= TOKENS:
            return


@torch.no_grad()
def input_moments(model: Seq2Seq, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Run the pairs through the model and return H of both products of every feed-forward."""
    sums: dict[str, Tensor] = {}
    shown: dict[str, Tensor] = {}
    device, was_training = next(model.parameters()).device, model.training

    def add(name: str, _: nn.Module, given: tuple[Any, ...]) -> None:
        h_ND = given[0][shown[name.split(".")[0]]]
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
    """Call `look(name, part, arguments)` before every product of a feed-forward."""
    handles = [
        getattr(part, product).register_forward_pre_hook(partial(look, f"{name}.{product}"))
        for name, part in model.named_modules()
        if isinstance(part, FeedForward)
        for product in ("up", "down")
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def with_bias(weights: Mapping[str, Tensor], name: str) -> Tensor:
    """Return W of a product, its bias as the last column."""
    return torch.cat([weights[f"{name}.weight"], weights[f"{name}.bias"][:, None]], 1)


def damped(moments: Tensor) -> Tensor:
    """Return H with something added to its diagonal, so that it can be inverted."""
    found = moments.double().clone()
    found.diagonal().add_(DAMPING * found.diagonal().mean())
    return found


def lost(before: Tensor, after: Tensor, moments: Tensor) -> float:
    """Return the mean square of what changed in y, as a share of the mean square of all."""
    before, moments = before.double(), moments.double()
    change = before - after.double()
    return float((change @ moments * change).sum() / (before @ moments * before).sum())


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
