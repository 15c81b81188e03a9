"""Sampling in tandem: the distribution of outputs, enumerated, against many samples."""

import math
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.decoding import DecodeConfig, Proposal, Request, Statistics
from outrider.decoding import accept as accept_module
from outrider.decoding.protocol import Candidates
from tests.helpers.loops import sample, tandem

VOCABULARY, EOS, CODES = 4, 1, 4099
LENGTH, ROWS = 3, 6000


class Prefixes:
    """Rows as hashes of their tokens, with the history that rollback needs."""

    def __init__(self, rows: int) -> None:
        self.codes = [[0] for _ in range(rows)]

    @property
    def lengths(self) -> list[int]:
        return [len(codes) - 1 for codes in self.codes]

    def rollback(self, lengths: list[int]) -> None:
        for codes, length in zip(self.codes, lengths, strict=True):
            del codes[length + 1 :]

    def select(self, rows: list[int]) -> None:
        self.codes = [self.codes[n] for n in rows]


class Tables:
    """A model and a drafter that are tables over the text; the drafter's may depend on its anchor.

    `q` gives probability to three of the four tokens only.
    """

    vocab_size, start, eos, pad, max_length = VOCABULARY, 0, EOS, 0, None
    ends, compact_threshold = (EOS,), 0.0
    on_gpu = False
    """Whether scores are tensors, as they are on a GPU, or numpy arrays."""
    longest, longest_text, epsilon, seen_by_drafter = 3, 3, 1e-7, 3

    def __init__(self, *, anchored: bool, seed: int = 0) -> None:
        dice = torch.Generator().manual_seed(seed)
        self.p = torch.randn(CODES, VOCABULARY, generator=dice)
        self.q = 1.5 * torch.randn(CODES, VOCABULARY, generator=dice)
        self.anchored = anchored
        self.drafts = self

    def encode(self, source, *, capacity, drafting=False) -> Prefixes:
        return Prefixes(len(source))

    def extend(self, tokens, state, query, *, last=False):
        for codes, fed in zip(state.codes, tokens, strict=True):
            for token in fed:
                codes.append(follow(codes[-1], token))
        width = max(map(len, tokens))
        logits = torch.full((len(tokens), width, VOCABULARY), math.nan)
        for row, codes, fed in zip(logits, state.codes, tokens, strict=True):
            row[: len(fed)] = self.p[torch.tensor(codes[len(codes) - len(fed) :])]
        return query.answer(logits.clone() if self.on_gpu else logits.clone().numpy())

    def draft(self, newest, state, tokens, *, temperature=1.0, uniform=None) -> Proposal:
        codes = [follow(c[-1], token) for c, token in zip(state.codes, newest, strict=True)]
        code_B = anchor_B = torch.tensor(codes)
        parts = []
        for place in range(max(tokens)):
            ids_BC, prob_BC = self.drafted(code_B, anchor_B, temperature)
            if uniform is None:
                pick_B1 = prob_BC.argmax(-1, keepdim=True)
            else:
                mass_BC = prob_BC.double().cumsum(-1)
                number_B1 = torch.tensor([row[place : place + 1] for row in uniform])
                wanted = (1 - number_B1.double()) * mass_BC[:, -1:]
                pick_B1 = torch.searchsorted(mass_BC, wanted)
            token_B = ids_BC.gather(-1, pick_B1)[:, 0]
            parts.append((token_B, prob_BC.gather(-1, pick_B1)[:, 0], ids_BC, prob_BC))
            code_B = follow(code_B, token_B)
        tokens_BK, sure_BK, ids_BKC, prob_BKC = (
            torch.stack(part, dim=1) for part in zip(*parts, strict=True)
        )
        if not self.on_gpu:
            ids_BKC, prob_BKC = ids_BKC.numpy(), prob_BKC.numpy()
        said, sure = (
            [row[:count] for row, count in zip(part.tolist(), tokens, strict=True)]
            for part in (tokens_BK, sure_BK)
        )
        return Proposal(said, sure, Candidates(ids_BKC, prob_BKC))

    def drafted(self, code_B, anchor_B, temperature=1.0) -> tuple[Tensor, Tensor]:
        place_B = (code_B + 7 * anchor_B) % CODES if self.anchored else code_B
        score_BC, ids_BC = (self.q[place_B] / temperature).topk(self.seen_by_drafter)
        return ids_BC, score_BC.softmax(-1)


def follow(code, token):
    return (code * 31 + token + 1) % CODES


def tempered(logits: Tensor, config: DecodeConfig) -> Tensor:
    """The distribution of sampling, written out."""
    logits = logits.double() / config.temperature
    if config.top_k is not None:
        logits = logits.masked_fill(logits < logits.topk(config.top_k).values[-1], -math.inf)
    return logits.softmax(-1)


def enumerate_outputs(
    model: Tables, config: DecodeConfig, code: int, said: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield every text of up to LENGTH tokens with its probability, the product of the mixtures."""
    p = tempered(model.p[code], config)
    if config.gamma:
        ids, prob = model.drafted(torch.tensor([code]), torch.tensor([code]), config.temperature)
        p = (1 - config.gamma) * p
        p.scatter_add_(0, ids[0], config.gamma * prob[0].double())
    for token, chance in enumerate(p.tolist()):
        text = (*said, token)
        if token == EOS or len(text) == LENGTH:
            yield text, chance
        else:
            for rest, share in enumerate_outputs(model, config, follow(code, token), text):
                yield rest, chance * share


def surprise(
    model: Tables,
    config: DecodeConfig,
    stats: Statistics | None = None,
    text: tuple[int, ...] = (),
) -> float:
    """Chi-square of sampled against enumerated outputs, in standard deviations from its mean."""
    requests = [Request(seed=n, text=text) for n in range(ROWS)]
    drawn = Counter(
        (*h.tokens, EOS) if h.finish == "eos" else h.tokens
        for h in tandem(model, requests, config, stats=stats)
    )
    expected = dict(enumerate_outputs(model, config, follow(0, model.start)))
    assert sum(expected.values()) == pytest.approx(1)
    assert set(drawn) <= {text for text, chance in expected.items() if chance > 0}
    cells = [(drawn[text], ROWS * chance) for text, chance in expected.items()]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5]
    if sum(want for _, want in rare) > 0:
        cells.append((sum(got for got, _ in rare), sum(want for _, want in rare)))
    square = sum((got - want) ** 2 / want for got, want in cells)
    freedom = len(cells) - 1
    return (square - freedom) / math.sqrt(2 * freedom)


def sampling(**options) -> DecodeConfig:
    values = {"strategy": "sample", "max_new_tokens": LENGTH, "draft_tokens": 3}
    return DecodeConfig(mode="tandem", **values | options)


@pytest.mark.parametrize(
    "options",
    [{}, {"draft_tokens": 1}, {"draft_tokens": 2}, {"temperature": 0.6, "top_k": 3}],
    ids=str,
)
def test_without_gamma_outputs_follow_the_model(options) -> None:
    """For any drafter; this one depends on where its block began."""
    assert abs(surprise(Tables(anchored=True), sampling(**options))) < 4


@pytest.mark.parametrize("draft_tokens", [1, 2, 3])
@pytest.mark.parametrize("gamma", [0.25, 0.5, 1.0])
def test_with_gamma_every_token_follows_the_mixture(gamma: float, draft_tokens: int) -> None:
    """For any block length; a token after a block comes from the mixture too."""
    stats, config = Statistics(), sampling(gamma=gamma, draft_tokens=draft_tokens)
    assert abs(surprise(Tables(anchored=False), config, stats)) < 4
    assert stats.acceptance >= gamma


@pytest.mark.parametrize("gamma", [0.0, 0.25, 0.5])
def test_a_wrong_resampling_rule_is_detected(gamma: float, monkeypatch) -> None:
    """Resampling from p instead of the excess over q is nearly correct, and is detected."""

    def wrong(p_BV, q, rows, place):
        return p_BV

    monkeypatch.setattr(accept_module, "_excess", wrong)
    assert surprise(Tables(anchored=False), sampling(gamma=gamma)) > 20


def test_a_slightly_too_high_acceptance_is_detected(monkeypatch) -> None:
    right = accept_module._accepted

    def wrong(prob_BTV, drafted, q, numbers):
        return right(1.2 * prob_BTV, drafted, q, numbers)

    monkeypatch.setattr(accept_module, "_accepted", wrong)
    assert surprise(Tables(anchored=True), sampling()) > 8


@pytest.mark.parametrize("gamma", [0.0, 0.4])
@pytest.mark.parametrize("strategy", ["sample", "greedy"])
def test_tensors_give_the_same_result_as_arrays(gamma: float, strategy: str) -> None:
    config = DecodeConfig(
        mode="tandem",
        strategy=strategy,
        gamma=gamma,
        draft_tokens=3,
        max_new_tokens=12,
        scores=True,
    )
    requests = [Request(seed=n) for n in range(200)]
    host, device = Tables(anchored=True), Tables(anchored=True)
    device.on_gpu = True
    found = tandem(host, requests, config)
    there = tandem(device, requests, config)
    assert [h.tokens for h in found] == [h.tokens for h in there]
    assert [h.score for h in found] == pytest.approx([h.score for h in there], abs=1e-5)


@pytest.mark.parametrize("gamma", [0.3, 0.7])
def test_gamma_is_the_lower_bound_of_acceptance(gamma: float) -> None:
    """If the model gives no probability to the drafts, the acceptance rate equals gamma."""
    model = Tables(anchored=False)
    model.seen_by_drafter = 1
    model.p = torch.zeros(CODES, VOCABULARY).scatter(-1, model.q.argmax(-1, keepdim=True), -50.0)
    stats = Statistics()
    tandem(model, [Request(seed=n) for n in range(2000)], sampling(gamma=gamma), stats=stats)
    error = math.sqrt(gamma * (1 - gamma) / sum(stats.judged))
    assert stats.acceptance == pytest.approx(gamma, abs=4 * error)


def test_drafts_of_the_model_itself_are_always_accepted() -> None:
    model = Tables(anchored=False)
    model.seen_by_drafter, model.q = VOCABULARY, model.p
    stats = Statistics()
    tandem(model, [Request(seed=n) for n in range(500)], sampling(), stats=stats)
    assert stats.acceptance > 0.999  # q is rounded to float32


@settings(max_examples=40)
@given(
    seeds=st.lists(st.integers(0, 2**31), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    gamma=st.sampled_from([0.0, 0.4]),
    top_p=st.none() | st.floats(0.1, 1.0),
    k=st.none() | st.integers(1, 3),
)
def test_a_row_depends_on_its_seed_alone(seeds, order, gamma, top_p, k) -> None:
    options = {"max_new_tokens": 12, "gamma": gamma, "top_p": top_p, "draft_tokens": k}
    config, model = sampling(**options), Tables(anchored=True)
    requests = [Request(seed=seed, max_new_tokens=1 + 2 * n) for n, seed in enumerate(seeds)]
    alone = {id(request): tandem(model, [request], config)[0] for request in requests}
    shuffled = requests.copy()
    order.shuffle(shuffled)
    assert tandem(model, shuffled, config) == [alone[id(request)] for request in shuffled]


def test_forbidden_tokens_are_never_sampled() -> None:
    model = Tables(anchored=True)
    config = sampling(max_new_tokens=6, suppress=(2,), min_new_tokens=3, gamma=0.9)
    for hypothesis in tandem(model, [Request(seed=n) for n in range(300)], config):
        assert 2 not in hypothesis.tokens
        assert len(hypothesis.tokens) >= 3


def test_drafts_of_forbidden_tokens_only_leave_the_choice_to_the_model() -> None:
    model = Tables(anchored=False)
    model.seen_by_drafter = 1
    model.q = torch.zeros(CODES, VOCABULARY)
    model.q[:, 2] = 9.0
    config = sampling(max_new_tokens=4, suppress=(2,), gamma=1.0, top_k=1)
    found = tandem(model, [Request()], config)
    assert found == sample(
        model, [Request()], DecodeConfig(top_k=1, max_new_tokens=4, suppress=(2,))
    )


def test_scores_are_log_probabilities_of_the_model() -> None:
    model = Tables(anchored=True)
    config = sampling(gamma=0.5, scores=True, max_new_tokens=9)
    for hypothesis in tandem(model, [Request(seed=n) for n in range(20)], config):
        code, expected = follow(0, model.start), 0.0
        for token in (*hypothesis.tokens, *([EOS] if hypothesis.finish == "eos" else [])):
            expected += model.p[code].log_softmax(-1)[token].item()
            code = follow(code, token)
        assert hypothesis.score == pytest.approx(expected, abs=1e-4)
