"""Likelihood of a text under a language model: perplexity and bits per character."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outrider.data.labels import Masking
from outrider.data.lines import read_text
from outrider.errors import ConfigError, InputError, ModelError
from outrider.evaluation.ngram import NgramModel
from outrider.runtime.provenance import origin
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.vocabulary import add_mask
from outrider.torch.evaluation.masked import score_masked
from outrider.torch.models import LanguageModel, MaskedLm, load_masked_lm, load_model


@dataclass(frozen=True)
class LikelihoodScore:
    """How well a language model predicts a text."""

    nats_per_token: float
    perplexity: float
    bits_per_character: float
    tokens: int
    characters: int
    words: int = 0
    """Words separated by white space, plus line ends, as is usual for WikiText."""
    perplexity_per_word: float | None = None
    """Comparable between tokenizers; None without words."""


def evaluate_text(
    folder: Path, *, text: Path, tail: float = 1.0, counted: Path | None = None, order: int = 3
) -> dict[str, Any]:
    """Score the last `tail` share of a text, measured in characters.

    With `counted`, the training text, an n-gram model of up to `order` tokens is scored too. A
    masked language model predicts hidden tokens.
    """
    masked = load_masked_lm(folder)
    if masked is not None:
        if counted is not None:
            raise ConfigError(
                "--ngram", f"does not apply to a masked language model ({folder}); leave it out"
            )
        return _evaluate_masked(masked, folder, text, tail)
    model = load_model(folder)
    if not isinstance(model, LanguageModel):
        raise ModelError(f"{folder}: is a translation model; use --source and --reference")
    model.eval()
    tokenizer, part = load_tokenizer(folder), _tail(text, tail)
    context, memory = model.config.max_positions, model.config.memory
    sizes: dict[str, Any] = {
        "start": tokenizer.bos_id,
        "characters": len(part),
        "words": len(part.split()) + part.count("\n"),
    }
    start_time = time.monotonic()
    tokens = tokenizer.encode(part)
    if memory:
        score = score_segments(model, tokens, segment=context, memory=memory, **sizes)
    else:
        score = score_text(model, tokens, context=context, overlap=context // 2, **sizes)
    scores = asdict(score)
    if counted is not None:
        ngram = NgramModel(
            tokenizer.encode(read_text(counted)), order=order, vocab_size=tokenizer.vocab_size
        )
        mean = ngram.nats(tokens, start=tokenizer.bos_id) / len(tokens)
        bits = mean * len(tokens) / math.log(2) / len(part)
        scores |= {"ngram_perplexity": math.exp(mean), "ngram_bits_per_character": bits}
        scores["ngram_order"] = order
    return {
        "task": "language_model",
        "scores": scores,
        "tail": tail,
        "context": context,
        "memory": memory,
        "seconds": round(time.monotonic() - start_time, 2),
        **origin(folder, text=text, **({} if counted is None else {"counted": counted})),
    }


def _evaluate_masked(model: MaskedLm, folder: Path, text: Path, tail: float) -> dict[str, Any]:
    tokenizer = add_mask(load_tokenizer(folder))
    if tokenizer.mask_id != model.config.mask_token_id:
        raise ModelError(f"{folder}: its tokenizer and its config.json do not match")
    start_time = time.monotonic()
    tokens = tokenizer.encode(_tail(text, tail))
    return {
        "task": "masked_lm",
        "scores": asdict(score_masked(model, tokens, Masking.of(tokenizer))),
        "tail": tail,
        "context": model.config.max_positions,
        "seconds": round(time.monotonic() - start_time, 2),
        **origin(folder, text=text),
    }


def _tail(path: Path, share: float) -> str:
    whole = read_text(path)
    return whole[len(whole) - round(len(whole) * share) :]


def score_text(
    model: nn.Module,
    tokens: Sequence[int],
    *,
    start: int,
    characters: int,
    context: int,
    overlap: int,
    words: int = 0,
    batch: int = 16,
) -> LikelihoodScore:
    """Predict every token once, each from at most `context` tokens before it.

    The text is read in windows of `context` tokens; a window's first `overlap` tokens were
    predicted in the window before and serve as context only. The first token is predicted from
    `start`.
    """
    if not tokens:
        raise InputError("the text holds no token; there is nothing to predict")
    ids = torch.tensor([start, *tokens])
    total = 0.0
    for inputs_BT, targets_BT in _windows(ids, context=context, overlap=overlap, batch=batch):
        total += _window_nll(model, inputs_BT, targets_BT)
    return _score(total, tokens=len(tokens), characters=characters, words=words)


@torch.inference_mode()
def score_segments(
    model: LanguageModel,
    tokens: Sequence[int],
    *,
    start: int,
    characters: int,
    segment: int,
    memory: int,
    words: int = 0,
) -> LikelihoodScore:
    """Predict every token once, segment by segment, with a memory of `memory` tokens before each.

    A token attends to at least `memory` tokens before it, and nothing is computed twice.
    """
    if not tokens:
        raise InputError("the text holds no token; there is nothing to predict")
    ids = torch.tensor([[start, *tokens]], device=next(model.parameters()).device)
    state, total = model.new_memory(1, memory), 0.0
    for begin in range(0, len(tokens), segment):
        inputs_BT, targets_BT = ids[:, begin : begin + segment], ids[:, begin + 1 :][:, :segment]
        output = model(input_ids=inputs_BT[:, : targets_BT.shape[1]], memory=state)
        state = output.memory
        total += _nll(output.logits, targets_BT)
    return _score(total, tokens=len(tokens), characters=characters, words=words)


def _score(total: float, *, tokens: int, characters: int, words: int) -> LikelihoodScore:
    mean = total / tokens
    return LikelihoodScore(
        nats_per_token=mean,
        perplexity=math.exp(min(mean, 700.0)),
        bits_per_character=total / math.log(2) / characters,
        tokens=tokens,
        characters=characters,
        words=words,
        perplexity_per_word=math.exp(min(total / words, 700.0)) if words else None,
    )


def _windows(
    ids: Tensor, *, context: int, overlap: int, batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of equally long windows: inputs, and targets with -1 where already scored."""
    assert 0 <= overlap < context
    last = len(ids) - 1
    pending: list[tuple[Tensor, Tensor]] = []
    for begin in range(0, last, context - overlap):
        end = min(begin + context, last)
        targets = ids[begin + 1 : end + 1].clone()
        if begin:
            targets[:overlap] = -1
        if (targets >= 0).any():
            if pending and len(pending[0][0]) != end - begin:
                yield _stack(pending)
                pending = []
            pending.append((ids[begin:end], targets))
        if len(pending) == batch:
            yield _stack(pending)
            pending = []
        if end == last:
            break
    if pending:
        yield _stack(pending)


def _stack(windows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*windows, strict=True)
    return torch.stack(inputs), torch.stack(targets)


@torch.inference_mode()
def _window_nll(model: nn.Module, inputs_BT: Tensor, targets_BT: Tensor) -> float:
    device = next(model.parameters()).device
    return _nll(model(input_ids=inputs_BT.to(device)).logits, targets_BT.to(device))


def _nll(logits_BTV: Tensor, targets_BT: Tensor) -> float:
    """Return the negative log-likelihood of all targets in nats; targets of -1 are ignored."""
    log_p_BTV = torch.log_softmax(logits_BTV.float(), dim=-1)
    picked_BT = log_p_BTV.gather(2, targets_BT.clamp(min=0)[..., None]).squeeze(2)
    return -float((picked_BT * (targets_BT >= 0)).sum(dtype=torch.float64))
