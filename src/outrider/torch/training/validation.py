"""What a run measures on its validation set while it trains: loss, perplexity, BLEU and others.

How far a drafter's blocks would hold: tokens per round, without decoding anything.

A round at position a drafts the tokens a .. a + k - 1. Those up to the first wrong one stand, and
the target adds one of its own, so the next round begins at

    a' = a + (longest right prefix) + 1

Along a right prefix the drafted tokens are the labels themselves, so the state that runs along the
draft can be fed the labels: one pass over all rows gives a whole round of tandem decoding.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow.parquet
import torch
import torch.distributed as dist
from torch import Tensor, nn

from outrider.data.labels import Completions, Masking
from outrider.data.prepared import Prepared
from outrider.evaluation.metrics import score_translations
from outrider.runtime.translator import Translator
from outrider.text.prompt_template import PromptTemplate
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Drafter, MaskedLm, Seq2Seq
from outrider.torch.models.ctc import Ctc
from outrider.torch.models.drafter import TrainingSlots
from outrider.torch.training.batches import valid_batches
from outrider.torch.training.objectives import Objective
from outrider.torch.training.objectives.base import IGNORED, Inputs
from outrider.torch.training.objectives.drafter import run_target, tokens_at
from outrider.torch.training.segments import SegmentStream

__all__ = ["Validation", "count_rounds", "valid_texts"]


@torch.inference_mode()
def count_rounds(drafter: Drafter, inputs: Inputs) -> tuple[int, int]:
    """Tokens of the batch, end tokens counted, and rounds of blocks of `train_block` they take."""
    target = run_target(drafter, inputs)
    fed_BT, label_BT = target.fed_BT, target.label_BT
    count_B1 = (label_BT != IGNORED).sum(1, keepdim=True)
    index_K = torch.arange(drafter.config.train_block, device=label_BT.device)
    anchor_B1, rounds = torch.zeros_like(count_B1), 0
    while bool((open_B1 := anchor_B1 < count_B1).any()):
        slots = TrainingSlots(
            anchor_B1.expand(-1, len(index_K)),
            index_K,
            torch.zeros_like(index_K),
            (index_K == 0).expand(len(label_BT), -1),
        )
        hidden_BKD = drafter.train_blocks(target.seen, fed_BT, slots, *target.source)
        guess_BK = _guess(drafter, hidden_BKD, tokens_at(fed_BT, slots, 0))
        right_BK = guess_BK == tokens_at(label_BT, slots, IGNORED)
        prefix_B1 = right_BK.long().cumprod(1).sum(1, keepdim=True)
        rounds += int(open_B1.sum())
        anchor_B1 = torch.where(open_B1, anchor_B1 + prefix_B1 + 1, anchor_B1)
    return int(count_B1.sum()), rounds


def _guess(drafter: Drafter, hidden_BKD: Tensor, before_BK: Tensor) -> Tensor:
    """What every slot would draft if all before it were right."""
    slots_BKV = drafter.logits(hidden_BKD)
    if not drafter.config.rank:
        return _words(drafter, slots_BKV.argmax(-1))
    place_BKC = slots_BKV.topk(min(drafter.config.candidates, slots_BKV.shape[-1])).indices
    state_BKR = drafter.run_state(hidden_BKD, before_BK)
    score_BKC = drafter.logits(hidden_BKD, state_BKR).gather(-1, place_BKC)
    return _words(drafter, place_BKC.gather(-1, score_BKC.argmax(-1, keepdim=True))[..., 0])


def _words(drafter: Drafter, place_BK: Tensor) -> Tensor:
    return place_BK if drafter.kept_V is None else drafter.kept_V[place_BK]


ROUND_BATCHES = 8
"""Batches of the validation set whose rounds are counted."""


@dataclass(frozen=True)
class Validation:
    """Measures a model on the `valid` split; processes share the work and agree on the result."""

    prepared: Prepared
    objective: Objective
    batch_tokens: int
    max_length: int
    bleu: str | None
    """SacreBLEU's tokenizer; None where BLEU is not asked for."""
    split: bool = True
    """Whether BLEU is that of lines translated sentence by sentence."""
    source_end: bool = True
    """Whether the model reads sources with their end token."""
    right_to_left: bool = False
    """Whether it writes the last token first."""
    segment: int | None = None
    """Tokens of a segment, where the model remembers from one to the next."""
    masking: Masking | None = None
    """What is hidden from a masked language model: the same every time."""
    completions: Completions | None = None
    """What alone a language model learns."""
    rank: int = 0
    world_size: int = 1

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """Mean loss per target token without smoothing, its exponential, and what is asked for.

        That is BLEU, and always the tokens of one round of a drafter and the share of hidden tokens
        that a masked language model names.
        """
        nats, tokens = self._sum_loss(model)
        shared = self._gather((nats, tokens))
        loss = sum(part[0] for part in shared) / max(1, sum(part[1] for part in shared))
        metrics = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        if self.bleu is not None:
            metrics["bleu"] = self._bleu(model, self.bleu)
        if isinstance(model, Drafter):
            metrics["tokens_per_round"] = self._tokens_per_round(model)
        if isinstance(model, MaskedLm):
            right = self._gather(sum(model.count_right(**one) for one in self._batches(model)))
            metrics["accuracy"] = sum(right) / max(1, sum(part[1] for part in shared))
        return metrics

    @torch.inference_mode()
    def _sum_loss(self, model: nn.Module) -> tuple[float, int]:
        nats, tokens = 0.0, 0
        # Some losses draw numbers: the same ones every time, and none of those that train.
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for inputs in self._batches(model):
                nats += float(self.objective.loss(model, inputs, divisor=1.0, smoothing=0.0))
                tokens += self.objective.count(inputs)
        return nats, tokens

    def _tokens_per_round(self, drafter: Drafter) -> float:
        counts = [count_rounds(drafter, inputs) for inputs in self._batches(drafter, ROUND_BATCHES)]
        shared = self._gather([sum(column) for column in zip(*counts, strict=True)] or [0, 0])
        tokens, rounds = (sum(column) for column in zip(*shared, strict=True))
        return tokens / max(1, rounds)

    def _batches(self, model: nn.Module, count: int | None = None) -> Iterator[dict[str, Tensor]]:
        """This process's share of the first `count` batches, on the model's device."""
        device = next(model.parameters()).device
        for batch in self._share(count):
            yield {name: tensor.to(device) for name, tensor in batch.items()}

    def _share(self, count: int | None) -> Iterator[dict[str, Tensor]]:
        if self.segment is not None:
            # Rows go on from batch to batch, so processes share rows and not batches.
            stream = SegmentStream(
                self.prepared,
                tokens=self.batch_tokens,
                segment=self.segment,
                seed=None,
                rank=self.rank,
                world_size=self.world_size,
                split="valid",
                completions=self.completions,
            )
            return islice(stream.batches_of(0), count)
        batches = valid_batches(
            self.prepared,
            tokens=self.batch_tokens,
            max_length=self.max_length,
            source_end=self.source_end,
            right_to_left=self.right_to_left,
            masking=self.masking,
            completions=self.completions,
        )
        return islice(batches, self.rank, count, self.world_size)

    def _bleu(self, model: nn.Module, tokenize: str) -> float:
        options: dict[str, Any] = {}
        if isinstance(model, Ctc):
            backend, options = TorchBackend(model.target, ctc=model), {"mode": "parallel"}
        else:
            assert isinstance(model, Seq2Seq)
            backend = TorchBackend(model)
        config = backend.model.config
        translator = Translator(
            backend,
            self.prepared.tokenizer,
            longest=config.longest_source,
            frame=PromptTemplate(after=(backend.eos,) if self.source_end else ()),
            right_to_left=self.right_to_left,
        )
        sources, references = valid_texts(self.prepared)
        mine = slice(self.rank, None, self.world_size)
        translations = translator.translate(
            sources[mine], split=self.split, suppress=(config.pad_token_id,), **options
        )
        shared = self._gather((translations, references[mine]))
        hypotheses = [text for part in shared for text in part[0]]
        wanted = [text for part in shared for text in part[1]]
        return score_translations(hypotheses, wanted, tokenize=tokenize).bleu

    def _gather(self, part: Any) -> list[Any]:
        if self.world_size == 1:
            return [part]
        parts: list[Any] = [None] * self.world_size
        dist.all_gather_object(parts, part)
        return parts


def valid_texts(prepared: Prepared) -> tuple[list[str], list[str]]:
    """Sources of the validation set and their translations."""
    tables = [
        pyarrow.parquet.read_table(prepared.folder / shard.name, columns=["source", "target"])
        for shard in prepared.manifest.splits["valid"].shards
    ]
    sources = [text for table in tables for text in table["source"].to_pylist()]
    return sources, [text for table in tables for text in table["target"].to_pylist()]
