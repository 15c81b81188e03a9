"""Measurements on the validation set during training: loss, perplexity, BLEU and others."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pyarrow.parquet
import torch
import torch.distributed as dist
from torch import Tensor, nn

from outrider.data.prepared import Prepared
from outrider.evaluation.metrics import score_translations
from outrider.runtime.translator import Translator
from outrider.text.prompt_template import PromptTemplate
from outrider.torch.training.batches import Deal
from outrider.torch.training.kinds.base import Kind
from outrider.torch.training.objective import Objective


@dataclass(frozen=True)
class Validation:
    """Measures a model on the `valid` split; processes share the batches and return the same
    result.
    """

    kind: Kind[Any]
    prepared: Prepared
    deal: Deal
    bleu: str | None
    """SacreBLEU's tokenizer; None without BLEU."""

    @cached_property
    def objective(self) -> Objective:
        """The objective, whose state lasts from one validation to the next."""
        return self.kind.objective()

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """Return the mean loss per target token without smoothing, the perplexity and other
        metrics.

        These are BLEU if configured, and those of the kind.
        """
        nats, tokens = self._total(self._sum_loss(model))
        loss = nats / max(1, tokens)
        metrics = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        if self.bleu is not None:
            metrics["bleu"] = self._bleu(model, self.bleu)
        for name, counts in self.kind.ratios(model, partial(self._batches, model)).items():
            above, below = self._total(counts)
            metrics[name] = above / max(1, below)
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

    def _batches(self, model: nn.Module, count: int | None = None) -> Iterator[dict[str, Tensor]]:
        """Yield this process's share of the first `count` batches, on the model's device."""
        device = next(model.parameters()).device
        batches = self.kind.valid_batches(model, self.prepared, self.deal, count)
        for batch in batches:
            yield {name: tensor.to(device) for name, tensor in batch.items()}

    def _bleu(self, model: nn.Module, tokenize: str) -> float:
        backend = self.kind.backend(model)
        config = backend.model.config
        translator = Translator(
            backend,
            self.prepared.tokenizer,
            longest=config.longest_source,
            frame=PromptTemplate(after=(backend.eos,) if config.source_end else ()),
            right_to_left=config.right_to_left,
        )
        test = self.kind.config.evaluate
        sources, references = valid_texts(self.prepared)
        own = slice(self.deal.rank, None, self.deal.world_size)
        translations = translator.translate(
            sources[own],
            split=test is None or test.split,
            suppress=(config.pad_token_id,),
            **self.kind.decode_options,
        )
        shared = self._gather((translations, references[own]))
        hypotheses = [text for part in shared for text in part[0]]
        expected = [text for part in shared for text in part[1]]
        return score_translations(hypotheses, expected, tokenize=tokenize).bleu

    def _total(self, counts: tuple[float, int]) -> tuple[float, int]:
        """Return the sums over all processes."""
        first, second = zip(*self._gather(counts), strict=True)
        return sum(first), sum(second)

    def _gather(self, part: Any) -> list[Any]:
        if self.deal.world_size == 1:
            return [part]
        parts: list[Any] = [None] * self.deal.world_size
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
