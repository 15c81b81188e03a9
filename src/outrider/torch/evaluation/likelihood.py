"""Likelihood of a text under a language model: perplexity and bits per character.

For a masked language model, a text is cut into rows of its length, and tokens are hidden as in BERT
(`data.labels`), always at the same positions, so that models with the same tokenizer can be
compared. The baseline always predicts the most frequent hidden token.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.data.labels import Masking
from outrider.data.lines import read_text
from outrider.data.shards import Ragged
from outrider.errors import ConfigError, InputError, ModelError
from outrider.evaluation.ngram import NgramModel
from outrider.runtime.provenance import origin
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.vocabulary import add_mask
from outrider.torch.models import LanguageModel, MaskedLm, load_masked_lm, load_model
from outrider.torch.nn.loss import IGNORED

IntArray = NDArray[np.int32]


@dataclass(frozen=True)
class MaskedScore:
    """How well a model predicts hidden tokens."""

    nats_per_token: float
    perplexity: float
    accuracy: float
    """Share of hidden tokens with the highest score."""
    commonest_accuracy: float
    """Accuracy of the baseline."""
    asked: int
    tokens: int


@torch.inference_mode()
def score_masked(
    model: MaskedLm, tokens: Sequence[int], masking: Masking, *, batch: int = 16
) -> MaskedScore:
    """Hide tokens of a text and predict them, in rows of the model's length."""
    text = np.array(tokens, np.int32)
    length = model.config.max_positions - 2  # without <s> and </s>
    rows = -(-len(text) // length)
    inputs, labels = masking(Ragged(text, np.minimum(np.arange(rows + 1) * length, len(text))), 0)
    hidden = labels[labels != IGNORED]
    if not len(hidden):
        raise InputError("the text holds no token that could be hidden; give a longer one")
    nats, right = 0.0, 0
    step = batch * length
    for first in range(0, len(text), step):
        batch_rows = slice(first, first + step)
        tensors = _rows(model, inputs[batch_rows], labels[batch_rows], length)
        nats += float(model(**tensors, num_items_in_batch=1.0).loss)
        right += model.count_right(**tensors)
    mean = nats / len(hidden)
    return MaskedScore(
        nats_per_token=mean,
        perplexity=math.exp(min(mean, 700.0)),
        accuracy=right / len(hidden),
        commonest_accuracy=int(np.bincount(hidden).max()) / len(hidden),
        asked=len(hidden),
        tokens=len(text),
    )


def _rows(model: MaskedLm, ids: IntArray, labels: IntArray, length: int) -> dict[str, Tensor]:
    """Cut text into rows between a start and an end token."""
    config = model.config
    rows, missing = -(-len(ids) // length), -len(ids) % length
    lengths_R1 = torch.full((rows, 1), length)
    lengths_R1[-1] -= missing

    def cut(values: IntArray, fill: int) -> Tensor:
        row_N = torch.from_numpy(values.astype(np.int64))
        return F.pad(F.pad(row_N, (0, missing), value=fill).view(rows, length), (1, 1), value=fill)

    input_RT = cut(ids, config.pad_token_id)
    input_RT[:, 0] = config.bos_token_id
    input_RT.scatter_(1, lengths_R1 + 1, config.end_tokens[0])
    keep_RT = torch.arange(length + 2) < lengths_R1 + 2
    inputs = {
        "input_ids": input_RT,
        "attention_mask": keep_RT.long(),
        "labels": cut(labels, IGNORED),
    }
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}


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
