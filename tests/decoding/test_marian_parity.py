"""The decoding loops against `generate` of transformers, on the same random Marian weights."""

import pytest
import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from outrider.decoding import DecodeConfig, Request
from outrider.decoding.queries import Argmax, Forbidden
from outrider.torch.backend import TorchBackend
from outrider.torch.models import load_model
from tests.helpers.loops import beam, greedy

VOCAB, PAD, EOS = 40, 0, 1


class UncachedState:
    def __init__(self, source: list, rows: list[list[int]]) -> None:
        self.source, self.rows = source, rows

    @property
    def lengths(self) -> list[int]:
        return [len(row) for row in self.rows]

    def rollback(self, lengths: list[int]) -> None:
        self.rows = [row[:n] for row, n in zip(self.rows, lengths, strict=True)]

    def select(self, rows: list[int]) -> None:
        self.rows = [self.rows[n].copy() for n in rows]
        self.source = [self.source[n] for n in rows]

    def repeat_rows(self, times: int) -> "UncachedState":
        again = [n for n in range(len(self.rows)) for _ in range(times)]
        return UncachedState([self.source[n] for n in again], [self.rows[n].copy() for n in again])


class UncachedMarian:
    """Runs transformers' model on the whole sequence at every step, without a cache."""

    vocab_size, start, eos, pad, max_length = VOCAB, PAD, EOS, PAD, 64
    ends, epsilon, compact_threshold, drafts = (EOS,), 1e-7, 0.0, None

    def __init__(self, model: MarianMTModel) -> None:
        self.model = model

    def encode(self, source, *, capacity, drafting=False) -> UncachedState:
        return UncachedState([list(ids) for ids in source], [[] for _ in source])

    @torch.inference_mode()
    def extend(self, tokens, state, query, *, last=False):
        state.rows = [a + b for a, b in zip(state.rows, tokens, strict=True)]
        ids = padded(state.source)
        logits = self.model(
            input_ids=ids,
            attention_mask=(ids != PAD).long(),
            decoder_input_ids=torch.tensor(state.rows),
        ).logits
        return query.answer(logits[:, -1 if last else -len(tokens[0]) :].numpy())

    def greedy(self, newest, state, forbidden, *, steps, ends):
        query = Argmax(Forbidden(tuple(forbidden)))
        return self.extend([[token] for token in newest], state, query).tokens


def padded(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


@pytest.fixture(scope="module")
def marian() -> MarianMTModel:
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        init_std=1.0,
        activation_function="relu",
        attention_dropout=0.0,
        dropout=0.0,
    )
    model = MarianMTModel(config).eval()
    # Random weights almost never end a sentence; a bias on the end token varies the lengths.
    model.final_logits_bias[0, EOS] = 3.0
    return model


@pytest.fixture(scope="module", params=["uncached", "torch"])
def backend(request, marian, tmp_path_factory):
    """The model of transformers, and ours with its weights read from its folder."""
    if request.param == "uncached":
        return UncachedMarian(marian)
    folder = tmp_path_factory.mktemp("marian")
    marian.save_pretrained(folder)
    return TorchBackend(load_model(folder))


@pytest.fixture(scope="module")
def source() -> list[list[int]]:
    torch.manual_seed(1)
    return [[*torch.randint(2, VOCAB, (n,)).tolist(), EOS] for n in (3, 9, 1, 6, 12, 4, 7, 2)]


def hf_generate(model: MarianMTModel, source: list[list[int]], **options) -> list[tuple[int, ...]]:
    ids = padded(source)
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids, attention_mask=(ids != PAD).long(), do_sample=False, **options
        )
    without_start = out[:, 1:].tolist()
    return [tuple(row[: row.index(EOS)] if EOS in row else row) for row in without_start]


@pytest.mark.parametrize("force_eos", [False, True])
@pytest.mark.parametrize("min_new_tokens", [0, 7])
def test_greedy_tokens_equal_those_of_generate(
    marian, backend, source, force_eos, min_new_tokens
) -> None:
    options = {"max_new_tokens": 14, "bad_words_ids": [[PAD]]}
    options |= {"forced_eos_token_id": EOS} if force_eos else {}
    options |= {"min_new_tokens": min_new_tokens} if min_new_tokens else {}
    expected = hf_generate(marian, source, num_beams=1, **options)
    config = DecodeConfig(
        max_new_tokens=14, suppress=(PAD,), force_eos=force_eos, min_new_tokens=min_new_tokens
    )
    found = greedy(backend, [Request(source=ids) for ids in source], config)
    assert [h.tokens for h in found] == expected
    assert len({len(tokens) for tokens in expected}) > 1


@pytest.mark.parametrize("force_eos", [False, True])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("beams", [2, 4])
def test_beam_tokens_scores_and_order_equal_those_of_generate(
    marian, backend, source, beams, length_penalty, force_eos
) -> None:
    options = {"max_new_tokens": 14, "bad_words_ids": [[PAD]], "length_penalty": length_penalty}
    options |= {"forced_eos_token_id": EOS} if force_eos else {}
    expected = hf_generate(marian, source, num_beams=beams, num_return_sequences=beams, **options)
    config = DecodeConfig(
        beams=beams,
        n_best=beams,
        max_new_tokens=14,
        suppress=(PAD,),
        length_penalty=length_penalty,
        force_eos=force_eos,
    )
    found = beam(backend, [Request(source=ids) for ids in source], config)
    assert [h.tokens for row in found for h in row] == expected
    assert len({len(tokens) for tokens in expected}) > 2
