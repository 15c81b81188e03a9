"""An echo model and a tokenizer of characters: encoding and decoding must restore the text."""

import numpy as np
import pytest

from outrider.decoding.queries import Argmax, Forbidden

ALPHABET = "abcdefghijklmnopqrstuvwxyzA .,!?。！你好\n"


class CharacterTokenizer:
    pad_id, eos_id, unk_id, bos_id = 0, 1, 2, 3
    vocab_size = 4 + len(ALPHABET)

    def encode(self, text: str) -> list[int]:
        return [ALPHABET.index(c) + 4 if c in ALPHABET else self.unk_id for c in text]

    def encode_batch(self, texts) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    encode_target_batch = encode_batch

    def decode(self, ids) -> str:
        return "".join(ALPHABET[i - 4] for i in ids if i >= 4)

    def decode_batch(self, rows) -> list[str]:
        return [self.decode(ids) for ids in rows]


class EchoState:
    def __init__(self, rows: list[tuple[tuple, int]]) -> None:
        self.rows = rows

    @property
    def lengths(self) -> list[int]:
        return [length for _, length in self.rows]

    def rollback(self, lengths: list[int]) -> None:
        self.rows = [(row[0], n) for row, n in zip(self.rows, lengths, strict=True)]

    def select(self, rows: list[int]) -> None:
        self.rows = [self.rows[n] for n in rows]

    def repeat_rows(self, times: int) -> "EchoState":
        return EchoState([row for row in self.rows for _ in range(times)])


class EchoBackend:
    """Repeats its source; a language model (no source) writes `b` forever."""

    start, eos, ends, pad = 0, 1, (1,), 0
    vocab_size = CharacterTokenizer.vocab_size
    drafts = slots = None
    epsilon, compact_threshold = 0.0, 0.25

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length = max_length
        self.batches: list[tuple[int, int, int]] = []

    def encode(self, source, *, capacity, drafting=False) -> EchoState:
        self.batches.append((len(source), max(map(len, source)), max(capacity)))
        return EchoState([(tuple(ids), 0) for ids in source])

    def extend(self, tokens, state, query, *, last=False):
        out = np.zeros((len(tokens), 1, self.vocab_size))
        for n, ((source, length), fed) in enumerate(zip(state.rows, tokens, strict=True)):
            assert self.max_length is None or length + len(fed) <= self.max_length
            place = length + len(fed) - 1
            wanted = 5 if not source else source[place] if place < len(source) else self.eos
            out[n, 0, wanted] = 10.0
            state.rows[n] = (source, length + len(fed))
        return query.answer(out)

    def greedy(self, newest, state, forbidden, *, steps, ends):
        query = Argmax(Forbidden(tuple(forbidden)))
        return self.extend([[token] for token in newest], state, query).tokens


@pytest.fixture(scope="session")
def characters() -> CharacterTokenizer:
    return CharacterTokenizer()


@pytest.fixture(scope="session")
def echo() -> type[EchoBackend]:
    return EchoBackend
