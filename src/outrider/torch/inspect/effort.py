"""Computation per token, and learnt attention spans.

steps    of a shared layer until a token halts (`halting`), or of recurrent cells (`pondering`)
layers   of an encoder that process a token (`skip`)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.decoding import DecodeConfig
from outrider.errors import InputError
from outrider.runtime import Generator, Translator
from outrider.torch.backend import TorchBackend
from outrider.torch.inspect.attention_maps import token_labels, translate_one
from outrider.torch.models import LanguageModel, Seq2Seq
from outrider.torch.nn.attention.adaptive_span import Attention
from outrider.torch.nn.family.halting import HaltingStack, PonderingBothWays, PonderingGru
from outrider.torch.nn.family.skip import SkippingStack
from outrider.torch.nn.stack import Stack

EVEN = "this model computes the same for every token; it has no halting, pondering or skip"


@dataclass(frozen=True)
class Effort:
    """Steps or layers of each token in one part of a model."""

    part: str
    unit: str
    labels: tuple[str, ...]
    taken_T: Tensor
    most: int
    """Maximum for a token."""


@torch.inference_mode()
def read_effort(loaded: Translator | Generator, text: str) -> list[Effort]:
    """Run one text through a model; an encoder-decoder also generates, greedily."""
    backend = loaded.backend
    assert isinstance(backend, TorchBackend)
    model = backend.model
    if isinstance(loaded, Generator):
        assert isinstance(model, LanguageModel)
        (request,) = loaded.requests([text], DecodeConfig(max_new_tokens=1))
        fed = request.opening(backend)
        model.hidden(torch.tensor([fed], device=backend.device))
        parts = [_read("text", model.decoder, token_labels(fed, loaded.tokenizer, backend))]
    else:
        assert isinstance(model, Seq2Seq)
        _, source, fed = translate_one(loaded, text)
        source_1S = torch.tensor([source], device=backend.device)
        memory = model.encode(source_1S)
        model.decode(torch.tensor([fed], device=backend.device), memory)
        source_labels, target_labels = (
            token_labels(row, loaded.tokenizer, backend) for row in (source, fed)
        )
        active = None if model.router is None else model.router(source_1S, None)[0]
        parts = [_read("encoder", model.encoder, source_labels, active)]
        parts.append(_read("decoder", model.decoder, target_labels))
    uneven = [part for part in parts if part is not None]
    if not uneven:
        raise InputError(EVEN)
    return uneven


def _read(
    part: str, stack: Stack, labels: tuple[str, ...], active_T: Tensor | None = None
) -> Effort | None:
    """Return the effort of the last run of a stack; None if it is equal for all tokens."""
    if isinstance(stack, HaltingStack):
        assert stack.pondered is not None
        steps_T = stack.pondered.steps_BT[0].float().cpu()
        return Effort(part, "steps", labels, steps_T, stack.steps)
    if cells := [m for m in stack.modules() if isinstance(m, PonderingBothWays | PonderingGru)]:
        steps = [cell.pondered.steps_BT[0].float().cpu() for cell in cells if cell.pondered]
        directions = 2 if isinstance(cells[0], PonderingBothWays) else 1
        most = directions * len(cells) * cells[0].config.steps
        return Effort(part, "steps", labels, torch.stack(steps).sum(0), most)
    if isinstance(stack, SkippingStack) and active_T is not None:
        layers, skipping = len(stack.blocks), len(stack.layers)
        taken_T = (layers - skipping) + skipping * active_T.float().cpu()
        return Effort(part, "layers", labels, taken_T, layers)
    return None


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
    """Read the learnt spans of all heads of a model with adaptive spans."""
    attentions = {n: m for n, m in model.named_modules() if isinstance(m, Attention)}
    if not attentions:
        raise InputError("no layer of this model has attention of kind adaptive_span")
    if any(a.config.dynamic for a in attentions.values()):
        raise InputError("the spans of this model are dynamic: each token has its own")
    configs = {(a.config.ramp, a.config.max_span) for a in attentions.values()}
    if len(configs) > 1 or len({a.shape.heads for a in attentions.values()}) > 1:
        raise InputError("the layers of this model have spans of different kinds")
    ((ramp, longest),) = configs
    names = tuple(f"{name.split('.blocks.')[0]} {i + 1}" for i, name in enumerate(attentions))
    spans = [attention.spans()[0, :, 0, 0] for attention in attentions.values()]
    return Spans(names, torch.stack(spans).float().cpu(), ramp, longest)
