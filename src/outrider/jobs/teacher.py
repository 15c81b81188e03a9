"""A model that answers the rows of a prepared corpus: what `distill` lets it say.

Which of several translations the others agree with most (minimum Bayes risk decoding).

    best = argmax_a  mean_{b != a}  chrF(a, b)

chrF (Popovic, 2015) is computed as sacreBLEU does: groups of one to six letters without blanks,
recall counted twice as much as precision.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from outrider.data.manifest import Dropped
from outrider.data.shards import ragged_column
from outrider.decoding import DecodeSettings, Hypothesis, Request
from outrider.jobs.folder import Advance, Unit
from outrider.runtime.generator import Generator
from outrider.runtime.result import decode_in_batches
from outrider.runtime.translator import Translator

__all__ = ["SOURCE_COLUMNS", "Answers", "Teacher", "choose_by_consensus", "chrf"]

ORDERS, BETA = 6, 2.0

Counts = list[Counter[str]]


def choose_by_consensus(texts: Sequence[str]) -> int:
    """Return the place of the text that is most like the others; of equals the first."""
    if len(set(texts)) == 1:
        return 0
    counts = {text: _count(text) for text in texts}
    pairs = {(a, b): _chrf(counts[a], counts[b]) for a in counts for b in counts}
    means = [sum(pairs[a, b] for b in texts) - pairs[a, a] for a in texts]
    return max(range(len(texts)), key=lambda place: (means[place], -place))


def chrf(hypothesis: str, reference: str) -> float:
    """Return chrF of one text, from 0 to 100."""
    return 100 * _chrf(_count(hypothesis), _count(reference))


def _count(text: str) -> Counts:
    letters = "".join(text.split())
    return [
        Counter(letters[at : at + order] for at in range(len(letters) - order + 1))
        for order in range(1, ORDERS + 1)
    ]


def _chrf(hypothesis: Counts, reference: Counts) -> float:
    """The mean over the orders that both sides have."""
    precision = recall = 0.0
    orders = 0
    for said, wanted in zip(hypothesis, reference, strict=True):
        total_said, total_wanted = said.total(), wanted.total()
        if not total_said or not total_wanted:
            continue
        fewer, more = (said, wanted) if len(said) < len(wanted) else (wanted, said)
        shared = sum(min(count, more[group]) for group, count in fewer.items())
        precision += shared / total_said
        recall += shared / total_wanted
        orders += 1
    if not precision + recall:
        return 0.0
    precision, recall = precision / orders, recall / orders
    return (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)


CHUNK_ROWS = 2048
"""Rows of a block that are decoded between two moves of the progress bar."""
SOURCE_COLUMNS = ["source", "source_ids", "source_length"]
ENDLESS = "did not end within the length limit"
TOO_LONG = "longer than the model can take"
UNSURE = "the model was not sure of it"


@dataclass(frozen=True)
class Answers:
    """What a model said to the rows of a block."""

    table: pa.Table
    dropped: dict[str, Dropped]


@dataclass(frozen=True)
class Teacher:
    """A model that answers the rows of a block."""

    loaded: Translator | Generator
    config: DecodeSettings
    batch_tokens: int
    longest: int
    """Most tokens an answer may have."""
    consensus: bool = False
    """Whether, of several answers, that is taken which the others are most like."""
    min_score: float | None = None
    """Mean log-probability of a token below which an answer is left out."""

    def __call__(self, table: pa.Table, unit: Unit, advance: Advance) -> Answers:
        """Answer all rows; `advance` is told how many are done."""
        if isinstance(self.loaded, Translator):
            return self._translate(self.loaded, table, unit, advance)
        return self._continue(table, unit, advance)

    def _translate(
        self, translator: Translator, table: pa.Table, unit: Unit, advance: Advance
    ) -> Answers:
        """Translate every source; what is too long or does not end is left out."""
        sources = [row.tolist() for row in table["source_ids"].to_numpy()]
        short = [n for n, ids in enumerate(sources) if len(ids) < translator.longest]
        requests = [self._request(translator, sources[n], unit.first + n) for n in short]
        advance(len(sources) - len(short))
        answers = dict(zip(short, self._decode(requests, advance), strict=True))
        ended = [n for n, answer in answers.items() if answer.finish == "eos"]
        kept = [n for n in ended if self._is_sure(answers[n])]
        dropped = {
            TOO_LONG: [n for n in range(len(sources)) if n not in answers],
            ENDLESS: [n for n, answer in answers.items() if answer.finish != "eos"],
            UNSURE: sorted({*ended} - {*kept}),
        }
        rows = table.select(SOURCE_COLUMNS).take(pa.array(kept, pa.int64()))
        return Answers(
            self._with_targets(rows, [translator.turned(answers[n].tokens) for n in kept]),
            {why: _dropped(unit, table, left) for why, left in dropped.items() if left},
        )

    def _continue(self, table: pa.Table, unit: Unit, advance: Advance) -> Answers:
        """Go on from the first half of every row to the row's full length."""
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
        answers = self._decode(requests, advance)
        ends = [[loaded.backend.eos] * (answer.finish == "eos") for answer in answers]
        targets = [
            [*loaded.prompt_ids(request), *answer.tokens, *end]
            for request, answer, end in zip(requests, answers, ends, strict=True)
        ]
        return Answers(self._with_targets(table.select([]), targets), {})

    def _request(self, translator: Translator, source: list[int], row: int) -> Request:
        """Ask as `Translator` does, but for no more than a corpus row may hold."""
        limit = self.config.max_new_tokens or 3 * len(source) + 30
        return translator.request(
            source, max_new_tokens=min(limit, self.longest + 1), seed=self.config.seed + row
        )

    def _decode(self, requests: Sequence[Request], advance: Advance) -> list[Hypothesis]:
        """One hypothesis per request, in order; alike lengths are decoded together."""
        order = sorted(range(len(requests)), key=lambda row: -_length(requests[row]))
        found: dict[int, Hypothesis] = {}
        for start in range(0, len(order), CHUNK_ROWS):
            rows = order[start : start + CHUNK_ROWS]
            answers = decode_in_batches(
                self.loaded.backend,
                [requests[row] for row in rows],
                self.config,
                batch_tokens=self.batch_tokens,
            )
            found |= {row: self._choose(some) for row, some in zip(rows, answers, strict=True)}
            advance(len(rows))
        return [found[row] for row in range(len(requests))]

    def _is_sure(self, answer: Hypothesis) -> bool:
        if self.min_score is None:
            return True
        assert answer.score is not None
        # Of several drawn texts each has the mean; one has the sum, a beam's is divided already.
        count = len(answer.tokens) + 1  # with the end token
        divided = self.config.length_penalty if self.config.strategy == "beam" else 0.0
        if self.config.candidates > 1:
            divided = 1.0
        return answer.score * count ** (divided - 1) >= self.min_score

    def _choose(self, answers: Sequence[Hypothesis]) -> Hypothesis:
        """Take one of several answers; those that did not end are no answers where others did."""
        ended = [answer for answer in answers if answer.finish == "eos"]
        if not self.consensus or not ended:
            return answers[0]
        turned = self.loaded.turned if isinstance(self.loaded, Translator) else tuple
        texts = self.loaded.tokenizer.decode_batch([turned(answer.tokens) for answer in ended])
        return ended[choose_by_consensus(texts)]

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
