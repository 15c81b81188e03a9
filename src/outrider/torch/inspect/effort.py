"""How much is computed for every token of one text, where that differs from token to token.

steps    of a shared layer until a token halts (`halting`), or of recurrent cells (`pondering`)
layers   of an encoder that a token takes part in (`skip`)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.decoding import DecodeSettings
from outrider.errors import InputError
from outrider.runtime import Generator, Translator
from outrider.torch.backend import TorchBackend
from outrider.torch.inspect.attention_maps import token_labels
from outrider.torch.models import LanguageModel, Seq2Seq
from outrider.torch.nn.family.halting import HaltingStack
from outrider.torch.nn.family.pondering import PonderingBothWays, PonderingGru
from outrider.torch.nn.family.skip import SkippingStack
from outrider.torch.nn.stack import Stack

__all__ = ["Effort", "read_effort"]

EVEN = "this model computes as much for every token; it has neither halting nor pondering nor skip"


@dataclass(frozen=True)
class Effort:
    """What the tokens of one part of a model take."""

    part: str
    unit: str
    labels: tuple[str, ...]
    taken_T: Tensor
    most: int
    """What a token can take at most."""


@torch.inference_mode()
def read_effort(loaded: Translator | Generator, text: str) -> list[Effort]:
    """Run one text through a model; an encoder-decoder also writes, greedily."""
    backend = loaded.backend
    assert isinstance(backend, TorchBackend)
    model = backend.model
    if isinstance(loaded, Generator):
        assert isinstance(model, LanguageModel)
        (request,) = loaded.requests([text], DecodeSettings(max_new_tokens=1))
        fed = request.opening(backend)
        model.hidden(torch.tensor([fed], device=backend.device))
        found = [_read("text", model.decoder, token_labels(fed, loaded.tokenizer, backend))]
    else:
        assert isinstance(model, Seq2Seq)
        pieces = loaded.requests([text], DecodeSettings(), split=False)[0]
        if len(pieces) != 1:
            raise InputError("this text has no sentence, or several; give one")
        written = loaded.results([text], split=False, mode="ar", strategy="greedy")[0][0].tokens
        source = list(pieces[0].source)
        fed = [*pieces[0].opening(backend), *loaded.turned(written)]
        source_1S = torch.tensor([source], device=backend.device)
        memory = model.encode(source_1S)
        model.decode(torch.tensor([fed], device=backend.device), memory)
        read, given = (token_labels(row, loaded.tokenizer, backend) for row in (source, fed))
        active = None if model.router is None else model.router(source_1S, None)[0]
        found = [_read("encoder", model.encoder, read, active)]
        found.append(_read("decoder", model.decoder, given))
    if not (kept := [one for one in found if one is not None]):
        raise InputError(EVEN)
    return kept


def _read(
    part: str, stack: Stack, labels: tuple[str, ...], active_T: Tensor | None = None
) -> Effort | None:
    """Return what a stack just did; None where it does as much for every token."""
    if isinstance(stack, HaltingStack):
        assert stack.pondered is not None
        steps_T = stack.pondered.steps_BT[0].float().cpu()
        return Effort(part, "steps", labels, steps_T, stack.steps)
    if cells := [m for m in stack.modules() if isinstance(m, PonderingBothWays | PonderingGru)]:
        found = [cell.pondered.steps_BT[0].float().cpu() for cell in cells if cell.pondered]
        ways = 2 if isinstance(cells[0], PonderingBothWays) else 1
        most = ways * len(cells) * cells[0].config.steps
        return Effort(part, "steps", labels, torch.stack(found).sum(0), most)
    if isinstance(stack, SkippingStack) and active_T is not None:
        layers, skipping = len(stack.blocks), len(stack.layers)
        taken_T = (layers - skipping) + skipping * active_T.float().cpu()
        return Effort(part, "layers", labels, taken_T, layers)
    return None
