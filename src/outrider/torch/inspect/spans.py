"""How far every head of a model with adaptive spans has learnt to look."""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.errors import InputError
from outrider.torch.models import LanguageModel, Seq2Seq
from outrider.torch.nn.attention.adaptive_span import Attention

__all__ = ["Spans", "read_spans"]


@dataclass(frozen=True)
class Spans:
    """The spans z of all heads: the soft mask is 1 up to z, and 0 from z + ramp on."""

    names: tuple[str, ...]
    """Of the layers."""
    span_LH: Tensor
    ramp: int
    longest: int

    def mask_LHX(self, length: int) -> Tensor:
        """Return m(x) = clamp((R + z - x) / R, 0, 1) of the distances x below `length`."""
        x_X = torch.arange(length)
        return ((self.ramp + self.span_LH[..., None] - x_X) / self.ramp).clamp(0, 1)


@torch.no_grad()
def read_spans(model: Seq2Seq | LanguageModel) -> Spans:
    """Read the spans off the weights."""
    found = {n: m for n, m in model.named_modules() if isinstance(m, Attention)}
    if not found:
        raise InputError("no layer of this model has attention of kind adaptive_span")
    if any(one.config.dynamic for one in found.values()):
        raise InputError("the spans of this model are dynamic: each token has its own")
    configs = {(one.config.ramp, one.config.max_span) for one in found.values()}
    if len(configs) > 1 or len({one.shape.heads for one in found.values()}) > 1:
        raise InputError("the layers of this model have spans of different kinds")
    ((ramp, longest),) = configs
    names = tuple(name.split(".blocks.")[0] + f" {at + 1}" for at, name in enumerate(found))
    spans = [one.spans()[0, :, 0, 0] for one in found.values()]
    return Spans(names, torch.stack(spans).float().cpu(), ramp, longest)
