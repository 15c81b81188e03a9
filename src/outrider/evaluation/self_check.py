"""A moment's proof that the native core is sound on this machine, with a tiny model made in memory.

In float32 it must give PyTorch's logits. In int8 it must give one text whether tokens are checked
in blocks (tandem) or written one by one (greedy): a row may not depend on what stands beside it.
"""

from dataclasses import dataclass
from time import perf_counter

import torch

from outrider.backends.native import NativeBackend
from outrider.backends.torch import TorchBackend
from outrider.decoding import Backend, DecodeConfig, Request, decode
from outrider.decoding.questions import Logits
from outrider.models import Drafter, DrafterConfig, Seq2Seq, Seq2SeqConfig

__all__ = ["TOLERANCE", "SelfCheck", "check_native"]

TOLERANCE = 1e-4
"""How far a logit in float32 may lie from PyTorch's."""
_TEXTS, _TOKENS, _BLOCK, _WORDS = 5, 12, 6, 97


@dataclass(frozen=True)
class SelfCheck:
    """What was found."""

    float32_error: float
    """Largest distance of a logit from PyTorch's."""
    differing: int
    """Texts that int8 tandem and int8 greedy write differently."""
    seconds: float

    @property
    def fault(self) -> str | None:
        """What is wrong, in a sentence; None if nothing is."""
        if not self.float32_error <= TOLERANCE:  # so that nan is wrong as well
            return f"float32 logits are {self.float32_error:.1e} off PyTorch's"
        if self.differing:
            return f"int8 tandem differs from int8 greedy on {self.differing} of {_TEXTS} texts"
        return None


def check_native() -> SelfCheck:
    """Compare the core with PyTorch, and its blocks with its single steps."""
    start = perf_counter()
    with torch.random.fork_rng(devices=[]):  # nobody else's random numbers change
        torch.manual_seed(0)
        model, drafter = _make_model()
        source_TS = torch.randint(4, _WORDS, (_TEXTS, 9))
        tokens_TN = torch.randint(4, _WORDS, (_TEXTS, _TOKENS))
    sources = [row[: 9 - index].tolist() for index, row in enumerate(source_TS)]
    exact, core = TorchBackend(model, drafter=drafter), NativeBackend(model, dtype="float32")
    logits_TNV, core_TNV = (
        backend.extend(tokens_TN.tolist(), backend.encode(sources, capacity=_TOKENS), Logits())
        for backend in (exact, core)
    )
    return SelfCheck(
        float32_error=float(abs(logits_TNV - core_TNV).max()),
        differing=_count_differing(NativeBackend(model, drafter=drafter), sources),
        seconds=perf_counter() - start,
    )


def _make_model() -> tuple[Seq2Seq, Drafter]:
    config = Seq2SeqConfig(
        vocab_size=_WORDS,
        hidden_size=48,
        encoder_layers=2,
        decoder_layers=2,
        num_attention_heads=4,
        intermediate_size=80,
        logits_bias=True,
    )
    model = Seq2Seq(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # At plain random weights a text is one token repeated.
            if weight.dim() > 1 and "tokens" not in name:
                weight.mul_(3.0)
    drafter = Drafter(DrafterConfig.for_target(config, block=_BLOCK, train_block=_BLOCK))
    return model, drafter.bind(model).eval()


def _count_differing(backend: Backend, sources: list[list[int]]) -> int:
    requests = [Request(source=source, max_new_tokens=_TOKENS) for source in sources]
    drafted = decode(backend, requests, DecodeConfig(mode="tandem", draft_tokens=_BLOCK))
    plain = decode(backend, requests, DecodeConfig())
    return sum(one != other for one, other in zip(drafted, plain, strict=True))
