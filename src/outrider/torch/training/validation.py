"""Measurements on the validation set during training: loss, perplexity, BLEU and others.

`count_rounds` estimates the tokens per round of tandem decoding without decoding. A round at
position a drafts the tokens a .. a + k - 1. The correct prefix is accepted and the target adds a
token, so the next round starts at

    a' = a + (longest correct prefix) + 1

Along a correct prefix the drafted tokens equal the labels, so the state along the draft can be fed
with labels: one pass over all rows gives a whole round.
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
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.batches import valid_batches
from outrider.torch.training.objectives import Objective
from outrider.torch.training.objectives.base import Inputs
from outrider.torch.training.objectives.drafter import run_target, tokens_at
from outrider.torch.training.segments import SegmentStream


@torch.inference_mode()
def count_rounds(drafter: Drafter, inputs: Inputs) -> tuple[int, int]:
    """Return the tokens of the batch, including end tokens, and the rounds of `train_block` they
    take.
    """
    target = run_target(drafter, inputs)
    fed_BT, label_BT = target.fed_BT, target.label_BT
    count_B1 = (label_BT != IGNORED).sum(1, keepdim=True)
    index_K = torch.arange(drafter.config.train_block, device=label_BT.device)
    anchor_B1, rounds = torch.zeros_like(count_B1), 0
    while bool((active_B1 := anchor_B1 < count_B1).any()):
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
        rounds += int(active_B1.sum())
        anchor_B1 = torch.where(active_B1, anchor_B1 + prefix_B1 + 1, anchor_B1)
    return int(count_B1.sum()), rounds


def _guess(drafter: Drafter, hidden_BKD: Tensor, before_BK: Tensor) -> Tensor:
    """Return the draft of every slot, given that all slots before it are right."""
    slots_BKV = drafter.logits(hidden_BKD)
    if not drafter.config.rank:
        return _token_ids(drafter, slots_BKV.argmax(-1))
    place_BKC = slots_BKV.topk(min(drafter.config.candidates, slots_BKV.shape[-1])).indices
    state_BKR = drafter.run_state(hidden_BKD, before_BK)
    score_BKC = drafter.logits(hidden_BKD, state_BKR).gather(-1, place_BKC)
    return _token_ids(drafter, place_BKC.gather(-1, score_BKC.argmax(-1, keepdim=True))[..., 0])


def _token_ids(drafter: Drafter, place_BK: Tensor) -> Tensor:
    return place_BK if drafter.kept_V is None else drafter.kept_V[place_BK]


ROUND_BATCHES = 8
"""Batches of the validation set on which rounds are counted."""


@dataclass(frozen=True)
class Validation:
    """Measures a model on the `valid` split; processes share the batches and return the same
    result.
    """

    prepared: Prepared
    objective: Objective
    batch_tokens: int
    max_length: int
    bleu: str | None
    """SacreBLEU's tokenizer; None without BLEU."""
    split: bool = True
    """Whether BLEU translates lines sentence by sentence."""
    source_end: bool = True
    """Whether the model reads sources with their end token."""
    right_to_left: bool = False
    """Whether the model writes the last token first."""
    segment: int | None = None
    """Tokens of a segment, for a model with memory."""
    masking: Masking | None = None
    """Masking of a masked language model: the same at every validation."""
    completions: Completions | None = None
    """Completions, if a language model is trained on those only."""
    rank: int = 0
    world_size: int = 1

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """Return the mean loss per target token without smoothing, the perplexity and other
        metrics.

        These are BLEU if configured, a drafter's tokens per round, and a masked language model's
        accuracy.
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
            right = self._gather(sum(model.count_right(**batch) for batch in self._batches(model)))
            metrics["accuracy"] = sum(right) / max(1, sum(part[1] for part in shared))
        return metrics

    @torch.inference_mode()
    def _sum_loss(self, model: nn.Module) -> tuple[float, int]:
        nats, tokens = 0.0, 0
        # Random losses use the same seed every time, and leave the training's random state.
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
        """Yield this process's share of the first `count` batches, on the model's device."""
        device = next(model.parameters()).device
        for batch in self._share(count):
            yield {name: tensor.to(device) for name, tensor in batch.items()}

    def _share(self, count: int | None) -> Iterator[dict[str, Tensor]]:
        if self.segment is not None:
            # Rows continue from batch to batch, so processes share rows instead of batches.
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
        own = slice(self.rank, None, self.world_size)
        translations = translator.translate(
            sources[own], split=self.split, suppress=(config.pad_token_id,), **options
        )
        shared = self._gather((translations, references[own]))
        hypotheses = [text for part in shared for text in part[0]]
        expected = [text for part in shared for text in part[1]]
        return score_translations(hypotheses, expected, tokenize=tokenize).bleu

    def _gather(self, part: Any) -> list[Any]:
        if self.world_size == 1:
            return [part]
        parts: list[Any] = [None] * self.world_size
        dist.all_gather_object(parts, part)
        return parts


def valid_texts(prepared: Prepared) -> tuple[list[str], list[str]]:
    """Return the sources of the validation set and their translations."""
    tables = [
        pyarrow.parquet.read_table(prepared.folder / shard.name, columns=["source", "target"])
        for shard in prepared.manifest.splits["valid"].shards
    ]
    sources = [text for table in tables for text in table["source"].to_pylist()]
    return sources, [text for table in tables for text in table["target"].to_pylist()]
