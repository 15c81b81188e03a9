"""How good a translation or a language model is, in the field's own numbers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor, nn

from outrider.errors import InputError
from outrider.evaluation.bleu_tokenizer import check_installed, tokenizer_for
from outrider.torch.models import LanguageModel

__all__ = [
    "LikelihoodScore",
    "TranslationScore",
    "score_segments",
    "score_text",
    "score_translations",
]


@dataclass(frozen=True)
class TranslationScore:
    """Corpus scores, with the signatures that say exactly how they were computed."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int


@dataclass(frozen=True)
class LikelihoodScore:
    """How well a language model predicts a text."""

    nats_per_token: float
    perplexity: float
    bits_per_character: float
    tokens: int
    characters: int
    words: int = 0
    """Words between white space, and line ends, as is the custom with WikiText."""
    perplexity_per_word: float | None = None
    """Comparable between tokenizers; None where no words were counted."""


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "auto"
) -> TranslationScore:
    """SacreBLEU and chrF of a corpus against one reference per sentence.

    `auto` takes the tokenizer that fits the script of the references; the signature names it.
    """
    if len(hypotheses) != len(references):
        raise InputError(
            f"{len(hypotheses)} translations against {len(references)} references; "
            "source and reference must have the same number of lines"
        )
    if tokenize == "auto":
        tokenize = tokenizer_for(references)
    check_installed(tokenize)
    bleu, chrf = BLEU(tokenize=tokenize), CHRF()
    return TranslationScore(
        bleu=bleu.corpus_score(list(hypotheses), [list(references)]).score,
        chrf=chrf.corpus_score(list(hypotheses), [list(references)]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(hypotheses),
    )


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

    The text is read in windows of `context` tokens; a window's first `overlap` ones were predicted
    in the window before and only serve as context. The first token is predicted from `start`.
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
    """Predict every token once, segment by segment, remembering `memory` tokens before each.

    A token sees at least `memory` tokens before it, and nothing is computed twice.
    """
    if not tokens:
        raise InputError("the text holds no token; there is nothing to predict")
    ids = torch.tensor([[start, *tokens]], device=next(model.parameters()).device)
    known, total = model.new_memory(1, memory), 0.0
    for begin in range(0, len(tokens), segment):
        inputs_BT, targets_BT = ids[:, begin : begin + segment], ids[:, begin + 1 :][:, :segment]
        output = model(input_ids=inputs_BT[:, : targets_BT.shape[1]], memory=known)
        known = output.memory
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
    """Yield batches of equally long windows: inputs, and targets, -1 where already scored."""
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
    return torch.stack([one[0] for one in windows]), torch.stack([one[1] for one in windows])


@torch.inference_mode()
def _window_nll(model: nn.Module, inputs_BT: Tensor, targets_BT: Tensor) -> float:
    device = next(model.parameters()).device
    return _nll(model(input_ids=inputs_BT.to(device)).logits, targets_BT.to(device))


def _nll(logits_BTV: Tensor, targets_BT: Tensor) -> float:
    """Negative log-likelihood of all targets in nats; a target of -1 does not count."""
    log_p_BTV = torch.log_softmax(logits_BTV.float(), dim=-1)
    picked_BT = log_p_BTV.gather(2, targets_BT.clamp(min=0)[..., None]).squeeze(2)
    return -float((picked_BT * (targets_BT >= 0)).sum(dtype=torch.float64))
