"""Narrower and 4-bit feed-forwards, by second moments of their inputs.

    y = W h          h is the input of a product for unit token, with a 1 appended for the bias
    H = sum h h'     over many tokens

H gives the change of y by a change of W without the tokens.

Pruning: with h the inner units, removing unit j and adjusting the columns of the others so that y
changes least costs |w_j|^2 / [H^-1]_jj, the optimal brain surgeon (Hassibi and Stork, NIPS 1992)
for whole units. The cheapest unit is removed first, then the cheapest of the others.

Rounding: GPTQ (Frantar et al., ICLR 2023, arXiv:2210.17323), the optimal brain surgeon for whole
columns in a fixed order. W is rounded input by input, and the columns not yet rounded are adjusted
so that y changes least. With U'U = H^-1, they change by the error of column c divided by U_cc,
times row c of U.
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
from outrider.formats.quantised import check_width, int4_groups
from outrider.formats.safetensors import GROUP
from outrider.torch.models import Seq2Seq
from outrider.torch.models.reshape import rebuild
from outrider.torch.nn.layer.feedforward import FeedForward
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.batches import BatchStream

TOKENS, BATCH = 48_000, 2048
"""Target tokens from which H is computed, and those per batch."""
DAMPING = 1e-3
"""Added to H, as a share of its mean diagonal, for generalisation to other texts."""


def draw(model: Seq2Seq, prepared: Prepared) -> Iterator[dict[str, Tensor]]:
    """Yield random batches of training pairs."""
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
    kept: dict[str, Tensor] = {}
    device, was_training = next(model.parameters()).device, model.training

    def add(name: str, _: nn.Module, given: tuple[Any, ...]) -> None:
        h_ND = given[0][kept[name.split(".")[0]]]
        h_ND = torch.cat([h_ND, h_ND.new_ones(len(h_ND), 1)], dim=1)
        sums[name] = sums.get(name, 0) + (h_ND.T @ h_ND).double()

    with _input_hooks(model.eval(), add):
        for batch in batches:
            inputs = {key: value.to(device) for key, value in batch.items()}
            kept["encoder"] = inputs["attention_mask"].bool()
            kept["decoder"] = inputs["labels"] != IGNORED
            model(**inputs)
    model.train(was_training)
    return sums


@contextmanager
def _input_hooks(model: nn.Module, hook: Any) -> Iterator[None]:
    """Call `hook(name, module, arguments)` before every product of a feed-forward."""
    handles = [
        getattr(part, product).register_forward_pre_hook(partial(hook, f"{name}.{product}"))
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
    """Return W of a product with its bias as the last column."""
    return torch.cat([weights[f"{name}.weight"], weights[f"{name}.bias"][:, None]], 1)


def damped(moments: Tensor) -> Tensor:
    """Return H with damping on its diagonal, so that it is invertible."""
    result = moments.double().clone()
    result.diagonal().add_(DAMPING * result.diagonal().mean())
    return result


def relative_error(before: Tensor, after: Tensor, moments: Tensor) -> float:
    """Return the mean square of the change of y, relative to that of y."""
    before, moments = before.double(), moments.double()
    change = before - after.double()
    return float((change @ moments * change).sum() / (before @ moments * before).sum())


STEP, POOL = 16, 128
"""Units removed at once, and candidates among which they are chosen."""


@torch.no_grad()
def narrow(
    model: Seq2Seq, moments: Mapping[str, Tensor], width: int, *, console: Console | None = None
) -> Seq2Seq:
    """Return a model whose feed-forwards have `width` inner units each.

    Args:
        model: The wide model.
        moments: H of every product of its feed-forwards (`input_moments`).
        width: Units of every layer.
        console: Where to report the error of each layer; by default nowhere.
    """
    console, config = console or Console(quiet=True), model.config
    if not 1 <= width <= config.intermediate_size:
        expected = f"expected 1 to {config.intermediate_size}"
        raise ConfigError("feedforward", f"got {width} inner units, {expected}")
    weights = dict(model.state_dict())
    downs = {name.removesuffix(".down"): H for name, H in moments.items() if "down" in name}
    for name, H in downs.items():
        down = with_bias(weights, f"{name}.down")
        kept, columns = kept_units(down, H, width)
        after = torch.zeros_like(down, dtype=columns.dtype)
        after[:, [*kept.tolist(), -1]] = columns
        error = relative_error(down, after, H)
        console.print(f"{name}: {width} units, relative error {error:.1%}")
        rows = torch.cat([kept, kept + config.intermediate_size]) if config.gated else kept
        for part in ("weight", "bias"):
            weights[f"{name}.up.{part}"] = weights[f"{name}.up.{part}"][rows]
        weights[f"{name}.down.weight"] = columns[:, :-1].to(down.dtype).contiguous()
        weights[f"{name}.down.bias"] = columns[:, -1].to(down.dtype).contiguous()
    return rebuild(model, weights, intermediate_size=width)


def kept_units(down: Tensor, moments: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Choose the inner units to keep, and fit their columns.

    Args:
        down: (out, units + 1), the second product of a feed-forward with its bias as last column.
        moments: (units + 1, units + 1), the sum of h h'.
        width: Number of units to keep.

    Returns:
        Their indices, in order, and (out, width + 1): the new second product and bias.
    """
    inverse, columns = torch.linalg.inv(damped(moments)), down.double()
    kept = torch.arange(len(moments), device=moments.device)
    while (excess := len(kept) - 1 - width) > 0:
        removed = _cheapest(columns, inverse, min(STEP, excess))
        remaining = torch.ones(len(kept), dtype=torch.bool, device=kept.device)
        remaining[removed] = False
        coefficients = (
            torch.linalg.inv(inverse[removed][:, removed]) @ inverse[removed][:, remaining]
        )
        columns = columns[:, remaining] - columns[:, removed] @ coefficients
        inverse = inverse[remaining][:, remaining] - inverse[remaining][:, removed] @ coefficients
        kept = kept[remaining]
    return kept[:-1], columns


def _cheapest(columns: Tensor, inverse: Tensor, count: int) -> Tensor:
    """Choose units one after the other, updating the costs after each.

    Two redundant units are both cheap, but not together. Only the `POOL` cheapest units are
    considered.
    """
    cost = (columns.square().sum(0) / inverse.diagonal())[:-1]
    pool = cost.topk(min(POOL, len(cost)), largest=False).indices
    columns, inverse = columns[:, pool], inverse[pool][:, pool]
    chosen = list[int]()
    for _ in range(count):
        cost = columns.square().sum(0) / inverse.diagonal()
        cost[chosen] = torch.inf
        chosen.append(unit := int(cost.argmin()))
        coefficients = inverse[unit] / inverse[unit, unit]
        columns = columns - torch.outer(columns[:, unit], coefficients)
        inverse = inverse - torch.outer(inverse[:, unit], coefficients)
    return pool[chosen]


@torch.no_grad()
def round_feedforwards(
    model: Seq2Seq, moments: Mapping[str, Tensor], *, console: Console | None = None
) -> Seq2Seq:
    """Return a model whose feed-forwards int4 represents exactly, given H of every product."""
    console = console or Console(quiet=True)
    weights = dict(model.state_dict())
    for name, H in moments.items():
        before = with_bias(weights, name)
        check_width(f"{name}.weight", before.shape[1] - 1)
        after = round_columns(before, H)
        error = relative_error(before, after, H)
        console.print(f"{name}: 4 bits, relative error {error:.2%}", highlight=False)
        after = after.to(before.dtype)
        weights[f"{name}.weight"] = after[:, :-1].contiguous()
        weights[f"{name}.bias"] = after[:, -1].contiguous()
    return rebuild(model, weights)


def round_columns(weight: Tensor, moments: Tensor) -> Tensor:
    """Round a product to int4, except its last column, the bias.

    Args:
        weight: (out, inputs + 1).
        moments: (inputs + 1, inputs + 1), the sum of h h'.
    """
    upper = torch.linalg.cholesky(torch.linalg.inv(damped(moments)), upper=True)
    rest = weight.double().clone()
    for begin in range(0, weight.shape[1] - 1, GROUP):
        end = begin + GROUP
        _, scales = int4_groups(rest[:, begin:end].float().cpu().numpy())
        scale = torch.from_numpy(scales[:, 0].copy()).to(rest)
        errors = rest.new_empty(len(rest), GROUP)
        for c in range(begin, end):
            rounded = (rest[:, c] / scale).round().clamp(-8, 7) * scale
            errors[:, c - begin] = error = (rest[:, c] - rounded) / upper[c, c]
            rest[:, c] = rounded
            rest[:, c + 1 : end] -= torch.outer(error, upper[c, c + 1 : end])
        rest[:, end:] -= errors @ upper[begin:end, end:]
    return rest
