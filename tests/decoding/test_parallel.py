"""Parallel generation with small models, against its definition; batched rows equal single rows."""

from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.decoding import DecodeConfig, Hypothesis, Request, decode
from outrider.decoding import parallel as writer
from outrider.decoding.queries import Logits
from outrider.decoding.statistics import Statistics
from outrider.errors import ConfigError, InputError, ModelError
from outrider.torch.backend import TorchBackend, TorchDrafts
from outrider.torch.models.configs import CtcConfig, DrafterConfig
from outrider.torch.models.ctc import Ctc
from outrider.torch.models.drafter import Drafter
from outrider.torch.models.state import DecoderState
from tests.helpers import tiny
from tests.helpers.loops import parallel

EOS, PAD = 1, 0
DECODERS = ("ctc", "drafter")

requests = st.lists(
    st.builds(
        Request,
        source=st.lists(st.integers(4, tiny.VOCABULARY - 1), max_size=6).map(lambda s: (*s, EOS)),
        max_new_tokens=st.none() | st.integers(1, 9),
        seed=st.integers(0, 9),
    ),
    min_size=1,
    max_size=5,
)


@cache
def backend(seed: int = 0, *, drafter: bool = True, ctc: bool = True) -> TorchBackend:
    """Random weights in float64, scaled so that slots differ in token and confidence."""
    target = tiny.seq2seq(seed=seed, dtype=torch.float64)
    with torch.no_grad():
        target.tokens.weight.mul_(3)
    side_decoders: dict[str, Any] = {}
    if drafter:
        config = DrafterConfig.for_target(target.config, block=6, train_block=4, rank=8)
        side_decoders["drafter"] = Drafter(config).double()
        with torch.no_grad():
            side_decoders["drafter"].bias[PAD] = -50.0
            side_decoders["drafter"].bias[EOS] = 4.0
    if ctc:
        side_decoders["ctc"] = Ctc(CtcConfig.for_target(target.config, layers=2)).double()
        with torch.no_grad():
            side_decoders["ctc"].bias[PAD] = 4.0
    return TorchBackend(target, **side_decoders)


def config(decoder: str = "ctc", **options: Any) -> DecodeConfig:
    return DecodeConfig(mode="parallel", decoder=decoder, **options)  # type: ignore[arg-type]


def source(*tokens: int) -> Request:
    return Request(source=(*tokens, EOS))


def write(request: Request, decoder: str, **options: Any) -> Hypothesis:
    ((found,),) = parallel(backend(), [request], config(decoder, **options))
    return found


def log_probs(request: Request, tokens: tuple[int, ...]) -> list[float]:
    """Log-probabilities of a text under the model, by teacher forcing."""
    fed = torch.tensor([[PAD, *tokens[:-1]]])
    with torch.no_grad():
        ids = torch.tensor([list(request.source)])
        logits = backend().model(input_ids=ids, decoder_input_ids=fed).logits[0]
    return logits.log_softmax(-1)[range(len(tokens)), list(tokens)].tolist()


class Recorder:
    """A backend that records the known tokens of every call."""

    def __init__(self) -> None:
        self.known: list[Any] = []
        self.states: list[DecoderState] = []
        self.slots = self.drafts = self
        self.per_token, self.longest_text = backend().slots.per_token, 99

    def __getattr__(self, name: str) -> Any:
        return getattr(backend(), name)

    def encode(self, *args: Any, **kwargs: Any) -> DecoderState:
        self.states.append(backend().encode(*args, **kwargs))
        return self.states[-1]

    def fill(self, state: DecoderState, query: Any, known: Any = None) -> Any:
        self.known.append(known)
        return backend().slots.fill(state, query, known)

    def predict(self, newest: list[int], state: DecoderState, known: Any) -> Any:
        self.known.append(known)
        return backend().drafts.predict(newest, state, known)


@settings(max_examples=30)
@given(
    requests=requests,
    decoder=st.sampled_from(DECODERS),
    iterations=st.integers(0, 3),
    candidates=st.sampled_from([1, 3]),
)
def test_a_row_does_not_depend_on_other_rows(requests, decoder, iterations, candidates) -> None:
    options = config(decoder, iterations=iterations, candidates=candidates)
    together = parallel(backend(), requests, options)
    alone = [parallel(backend(), [request], options)[0] for request in requests]
    assert [[(h.tokens, h.finish) for h in row] for row in together] == [
        [(h.tokens, h.finish) for h in row] for row in alone
    ]
    for (ours,), (theirs,) in zip(together, alone, strict=True):
        assert ours.score == (None if theirs.score is None else pytest.approx(theirs.score))


@settings(max_examples=30)
@given(requests=requests, suppress=st.sets(st.integers(0, 22), max_size=15))
def test_ctc_takes_the_most_likely_path(requests, suppress) -> None:
    """Slot by slot; suppressing the blank as a token does not remove it from the path."""
    ctc = backend().ctc_decoder
    found = parallel(backend(), requests, config(suppress=tuple(suppress)))
    for request, (ours,) in zip(requests, found, strict=True):
        with torch.no_grad():
            memory = ctc.encode(torch.tensor([list(request.source)]), None)
            logits = ctc.slots(memory)[0].tolist()
        allowed = [token for token in range(23) if token not in (suppress | {EOS}) - {PAD}]
        path = [max(allowed, key=row.__getitem__) for row in logits]
        text = [token for token, _ in groupby(path) if token != PAD]
        limit = request.max_new_tokens or 256
        assert list(ours.tokens) == text[:limit]
        assert ours.finish == ("eos" if len(text) < limit else "length")
        assert ours.score is None


@settings(max_examples=20)
@given(requests=requests)
def test_the_drafters_block_is_read_up_to_its_end_token(requests) -> None:
    found = parallel(backend(), requests, config("drafter"))
    for request, (ours,) in zip(requests, found, strict=True):
        limit = request.max_new_tokens or 256
        slots = min(limit, (3 * len(request.source) + 1) // 2 + 4)
        state = backend().encode([request.source], capacity=slots, drafting=True)
        (drafted,) = backend().drafts.draft([PAD], state, [slots]).tokens
        ended = EOS in drafted
        words = drafted[: drafted.index(EOS)] if ended else drafted
        assert list(ours.tokens) == [token for token in words if token != PAD]
        assert ours.finish == ("eos" if ended else "length")


def test_further_ctc_passes_keep_the_most_confident_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slot by slot: a known slot keeps the probability from the pass that predicted it."""
    monkeypatch.setattr(writer, "MOST_KNOWN", 0.8)  # otherwise rows this short have no known slots
    recorder, rows = Recorder(), [source(5, 6, 7, 8, 9), source(11, 12)]
    parallel(recorder, rows, config(iterations=3))  # type: ignore[arg-type]
    first, *later = recorder.known
    assert first is None
    for row, slots in enumerate((12, 6)):
        said, sure = [-1] * slots, [0.0] * slots
        told: list[list[int]] | None = None
        for count, following in enumerate(later, start=1):
            logits_BUV = backend().slots.fill(recorder.states[0], Logits(), told)
            logits = torch.from_numpy(logits_BUV[row].copy())
            logits[:, EOS] = -torch.inf
            prob, path = (x.tolist() for x in logits.softmax(-1).max(-1))
            for u in range(slots):
                if told is None or told[row][u] < 0:
                    said[u], sure[u] = path[u], prob[u]
            most = int(slots * 0.8 * (4 - count) / 4)
            keep = sorted(range(slots), key=sure.__getitem__, reverse=True)[:most]
            assert following is not None
            expected = [said[u] if u in keep else -1 for u in range(slots)]
            assert following[row] == expected + [-1] * (12 - slots)
            told = following


def test_the_share_of_known_slots_is_that_of_training() -> None:
    recorder, request = Recorder(), source(*[4 + n % 19 for n in range(39)])
    parallel(recorder, [request], config(iterations=4))  # type: ignore[arg-type]
    told = [sum(token >= 0 for token in one[0]) for one in recorder.known if one is not None]
    assert told == [9, 7, 4, 2], "of 80 slots, at most 15 %, fewer from pass to pass"


def test_further_iterations_use_the_drafter_if_present() -> None:
    rows, again = [source(5, 6, 7), source(9, 4)], {"iterations": 2}
    free = DecodeConfig(mode="parallel", **again)
    assert parallel(backend(), rows, free) == parallel(backend(), rows, config("drafter", **again))
    alone = backend(drafter=False)
    assert parallel(alone, rows, free) == parallel(alone, rows, config("ctc", **again))


def test_further_passes_of_the_drafter_keep_nothing_after_the_end() -> None:
    recorder, rows = Recorder(), [source(n, n + 1, n + 2, 30 - n) for n in range(8, 20)]
    parallel(recorder, rows, config("drafter", iterations=1))  # type: ignore[arg-type]
    first, told = map(np.array, recorder.known)
    assert (first == -1).all()
    said_of, prob_of = backend().drafts.predict([PAD] * 12, recorder.states[0], first.tolist())
    tokens, prob = np.array(said_of), np.array(prob_of)
    for row, said in enumerate(said_of):
        used = said.index(EOS) + 1 if EOS in said else len(said)
        kept = told[row, :used] >= 0
        assert int(kept.sum()) == used // 2
        assert (told[row, used:] == -1).all()
        assert told[row, :used][kept].tolist() == tokens[row, :used][kept].tolist()
        if 0 < used // 2 < used:
            assert prob[row, :used][kept].min() >= prob[row, :used][~kept].max()
    assert any(EOS in said for said in said_of)


@pytest.mark.parametrize("decoder", DECODERS)
def test_known_tokens_are_kept(decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last known tokens are part of the text, even if the next pass prefers other tokens."""
    monkeypatch.setattr(writer.CtcWriter, "_share", writer.Writer._share)  # else too few are known
    recorder, request = Recorder(), source(5, 6, 7, 8, 9)
    ((found,),) = parallel(recorder, [request], config(decoder, iterations=9))  # type: ignore[arg-type]
    told = recorder.known[-1]
    assert told is not None
    words = [t for t, _ in groupby(told[0]) if t not in (PAD, EOS, -1)]
    rest = iter(found.tokens)
    assert all(word in rest for word in words)  # in this order, not necessarily adjacent
    assert len(words) > 1


@pytest.mark.parametrize("decoder", DECODERS)
def test_candidates_are_scored_by_the_model(decoder: str) -> None:
    for request in (source(5, 6, 7), source(9, 4), source(17, 18, 6, 5)):
        alone = write(request, decoder, scores=True)
        best = write(request, decoder, candidates=8)
        assert alone.tokens == write(request, decoder).tokens
        for one in (alone, best):
            said = (*one.tokens, *[EOS] * (one.finish == "eos"))
            expected = log_probs(request, said)
            assert one.score == pytest.approx(sum(expected) / len(expected), rel=1e-5)
        assert best.score is not None
        assert alone.score is not None
        assert best.score >= alone.score


@pytest.mark.parametrize("decoder", DECODERS)
def test_candidates_differ_and_are_reproducible_by_seed(decoder: str) -> None:
    def texts(**options: Any) -> list[tuple[int, ...]]:
        rows = [Request(source=(n, 22 - n, n + 1, EOS), **options) for n in range(4, 14)]
        return [h.tokens for (h,) in parallel(backend(), rows, config(decoder, candidates=4))]

    assert texts(seed=3) == texts(seed=3)
    assert texts(seed=3) != texts(seed=4)
    plain = [write(Request(source=(n, 22 - n, n + 1, EOS)), decoder).tokens for n in range(4, 14)]
    assert texts(seed=3) != plain


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("force_eos", [False, True])
def test_texts_stop_at_the_limits_of_greedy(decoder: str, force_eos: bool) -> None:
    request = next(
        r for n in range(4, 22) if len(write(r := source(n, n + 1, 5, n), decoder).tokens) > 3
    )
    whole = write(request, decoder)
    cut = write(request, decoder, max_new_tokens=3, force_eos=force_eos)
    assert cut == Hypothesis(whole.tokens[: 2 if force_eos else 3], "length")
    scored = write(request, decoder, max_new_tokens=1, force_eos=force_eos, candidates=2)
    assert len(scored.tokens) <= 1


@pytest.mark.parametrize("decoder", DECODERS)
def test_suppressed_tokens_never_appear(decoder: str) -> None:
    rows = [source(n, n + 1, n + 2) for n in range(4, 18)]
    odd = tuple(range(1, 23, 2))
    found = parallel(backend(), rows, config(decoder, suppress=odd, iterations=1))
    assert not {token for (h,) in found for token in h.tokens} & {*odd, PAD}


def test_statistics_count_passes_and_time() -> None:
    stats, rows = Statistics(), [source(5, 6, 7), source(9)]
    found = parallel(backend(), rows, config(iterations=2, candidates=2), stats=stats)
    assert stats.rounds == 2 * 3
    assert stats.tokens == sum(len(h.tokens) + (h.finish == "eos") for (h,) in found)
    assert all(stats.seconds[part] > 0 for part in ("encode", "draft", "verify", "loop"))


def test_no_autoregressive_caches_are_allocated() -> None:
    recorder = Recorder()
    parallel(recorder, [source(5, 6)], config())  # type: ignore[arg-type]
    assert (recorder.states[0].caches, recorder.states[0].sources) == ([], [])


def test_decode_prefers_the_ctc_decoder() -> None:
    rows = [source(5, 6, 7)]
    free = DecodeConfig(mode="parallel")
    assert decode(backend(), rows, free) == parallel(backend(), rows, config("ctc"))
    drafted = parallel(backend(ctc=False), rows, free)
    assert drafted == parallel(backend(), rows, config("drafter"))
    assert parallel(backend(), [], free) == []


def test_unsupported_options_are_refused() -> None:
    rows = [source(5)]
    with pytest.raises(ConfigError, match=r"^min_new_tokens: mode parallel cannot delay"):
        parallel(backend(), rows, config(min_new_tokens=2))
    with pytest.raises(InputError, match=r"^mode parallel does not continue a target prompt"):
        parallel(backend(), [Request(source=(5, EOS), prompt=(4,))], config())
    with pytest.raises(ModelError, match=r"^this model has no CTC decoder; train one"):
        parallel(backend(ctc=False), rows, config("ctc"))
    with pytest.raises(ModelError, match=r"^this model has no drafter, which mode par"):
        parallel(backend(drafter=False), rows, config("drafter"))
    with pytest.raises(ModelError, match=r"^mode parallel needs a CTC decoder or a drafter"):
        parallel(backend(drafter=False, ctc=False), rows, DecodeConfig(mode="parallel"))
    with pytest.raises(ModelError, match=r"needs a source to read; a language model has none$"):
        TorchBackend(tiny.language_model(), ctc=backend().ctc_decoder)
    plain = backend().encode([(5, EOS)], capacity=4)
    with pytest.raises(ModelError, match="was not opened for parallel decoding"):
        backend().slots.fill(plain, Logits())
    with pytest.raises(ModelError, match="was not opened for drafting"):
        backend().drafts.predict([PAD], plain, [[-1]])


@pytest.mark.parametrize("candidates", [1, 3])
def test_a_drafter_not_trained_on_whole_texts_is_limited_to_its_block(
    candidates, monkeypatch
) -> None:
    inner = backend()
    asked: list[int] = []

    class Short(TorchDrafts):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            self.longest_text = 5

        def predict(self, newest: Any, state: Any, known: Any) -> Any:
            asked.append(len(known[0]))
            return super().predict(newest, state, known)

        def draft(self, newest: Any, state: Any, tokens: list[int], **more: Any) -> Any:
            asked.extend(tokens)
            return super().draft(newest, state, tokens, **more)

    monkeypatch.setattr("outrider.torch.backend.TorchDrafts", Short)
    options = config("drafter", candidates=candidates)
    ((found,),) = parallel(inner, [source(5, 6, 7, 8, 9, 10)], options)
    assert set(asked) == {5}
    assert len(found.tokens) < 5 or found.finish == "length"


def test_a_drafter_trained_on_whole_texts_may_generate_long_ones() -> None:
    target = tiny.seq2seq().config
    assert DrafterConfig.for_target(target, block=6, train_block=4).longest_text > 1000
    short = DrafterConfig.for_target(target, block=6, train_block=4, whole=False)
    assert short.longest_text == 6
