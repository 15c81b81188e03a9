"""Who writes a whole text at once: the CTC decoder over its slots, or the drafter over one block.

Both can look again (mask-predict, Ghazvininejad et al., 2019, arXiv:1904.09324): before pass i of n
the share i / n of the slots, those that were surest so far, keep their tokens; the others are
predicted again. A CTC decoder is trained with few known slots, and fewer the better it gets (GLAT);
with half of them known it drops words. So it keeps the share `MOST_KNOWN` (1 - i / n). Each row is
refined by itself, and what it draws comes from its own seed.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.decoding.config import DecodeConfig
from outrider.decoding.likeliest import likeliest
from outrider.decoding.mask import forbid
from outrider.decoding.protocol import Backend, State
from outrider.decoding.request import Request, row_seed, up_to_end
from outrider.decoding.stream import Stream
from outrider.nn.ctc import collapse
from outrider.nn.draw import invert, masses

__all__ = ["BlockWriter", "CtcWriter", "Text", "Writer"]

MOST_KNOWN = 0.15
"""Largest share of known slots in a pass of a CTC decoder: about that of its training."""
DRAWN_FROM = 8
"""Tokens of a CTC slot that a further candidate can be drawn from: its likeliest."""
SLOTS_PER_TOKEN, SPARE_SLOTS = 1.5, 4
"""Length of the drafter's block: so much for each token of the source, and so much more."""


class Text(NamedTuple):
    """One candidate."""

    tokens: list[int]
    """Without the end token."""
    ended: bool
    """Whether it ended, or its slots were too few."""


class Writer:
    """Fills the slots of a batch, again and again if asked to."""

    state: State
    tokens_BU: Tensor
    """What each slot says."""
    prob_BU: Tensor
    """How likely it found that when it was last asked."""

    def __init__(
        self,
        backend: Backend,
        requests: Sequence[Request],
        config: DecodeConfig,
        limits: Sequence[int],
        *,
        scored: bool,
    ) -> None:
        """Read the sources; where texts will be `scored` the state has room for `limits` tokens."""
        self.backend, self.requests, self.config = backend, requests, config
        self._open([request.source for request in requests], limits, scored)

    def refine(self) -> None:
        """Fill all slots, then ask the less certain ones again."""
        self.tokens_BU, self.prob_BU = self._fill(None)
        passes = self.config.iterations + 1
        for count in range(1, passes):
            share = self._share(count, passes)
            known_BU = _surest(self.tokens_BU, self.prob_BU, self._used(), share)
            tokens_BU, prob_BU = self._fill(known_BU)
            self.tokens_BU = torch.where(known_BU >= 0, known_BU, tokens_BU)
            self.prob_BU = torch.where(known_BU >= 0, self.prob_BU, prob_BU)

    def texts(self) -> list[list[Text]]:
        """Return the candidates of each request, what the slots say first."""
        raise NotImplementedError

    def _open(self, sources: list[Sequence[int]], limits: Sequence[int], scored: bool) -> None:
        """Read the sources."""
        raise NotImplementedError

    def _fill(self, known_BU: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run one pass: the likeliest token of every slot, and its probability."""
        raise NotImplementedError

    def _used(self) -> Tensor:
        """Count the slots of each row that its text is made of, [B]."""
        raise NotImplementedError

    def _share(self, count: int, passes: int) -> float:
        """Return the share of the used slots that are known before pass `count` of `passes`."""
        return count / passes

    def _uniform(self, slots: Sequence[int]) -> Tensor:
        """Draw numbers for all candidates but the first, [B, N - 1, U], each row its own."""
        others = self.config.candidates - 1
        uniform_BNU = torch.zeros(len(slots), others, max(slots), dtype=torch.float64)
        for row, (request, count) in enumerate(zip(self.requests, slots, strict=True)):
            stream = Stream(row_seed(request, self.config))
            uniform_BNU[row, :, :count] = stream.draw(others, count)
        return uniform_BNU


class CtcWriter(Writer):
    """Reads texts off the slots of the CTC decoder."""

    def texts(self) -> list[list[Text]]:
        """Collapse the best path and those drawn beside it."""
        path_BNU, candidates = self.tokens_BU[:, None], self.config.candidates
        if candidates > 1:
            uniform_BNU = self._uniform(self.slots_B.tolist()).to(path_BNU.device)
            path_BNU = torch.cat([path_BNU, self._draw(uniform_BNU)], dim=1)
        count_B = self.slots_B.repeat_interleave(candidates)
        flat = collapse(path_BNU.flatten(0, 1), blank=self.backend.pad, slots_B=count_B)
        return _grouped([Text(tokens, True) for tokens in flat], candidates)

    def _open(self, sources: list[Sequence[int]], limits: Sequence[int], scored: bool) -> None:
        capacity = max(limits) if scored else 0
        self.state = self.backend.encode(sources, capacity=capacity, parallel=True)
        # The blank is no token of a text, and a text ends with its slots.
        forbidden = {*self.config.suppress, *self.backend.ends} - {self.backend.pad}
        self.forbidden = sorted(forbidden)

    def _fill(self, known_BU: Tensor | None) -> tuple[Tensor, Tensor]:
        self.known_BU = known_BU
        self.logits_BUV, self.slots_B = self.backend.ctc(self.state, known_BU)
        forbid(self.logits_BUV, self.forbidden)
        best_BU = likeliest(self.logits_BUV)
        score_BU = self.logits_BUV.gather(-1, best_BU[..., None])[..., 0]
        if not self.config.iterations:
            return best_BU, score_BU  # nobody will ask how likely they are
        return best_BU, (score_BU - self.logits_BUV.logsumexp(-1)).exp()

    def _used(self) -> Tensor:
        return self.slots_B

    def _share(self, count: int, passes: int) -> float:
        return MOST_KNOWN * (1 - count / passes)

    def _draw(self, uniform_BNU: Tensor) -> Tensor:
        """Draw paths from the last pass; known slots stand."""
        top = self.logits_BUV.topk(min(DRAWN_FROM, self.logits_BUV.shape[-1]))
        place_BUN = invert(masses(top.values), uniform_BNU.transpose(1, 2))
        path_BNU = top.indices.gather(-1, place_BUN).transpose(1, 2)
        if self.known_BU is None:
            return path_BNU
        known_B1U = self.known_BU[:, None]
        return torch.where(known_B1U >= 0, known_B1U, path_BNU)


class BlockWriter(Writer):
    """Lets the drafter fill one block, as long as the text may be."""

    def texts(self) -> list[list[Text]]:
        """Read the likeliest block and those drawn beside it up to their end tokens."""
        tokens_BNU, candidates = self.tokens_BU[:, None], self.config.candidates
        if candidates > 1:
            tokens_BNU = torch.cat([tokens_BNU, self._draw(candidates)], dim=1)
        rows = zip(tokens_BNU.tolist(), self.slots, strict=True)
        return [[self._read(tokens[:slots]) for tokens in blocks] for blocks, slots in rows]

    def _open(self, sources: list[Sequence[int]], limits: Sequence[int], scored: bool) -> None:
        # A place depends on those before it only, so a longer neighbour does not change a row.
        most = self.backend.longest_text
        self.slots = [
            min(limit, most, math.ceil(SLOTS_PER_TOKEN * len(source)) + SPARE_SLOTS)
            for source, limit in zip(sources, limits, strict=True)
        ]
        capacity = max(limits) if scored else max(self.slots)
        self.state = self.backend.encode(sources, capacity=capacity, drafting=True)
        device = self.state.length_B.device
        self.slots_B = torch.tensor(self.slots, device=device)
        self.start_B1 = torch.full((len(sources), 1), self.backend.start, device=device)

    def _fill(self, known_BU: Tensor | None) -> tuple[Tensor, Tensor]:
        if known_BU is None:
            known_BU = self.start_B1.new_full((len(self.slots), max(self.slots)), -1)
        return self.backend.predict(self.start_B1, self.state, known_BU)

    def _used(self) -> Tensor:
        """A text is made of everything up to its end token, that one included."""
        ends = torch.tensor(self.backend.ends, device=self.tokens_BU.device)
        before_BU = torch.isin(self.tokens_BU, ends).cumsum(1) == 0
        return (before_BU.sum(1) + 1).minimum(self.slots_B)

    def _draw(self, candidates: int) -> Tensor:
        """Draw blocks from the drafter; the state fans out to all candidates."""
        self.state = self.state.fan(candidates)
        uniform_BNU = F.pad(self._uniform(self.slots), (0, 0, 1, 0))
        drawn = self.backend.draft(
            self.start_B1.repeat_interleave(candidates, dim=0),
            self.state,
            max(self.slots),
            uniform_BK=uniform_BNU.flatten(0, 1).to(self.start_B1.device),
        )
        return drawn.tokens_BK.view(-1, candidates, max(self.slots))[:, 1:]

    def _read(self, tokens: list[int]) -> Text:
        forbidden = {*self.config.suppress, self.backend.pad}
        tokens = tokens[: up_to_end(tokens, self.backend.ends)]
        ended = tokens[-1] in self.backend.ends
        words = tokens[:-1] if ended else tokens
        return Text([token for token in words if token not in forbidden], ended)


def _surest(tokens_BU: Tensor, prob_BU: Tensor, used_B: Tensor, share: float) -> Tensor:
    """Keep a share of each row's used slots, the likeliest; -1 elsewhere."""
    place_U = torch.arange(tokens_BU.shape[1], device=tokens_BU.device)
    prob_BU = prob_BU.masked_fill(place_U >= used_B[:, None], -1.0)
    rank_BU = prob_BU.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return tokens_BU.masked_fill(rank_BU >= (used_B * share).floor()[:, None], -1)


def _grouped(texts: list[Text], size: int) -> list[list[Text]]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]
