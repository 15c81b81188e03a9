"""A model that generates the targets of a prepared corpus, for `distill`.

Consensus chooses among several translations (minimum Bayes risk decoding):

    best = argmax_a  mean_{b != a}  chrF(a, b)

chrF (Popovic, 2015) is computed as in sacreBLEU: n-grams of one to six characters without spaces,
with twice the weight for recall.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from outrider.data.manifest import Dropped
from outrider.data.shards import ragged_column
from outrider.decoding import DecodeConfig, Hypothesis, Request
from outrider.jobs.folder import Advance, Unit
from outrider.runtime.generator import Generator
from outrider.runtime.result import decode_in_batches
from outrider.runtime.translator import Translator

ORDERS, BETA = 6, 2.0

Counts = list[Counter[str]]


def choose_by_consensus(texts: Sequence[str]) -> int:
    """Return the index of the text most similar to the others; the first of equal ones."""
    if len(set(texts)) == 1:
        return 0
    counts = {text: _count(text) for text in texts}
    pairs = {(a, b): _chrf(counts[a], counts[b]) for a in counts for b in counts}
    means = [sum(pairs[a, b] for b in texts) - pairs[a, a] for a in texts]
    return max(range(len(texts)), key=lambda index: (means[index], -index))


def chrf(hypothesis: str, reference: str) -> float:
    """Return the chrF of one text, from 0 to 100."""
    return 100 * _chrf(_count(hypothesis), _count(reference))


def _count(text: str) -> Counts:
    letters = "".join(text.split())
    return [
        Counter(letters[at : at + order] for at in range(len(letters) - order + 1))
        for order in range(1, ORDERS + 1)
    ]


def _chrf(hypothesis: Counts, reference: Counts) -> float:
    """Return chrF from 0 to 1, averaged over the orders that both sides have."""
    precision = recall = 0.0
    orders = 0
    for ours, theirs in zip(hypothesis, reference, strict=True):
        if not ours or not theirs:
            continue
        fewer, more = (ours, theirs) if len(ours) < len(theirs) else (theirs, ours)
        shared = sum(min(count, more[ngram]) for ngram, count in fewer.items())
        precision += shared / ours.total()
        recall += shared / theirs.total()
        orders += 1
    if not precision + recall:
        return 0.0
    precision, recall = precision / orders, recall / orders
    return (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)


CHUNK_ROWS = 2048
"""Rows decoded between two updates of the progress bar."""
SOURCE_COLUMNS = ["source", "source_ids", "source_length"]
UNFINISHED = "did not end within the length limit"
TOO_LONG = "longer than the model can take"
UNSURE = "the model was not sure of it"


@dataclass(frozen=True)
class Generated:
    """The generated rows of a block."""

    table: pa.Table
    dropped: dict[str, Dropped]


@dataclass(frozen=True)
class Teacher:
    """Generates the targets of the rows of a block."""

    loaded: Translator | Generator
    config: DecodeConfig
    batch_tokens: int
    longest: int
    """Most tokens of a target."""
    consensus: bool = False
    """Whether to choose among several hypotheses by consensus."""
    min_score: float | None = None
    """Lowest mean log-probability of a token; targets below are dropped."""

    def __call__(self, table: pa.Table, unit: Unit, advance: Advance) -> Generated:
        """Generate all rows; `advance` is called with the number of finished rows."""
        if isinstance(self.loaded, Translator):
            return self._translate(self.loaded, table, unit, advance)
        return self._continue(table, unit, advance)

    def _translate(
        self, translator: Translator, table: pa.Table, unit: Unit, advance: Advance
    ) -> Generated:
        """Translate every source; drop too long, unfinished and improbable ones."""
        sources = [row.tolist() for row in table["source_ids"].to_numpy()]
        short = [n for n, ids in enumerate(sources) if len(ids) < translator.longest]
        requests = [self._request(translator, sources[n], unit.first + n) for n in short]
        advance(len(sources) - len(short))
        found = dict(zip(short, self._decode(requests, advance), strict=True))
        ended = [n for n, hypothesis in found.items() if hypothesis.finish == "eos"]
        kept = [n for n in ended if self._is_probable(found[n])]
        dropped = {
            TOO_LONG: [n for n in range(len(sources)) if n not in found],
            UNFINISHED: [n for n, hypothesis in found.items() if hypothesis.finish != "eos"],
            UNSURE: sorted({*ended} - {*kept}),
        }
        rows = table.select(SOURCE_COLUMNS).take(pa.array(kept, pa.int64()))
        return Generated(
            self._with_targets(rows, [translator.turned(found[n].tokens) for n in kept]),
            {reason: _dropped(unit, table, some) for reason, some in dropped.items() if some},
        )

    def _continue(self, table: pa.Table, unit: Unit, advance: Advance) -> Generated:
        """Continue the first half of every row to the row's full length."""
        loaded = self.loaded
        assert isinstance(loaded, Generator)
        rows = [row.tolist() for row in table["target_ids"].to_numpy()]
        requests = [
            loaded.request(
                ids[: len(ids) // 2],
                max_new_tokens=len(ids) - len(ids) // 2,
                seed=self.config.seed + unit.first + n,
            )
            for n, ids in enumerate(rows)
        ]
        targets = []
        for request, hypothesis in zip(requests, self._decode(requests, advance), strict=True):
            end = [loaded.backend.eos] * (hypothesis.finish == "eos")
            targets.append([*loaded.prompt_ids(request), *hypothesis.tokens, *end])
        return Generated(self._with_targets(table.select([]), targets), {})

    def _request(self, translator: Translator, source: list[int], row: int) -> Request:
        """Build the request of `Translator` with the length limit of a corpus row."""
        limit = self.config.max_new_tokens or 3 * len(source) + 30
        return translator.request(
            source, max_new_tokens=min(limit, self.longest + 1), seed=self.config.seed + row
        )

    def _decode(self, requests: Sequence[Request], advance: Advance) -> list[Hypothesis]:
        """Return one hypothesis per request, in order; decode similar lengths together."""
        order = sorted(range(len(requests)), key=lambda row: -_length(requests[row]))
        chosen: dict[int, Hypothesis] = {}
        for start in range(0, len(order), CHUNK_ROWS):
            rows = order[start : start + CHUNK_ROWS]
            hypotheses = decode_in_batches(
                self.loaded.backend,
                [requests[row] for row in rows],
                self.config,
                batch_tokens=self.batch_tokens,
            )
            for row, candidates in zip(rows, hypotheses, strict=True):
                chosen[row] = self._choose(candidates)
            advance(len(rows))
        return [chosen[row] for row in range(len(requests))]

    def _is_probable(self, hypothesis: Hypothesis) -> bool:
        if self.min_score is None:
            return True
        assert hypothesis.score is not None
        # The score is a sum, divided by count ** penalty in beam search, or a mean of candidates.
        count = len(hypothesis.tokens) + 1  # with the end token
        penalty = self.config.length_penalty if self.config.strategy == "beam" else 0.0
        if self.config.candidates > 1:
            penalty = 1.0
        return hypothesis.score * count ** (penalty - 1) >= self.min_score

    def _choose(self, hypotheses: Sequence[Hypothesis]) -> Hypothesis:
        """Choose the best hypothesis, or by consensus among the finished ones."""
        ended = [hypothesis for hypothesis in hypotheses if hypothesis.finish == "eos"]
        if not self.consensus or not ended:
            return hypotheses[0]
        turned = self.loaded.turned if isinstance(self.loaded, Translator) else tuple
        tokens = [turned(hypothesis.tokens) for hypothesis in ended]
        return ended[choose_by_consensus(self.loaded.tokenizer.decode_batch(tokens))]

    def _with_targets(self, table: pa.Table, targets: Sequence[Sequence[int]]) -> pa.Table:
        texts = self.loaded.tokenizer.decode_batch(targets)
        if isinstance(self.loaded, Translator):
            texts = [text.strip() for text in texts]
        columns = {name: table[name] for name in table.column_names}
        columns["target"] = pa.array(texts, pa.string())
        columns["target_ids"] = ragged_column(targets)
        columns["target_length"] = pa.array([len(ids) for ids in targets], pa.int32())
        return pa.table(columns)


def _dropped(unit: Unit, table: pa.Table, rows: Sequence[int]) -> Dropped:
    split = unit.name.rpartition("-")[0]
    text = table["source"][rows[0]].as_py()[:80]
    return Dropped(count=len(rows), example=f"{split} row {unit.first + rows[0] + 1}: {text}")


def _length(request: Request) -> int:
    return len(request.source) + len(request.prompt)
