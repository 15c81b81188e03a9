"""The draft-and-verify loop, and Outrider's model over the weights of a transformers model."""

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

NEAR = 32 * torch.finfo(torch.float32).eps
"""Two tokens are nearly tied if their scores differ by less than this share of the larger one,"""
USUAL = 10.0
"""or of this, if that is more: a small logit may be the sum of large numbers."""


class TandemLoop:
    """Drafts, verifies and accepts tokens; each row advances independently."""

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
        """Return the text of every row, prompt included."""
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
                remaining = [n for n, finished in enumerate(done) if not finished]
                self.state.select(remaining)
                rows = [rows[n] for n in remaining]
        return texts

    def _open(self, rows: int) -> DecoderState:
        width = self.drafter.config.block + 1
        sizes = {"capacity": self.limit + width, "slack": max(SLACK, width)}
        if isinstance(self.target, LanguageModel):
            state = self.target.open(rows, **sizes)
        else:
            assert self.prompt.memory_BSD is not None
            state = self.target.open(self.prompt.memory_BSD, self.prompt.keep_BS, **sizes)
        state.spare = width
        return state

    def _round(self, rows: Sequence[Row]) -> list[bool]:
        """Advance every row by at least one token; return whether each row is finished."""
        drafted = self._draft(rows)
        logits_BTV = self._extend([[r.tokens[-1], *d] for r, d in zip(rows, drafted, strict=True)])
        best = None if any(self.processors) else _argmax(logits_BTV)
        done, lengths = [], []
        for n, (row, draft) in enumerate(zip(rows, drafted, strict=True)):
            finished = False
            for place in range(len(draft) + 1):
                if best is None:
                    token = self._choose(row, logits_BTV[n, place])
                elif best[1][n][place]:
                    token = int(self._reference_scores(row).argmax())
                else:
                    token = best[0][n][place]
                row.tokens.append(token)
                finished = token in self.ends or len(row.tokens) >= self.limit
                if finished or place == len(draft) or draft[place] != token:
                    break
            done.append(finished)
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
        """Return the greedy token after the text of a row."""
        text_1T = torch.tensor([row.tokens], device=logits_V.device)
        processors = self.processors[row.place]
        score_1V = processors(text_1T, logits_V[None].clone())
        (tokens,), (near,) = (answer[0] for answer in _argmax(score_1V[None]))
        if near:
            score_1V = processors(text_1T, self._reference_scores(row)[None])
            return int(score_1V.argmax())
        return int(tokens)

    def _reference_scores(self, row: Row) -> Tensor:
        """Score the next token of a row with transformers."""
        return self.prompt.reference_logits(row.place, row.real)


def _argmax(score_BTV: Tensor) -> tuple[list[list[int]], list[list[bool]]]:
    """Return the best token of every position, and whether the second best is within rounding."""
    top = score_BTV.topk(2, dim=-1)
    first, second = top.values.unbind(-1)
    near_BT = first - second <= NEAR * first.abs().clamp(min=USUAL)
    return top.indices[..., 0].tolist(), near_BT.tolist()


PROBE = 16
"""Tokens of the text on which two models are compared."""
AGREEMENT = 1e-3
"""Maximum difference, relative to the largest score."""


def build_view(model: PreTrainedModel) -> Seq2Seq | LanguageModel:
    """Build Outrider's model over the weights of a transformers model, shared on a CPU."""
    kind, name = model.config.model_type, type(model).__name__
    if kind not in READERS:
        expected = ", ".join(READERS)
        raise UnsupportedError(f"{name}: {kind} is not supported; expected one of {expected}")
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
    """Refuse a model whose computation differs from its config, such as one with adapters."""
    config = target.config
    length = min(PROBE, config.max_positions, config.vocab_size - 1)
    # Without the padding token, from which some families count positions.
    tokens = [token for token in range(length + 1) if token != config.pad_token_id][:length]
    theirs_V = prompt.reference_logits(0, tokens)
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
            f"{type(prompt.model).__name__} does not compute what its config describes, so drafts "
            "cannot be verified"
        )
