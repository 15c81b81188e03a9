"""What the products of a model's feed-forwards are given: which inputs come together, how often.

    y = W h          h is the input of one token, with a 1 behind it: the bias is a column of W
    H = sum h h'     over many tokens

By H it can be said what a change of W changes, without the tokens.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from outrider.data.prepared import Prepared
from outrider.torch.models import Seq2Seq
from outrider.torch.nn.layer.feedforward import FeedForward
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.batches import BatchStream

__all__ = ["damped", "draw", "input_moments", "lost", "with_bias"]

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
