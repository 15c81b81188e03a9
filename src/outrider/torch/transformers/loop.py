"""Draft, verify, accept, for rows that each go on at their own pace.

Our model over the weights of one of transformers'.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation import LogitsProcessorList

from outrider.errors import UnsupportedError
from outrider.formats.folder import READERS, Part, reader_of
from outrider.formats.readers.weights import Stored
from outrider.formats.safetensors import Weight
from outrider.torch.models import DecoderState, Drafter, LanguageModel, Seq2Seq
from outrider.torch.models.folder import build_model
from outrider.torch.nn.cache import SLACK
from outrider.torch.transformers.options import Prompt, Row, processors_of

__all__ = ["TandemLoop", "build_view", "check_same_logits"]

NEAR = 32 * torch.finfo(torch.float32).eps
"""Two tokens are nearly tied when their scores differ by less than this share of the larger,"""
USUAL = 10.0
"""or of this, where that is more: a small logit may be the sum of large numbers."""


class TandemLoop:
    """Draft, verify, accept, for rows that each go on at their own pace."""

    def __init__(
        self,
        target: Seq2Seq | LanguageModel,
        drafter: Drafter,
        prompt: Prompt,
        *,
        block: int,
        limit: int,
        ends: set[int],
        processors: LogitsProcessorList,
    ) -> None:
        self.target, self.drafter, self.prompt = target, drafter, prompt
        self.block, self.limit, self.ends = block, limit, ends
        self.processors = [processors_of(processors, row.place) for row in prompt.rows]
        self.device = target.tokens.weight.device

    @torch.inference_mode()
    def run(self) -> list[list[int]]:
        """Return every row's text, prompt included."""
        rows = self.prompt.rows
        texts = [row.tokens for row in rows]
        self.state = self._open(len(rows))
        self.drafter.attach(self.state, self.prompt.memory_BSD, self.prompt.keep_BS)
        before = [row.real[:-1] for row in rows]
        if any(before):
            self._extend(before)
        while rows:
            done = self._round(rows)
            if any(done):
                left = [n for n, over in enumerate(done) if not over]
                self.state.select(left)
                rows = [rows[n] for n in left]
        return texts

    def _open(self, rows: int) -> DecoderState:
        width = self.drafter.config.block + 1
        room = {"capacity": self.limit + width, "slack": max(SLACK, width)}
        if isinstance(self.target, LanguageModel):
            state = self.target.open(rows, **room)
        else:
            assert self.prompt.memory_BSD is not None
            state = self.target.open(self.prompt.memory_BSD, self.prompt.keep_BS, **room)
        state.spare = width
        return state

    def _round(self, rows: Sequence[Row]) -> list[bool]:
        """Take every row further by at least one token; return who is done."""
        drafted = self._draft(rows)
        logits_BTV = self._extend([[r.tokens[-1], *d] for r, d in zip(rows, drafted, strict=True)])
        best = None if any(self.processors) else _likeliest(logits_BTV)
        done, lengths = [], []
        for n, (row, guesses) in enumerate(zip(rows, drafted, strict=True)):
            over = False
            for place in range(len(guesses) + 1):
                if best is None:
                    token = self._choose(row, logits_BTV[n, place])
                elif best[1][n][place]:
                    token = int(self._settle(row).argmax())
                else:
                    token = best[0][n][place]
                row.tokens.append(token)
                over = token in self.ends or len(row.tokens) >= self.limit
                if over or place == len(guesses) or guesses[place] != token:
                    break
            done.append(over)
            lengths.append(len(row.real) - 1)
        self.state.rollback(lengths)
        return done

    def _draft(self, rows: Sequence[Row]) -> list[list[int]]:
        counts = [min(self.block, self.limit - len(row.tokens) - 1) for row in rows]
        if max(counts) < 1:
            return [[] for _ in rows]
        newest_B1 = torch.tensor([[row.tokens[-1]] for row in rows], device=self.device)
        tokens = self.drafter.draft(newest_B1, self.state, counts).tokens_BK.tolist()
        return [row[:count] for row, count in zip(tokens, counts, strict=True)]

    def _extend(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        counts = [len(row) for row in tokens]
        longest = max(counts)
        full = [[*row, *[0] * (longest - len(row))] for row in tokens]
        tokens_BT = torch.tensor(full, device=self.device)
        ragged = min(counts) < longest
        count_B = torch.tensor(counts, device=tokens_BT.device) if ragged else None
        return self.target.extend(tokens_BT, self.state, count_B=count_B)

    def _choose(self, row: Row, logits_V: Tensor) -> int:
        """Return what greedy decoding says after the text of a row."""
        text_1T = torch.tensor([row.tokens], device=logits_V.device)
        processors = self.processors[row.place]
        score_1V = processors(text_1T, logits_V[None].clone())
        (tokens,), (near,) = (answer[0] for answer in _likeliest(score_1V[None]))
        if near:
            score_1V = processors(text_1T, self._settle(row)[None])
            return int(score_1V.argmax())
        return int(tokens)

    def _settle(self, row: Row) -> Tensor:
        """Let transformers itself score the next token of a row."""
        return self.prompt.ask(row.place, row.real)


def _likeliest(score_BTV: Tensor) -> tuple[list[list[int]], list[list[bool]]]:
    """Return the best token everywhere, and whether another is as good but for rounding."""
    top = score_BTV.topk(2, dim=-1)
    first, second = top.values.unbind(-1)
    near_BT = first - second <= NEAR * first.abs().clamp(min=USUAL)
    return top.indices[..., 0].tolist(), near_BT.tolist()


PROBE = 16
"""Tokens of the text by which two engines are compared."""
AGREEMENT = 1e-3
"""By how much of the largest score they may differ."""


def build_view(model: PreTrainedModel) -> Seq2Seq | LanguageModel:
    """Build our model over the weights of theirs; on a CPU they are shared."""
    kind, name = model.config.model_type, type(model).__name__
    if kind not in READERS:
        raise UnsupportedError(f"{name}: Outrider knows {', '.join(READERS)}, not {kind}")
    reader, values = reader_of(kind), model.config.to_dict()
    config = reader.import_config(values)
    theirs = Stored(
        {
            key: Weight("float32", weight.detach().cpu().numpy())
            for key, weight in model.state_dict().items()
            if weight.is_floating_point()
        }
    )
    part = Part(Path(name), config, reader.import_weights(theirs, config, values), theirs)
    return build_model(part, device=model.device, copy=False)


def check_same_logits(target: Seq2Seq | LanguageModel, prompt: Prompt) -> None:
    """Refuse a model that does more than its config says, such as one with hooks or adapters."""
    config = target.config
    length = min(PROBE, config.max_positions, config.vocab_size - 1)
    # Some families count their positions past padding, which no text holds.
    tokens = [token for token in range(length + 1) if token != config.pad_token_id][:length]
    theirs_V = prompt.ask(0, tokens)
    tokens_1T = torch.tensor([tokens], device=theirs_V.device)
    with torch.inference_mode():
        if isinstance(target, LanguageModel):
            hidden_1TD = target.hidden(tokens_1T)
        else:
            assert prompt.memory_BSD is not None
            keep_BS = prompt.keep_BS
            keep_1S = None if keep_BS is None else keep_BS[:1]
            hidden_1TD = target.decode(tokens_1T, prompt.memory_BSD[:1], keep_1S)
        ours_V = target.logits(hidden_1TD)[0, -1]
    if not torch.allclose(ours_V, theirs_V, atol=float(AGREEMENT * theirs_V.abs().max())):
        raise UnsupportedError(
            f"{type(prompt.model).__name__} computes something else than its config says, so its "
            "drafts cannot be verified"
        )
