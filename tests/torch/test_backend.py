"""The torch backend: lists of ids as input, float32 logits as output."""

import pytest
import torch

from outrider.errors import ModelError
from tests.helpers import tiny
from tests.helpers.tensor_calls import torch_calls


def test_ragged_sources_equal_each_alone() -> None:
    backend = torch_calls(tiny.seq2seq(dtype=torch.float64))
    sources = [[5, 6, 7, 1], [8, 1], [9, 10, 1]]
    tokens = torch.tensor([[0, 4], [0, 5], [0, 6]])
    together = backend.extend(tokens, backend.encode(sources, capacity=4))
    for row, source in enumerate(sources):
        alone = backend.extend(tokens[row : row + 1], backend.encode([source], capacity=4))
        torch.testing.assert_close(together[row : row + 1], alone)


def test_logits_are_float32_for_all_weight_types() -> None:
    backend = torch_calls(tiny.language_model(dtype=torch.bfloat16))
    state = backend.encode([[], []], capacity=4)
    logits = backend.extend(torch.tensor([[3, 5], [3, 0]]), state, count_B=torch.tensor([2, 1]))
    assert logits.dtype == torch.float32
    assert state.lengths == [2, 1]


def test_only_learned_positions_limit_the_length() -> None:
    assert torch_calls(tiny.seq2seq()).max_length is None
    assert torch_calls(tiny.seq2seq(position="learned", max_positions=77)).max_length == 77


def test_start_tokens() -> None:
    assert torch_calls(tiny.seq2seq(decoder_start_token_id=7)).start == 7
    assert torch_calls(tiny.language_model(bos_token_id=9)).start == 9
    assert torch_calls(tiny.seq2seq(eos_token_id=[2, 4])).eos == 2


def test_a_token_outside_the_vocabulary_is_named() -> None:
    """Reading a config checks it; this one is changed afterwards."""
    model = tiny.seq2seq()
    model.config.eos_token_id = 99
    with pytest.raises(ModelError, match=r"eos_token_id in config\.json is 99, not a token"):
        torch_calls(model)
