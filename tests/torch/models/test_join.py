"""Rows that join a running state give the same output as alone, for every attention."""

from functools import partial
from typing import Any

import pytest
import torch

from outrider.torch.models import Drafter, DrafterConfig, LanguageModel
from outrider.torch.nn.attention import attention_kinds, load_attention
from tests.helpers import tiny
from tests.helpers.tensor_calls import torch_calls


def patterned(kind: str, **options: Any) -> LanguageModel:
    spec = {"kind": kind, **tiny.SMALL.get(kind, {})}
    return tiny.language_model(attention=spec, num_attention_heads=4, **options)


MODELS: dict[str, Any] = {
    "seq2seq": tiny.seq2seq,
    "rotary": lambda **o: tiny.language_model(position="rotary", num_key_value_heads=1, **o),
    "learned": lambda **o: tiny.language_model(position="learned", max_positions=512, **o),
    "relative": lambda **o: tiny.language_model(position="relative", **o),
    "bucketed": lambda **o: tiny.language_model(position="bucketed", head_dim=6, **o),
    "normed": lambda **o: tiny.language_model(rms_norm=True, embedding_norm=True, **o),
    "alibi": lambda **o: tiny.language_model(position="alibi", **o),
    "coordinate": lambda **o: tiny.language_model(position="coordinate", **o),
    "memory": lambda **o: tiny.language_model(position="relative", memory=2, max_positions=3, **o),
    "gru": lambda **o: tiny.language_model(core="gru", **o),
    "pondering": lambda **o: tiny.language_model(core="gru", pondering={"bias": -1.0}, **o),
    "separable_conv": lambda **o: tiny.language_model(transition="separable_conv", **o),
    "position_mlp": lambda **o: tiny.language_model(position_mlp=3, **o),
    "position_correlation": lambda **o: tiny.language_model(position_correlation=2, **o),
    **{
        kind: partial(patterned, kind)
        for kind in attention_kinds()
        if load_attention(kind).Attention.causal_ok
    },
}


def ids(dice: torch.Generator, length: int) -> list[int]:
    return torch.randint(3, tiny.VOCABULARY, (length,), generator=dice).tolist()


@pytest.mark.parametrize("drafting", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_joined_rows_equal_rows_alone(kind: str, drafting: bool) -> None:
    """Four rows with different capacities join one after the other; one replaces another."""
    model = MODELS[kind](seed=3, dtype=torch.float64)
    drafter = None
    if drafting:
        config = DrafterConfig.for_target(model.config, rank=4, candidates=5, dropout=0.0)
        drafter = Drafter(config).double()
    backend = torch_calls(model, drafter=drafter)
    dice = torch.Generator().manual_seed(5)
    texts = [ids(dice, length) for length in (90, 150, 40, 20)]
    sources = [ids(dice, 3 + 4 * n) if kind == "seq2seq" else [] for n in range(4)]
    open_ = partial(backend.encode, drafting=drafting)

    alone, drafts = [], []
    for source, text in zip(sources, texts, strict=True):
        state = open_([source], capacity=len(text) + 8)
        steps = [backend.extend(torch.tensor([[token]]), state) for token in text]
        alone.append(torch.cat(steps, 1)[0])
        if drafting:
            drafts.append(backend.draft(torch.tensor([[7]]), state, 4))

    state, fed = open_([sources[0]], capacity=len(texts[0]) + 8), [0]
    rows, found = [0], [[] for _ in texts]

    def step(times: int) -> None:
        for _ in range(times):
            tokens = torch.tensor([[texts[row][fed[n]]] for n, row in enumerate(rows)])
            scores = backend.extend(tokens, state)
            for n, row in enumerate(rows):
                found[row].append(scores[n, 0])
                fed[n] += 1

    step(3)
    for row, at, begun, times in ((1, 1, 5, 20), (2, 2, 0, 40), (3, 2, 2, 18)):
        new = open_([sources[row]], capacity=len(texts[row]) + 8)
        if begun:
            scores = backend.extend(torch.tensor([texts[row][:begun]]), new)
            found[row] += scores[0]
        state.join(new, [at])
        rows[at:], fed[at:] = [row], [begun]
        step(times)
    if drafting:
        draft = backend.draft(torch.tensor([[7]] * 3), state, 4)
        assert torch.equal(draft.tokens_BK[2], drafts[3].tokens_BK[0])
        torch.testing.assert_close(draft.prob_BKC[2], drafts[3].prob_BKC[0])
    state.select([1, 0])
    rows, fed = [rows[1], rows[0]], [fed[1], fed[0]]
    step(9)
    for row, scores in enumerate(found):
        torch.testing.assert_close(torch.stack(scores), alone[row][: len(scores)])
    assert len(found[3]) == 20
