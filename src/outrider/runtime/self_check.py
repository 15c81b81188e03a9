"""A moment's proof that the native core is sound on this machine, with a tiny model made in memory.

In float32 it must give the logits of the equations, written out in `plain_transformer.py`. In int8
it must give one text whether tokens are checked in blocks (tandem) or written one by one (greedy):
a row may not depend on what stands beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from outrider.backends.native import NativeBackend
from outrider.decoding import Backend, DecodeSettings, Request, decode
from outrider.decoding.questions import Logits
from outrider.formats.description import DrafterDescription, Seq2SeqDescription
from outrider.formats.folder import Part, Parts
from outrider.formats.layout import drafter_layout, model_layout
from outrider.formats.safetensors import Weight
from outrider.formats.weights import Expected
from outrider.runtime.plain_transformer import plain_logits

__all__ = ["TOLERANCE", "SelfCheck", "check_native"]

TOLERANCE = 1e-4
"""How far a logit in float32 may lie from that of the equations."""
_TEXTS, _TOKENS, _BLOCK, _WORDS = 5, 12, 6, 97


@dataclass(frozen=True)
class SelfCheck:
    """What was found."""

    float32_error: float
    """Largest distance of a logit from that of the equations."""
    differing: int
    """Texts that int8 tandem and int8 greedy write differently."""
    seconds: float

    @property
    def fault(self) -> str | None:
        """What is wrong, in a sentence; None if nothing is."""
        if not self.float32_error <= TOLERANCE:  # so that nan is wrong as well
            return f"float32 logits are {self.float32_error:.1e} off those of the equations"
        if self.differing:
            return f"int8 tandem differs from int8 greedy on {self.differing} of {_TEXTS} texts"
        return None


def check_native() -> SelfCheck:
    """Compare the core with the equations, and its blocks with its single steps."""
    start = perf_counter()
    dice = np.random.default_rng(0)
    parts, config = make_model(dice)
    sources = [dice.integers(4, _WORDS, 9 - text).tolist() for text in range(_TEXTS)]
    tokens = dice.integers(4, _WORDS, (_TEXTS, _TOKENS)).tolist()
    arrays = {name: one.as_float32() for name, one in parts.model.weights.items()}
    expected_TNV = np.stack(
        [plain_logits(config, arrays, *row) for row in zip(sources, tokens, strict=True)]
    )
    core = NativeBackend(Parts(parts.model), dtype="float32")
    found_TNV = core.extend(tokens, core.encode(sources, capacity=_TOKENS), Logits())
    return SelfCheck(
        float32_error=float(abs(expected_TNV - found_TNV).max()),
        differing=_count_differing(NativeBackend(parts), sources),
        seconds=perf_counter() - start,
    )


def make_model(dice: np.random.Generator) -> tuple[Parts, Seq2SeqDescription]:
    """Make a model and a drafter of random weights."""
    config = Seq2SeqDescription(
        vocab_size=_WORDS,
        hidden_size=48,
        encoder_layers=2,
        decoder_layers=2,
        num_attention_heads=4,
        intermediate_size=80,
        tie_word_embeddings=False,
        logits_bias=True,
    )
    drafter = DrafterDescription.for_target(config, block=_BLOCK, train_block=_BLOCK)
    here = Path("self-check")
    model = Part(here, config, _random(model_layout(config), dice))
    return Parts(model, Part(here, drafter, _random(drafter_layout(drafter), dice))), config


def _random(layout: Mapping[str, Expected], dice: np.random.Generator) -> dict[str, Weight]:
    """Draw weights under which texts are not one token repeated."""
    found = {}
    for name, one in layout.items():
        numbers = dice.standard_normal(one.shape, np.float32)
        if len(one.shape) == 1:
            numbers = 0.05 * numbers + (1 if name.endswith("norm.weight") else 0)
        else:
            numbers *= (1.0 if "tokens" in name else 2.0) / np.sqrt(one.shape[-1])
        found[name] = Weight("float32", numbers.astype(np.float32))
    return found


def _count_differing(backend: Backend, sources: list[list[int]]) -> int:
    requests = [Request(source=source, max_new_tokens=_TOKENS) for source in sources]
    drafted = decode(backend, requests, DecodeSettings(mode="tandem", draft_tokens=_BLOCK))
    plain = decode(backend, requests, DecodeSettings())
    return sum(one != other for one, other in zip(drafted, plain, strict=True))
