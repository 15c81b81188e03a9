"""Invalid calls of the native core give an error message and leave it usable."""

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.decoding import DecodeConfig, Request
from outrider.decoding.queries import NOTHING_FORBIDDEN, Argmax, Forbidden, Logits
from outrider.errors import ConfigError, InputError, ModelError
from tests.helpers import native_tiny, tiny
from tests.helpers.loops import greedy
from tests.helpers.tensor_calls import TensorCalls, native_calls

core = pytest.importorskip("outrider_native", reason="outrider-native is not installed")

from outrider.backends.native import INSTRUCTION_SET, NativeState  # noqa: E402
from outrider.backends.native_parts import model_shape, weights  # noqa: E402
from outrider.torch.models.folder import parts_of  # noqa: E402

WORDS = 37
SOURCE = [[4, 5, 1], [6, 1]]
TOKENS_BT = torch.tensor([[0, 7, 8], [0, 9, 3]])


@pytest.fixture(scope="module")
def backend() -> TensorCalls:
    model = native_tiny.build("marian")
    parts = {"drafter": native_tiny.build_drafter(model), "ctc": native_tiny.build_ctc(model)}
    return native_calls(model, threads=2, **parts)


def open_state(backend: TensorCalls) -> NativeState:
    """Open two rows of three tokens each, with a capacity of 10."""
    state = backend.encode(SOURCE, capacity=10, drafting=True, parallel=True)
    backend.extend(TOKENS_BT, state)
    return state


def verify(
    backend: TensorCalls,
    state: NativeState,
    newest: list[int],
    *,
    tokens: tuple[int, ...] = (2, 2),
    cached: tuple[int, ...] = (3, 3),
    forbidden: Forbidden = NOTHING_FORBIDDEN,
) -> Any:
    query = Argmax(forbidden)
    return backend.drafts.draft_and_verify(
        newest, state, tokens, query, cached=cached, min_survival=0.0
    )


def draft(backend: TensorCalls, state: NativeState, tokens: list[int], **options: Any) -> Any:
    return backend.drafts.draft([3, 4], state, tokens, **options)


def join(backend: TensorCalls, state: NativeState, at: list[int]) -> None:
    state.join(open_state(backend), at)


Call = Callable[[TensorCalls, NativeState], Any]
LAST_B1 = torch.tensor([[3], [4]])
wrong_calls: dict[str, tuple[Call, str]] = {
    "id too large": (
        lambda b, s: b.extend(torch.tensor([[3], [WORDS]]), s),
        "token 37 is not one of the 37 tokens of this model",
    ),
    "id below zero": (lambda b, s: b.extend(torch.tensor([[3], [-1]]), s), "token -1 is not"),
    "too many tokens": (
        lambda b, s: b.extend(torch.zeros(2, 8, dtype=torch.long), s),
        "11 tokens exceed the capacity of 10",
    ),
    "too few rows": (lambda b, s: b.extend(torch.tensor([[3]]), s), "one list of tokens"),
    "too many rows": (lambda b, s: b.extend(torch.tensor([[3]] * 3), s), "one list of tokens"),
    "too many tokens for one row": (
        lambda b, s: b.extend([[3] * 8, [4]], s, Logits()),
        "11 tokens exceed the capacity of 10",
    ),
    "forbidden id": (lambda b, s: b.likeliest([[3], [4]], s, [WORDS]), "token 37 is not"),
    "argmax of a wrong id": (lambda b, s: b.likeliest([[3], [-4]], s, []), "token -4 is not"),
    "argmax of other rows": (lambda b, s: b.likeliest([[3]], s, []), "one list of tokens"),
    "forbidden to other rows": (
        lambda b, s: b.extend([[3], [4]], s, Argmax(Forbidden((), (1,), (1, 1, 1)))),
        "one number for each row",
    ),
    "round of a wrong id": (lambda b, s: verify(b, s, [3, WORDS]), "token 37 is not"),
    "round of other rows": (lambda b, s: verify(b, s, [3]), "one token and one count"),
    "round back too far": (lambda b, s: verify(b, s, [3, 4], cached=(3, 4)), "only undo tokens"),
    "round of fewer than none": (lambda b, s: verify(b, s, [3, 4], tokens=(1, -1)), "cannot draft"),
    "round too far": (lambda b, s: verify(b, s, [3, 4], tokens=(0, 8)), "exceeds the capacity"),
    "round with counts of other rows": (
        lambda b, s: verify(b, s, [3, 4], tokens=(2,)),
        "one token and one count",
    ),
    "round with a forbidden id": (
        lambda b, s: verify(b, s, [3, 4], forbidden=Forbidden((WORDS,))),
        "token 37 is not",
    ),
    "round with a forbidden end": (
        lambda b, s: verify(b, s, [3, 4], forbidden=Forbidden((), (WORDS,), (1, 0))),
        "token 37 is not",
    ),
    "rollback too far": (
        lambda b, s: (b.extend(LAST_B1, s), s.rollback([2, 4])),
        "only undo tokens of the last extend",
    ),
    "rollback forward": (lambda b, s: s.rollback([4, 3]), "only undo tokens"),
    "rollback of other rows": (lambda b, s: s.rollback([3]), "one length per row"),
    "select out of range": (lambda b, s: s.select([0, 2]), "no such row"),
    "select below zero": (lambda b, s: s.select([-1]), "no such row"),
    "join at one place": (lambda b, s: join(b, s, [1, 1]), "two rows for place 1"),
    "join with a gap": (lambda b, s: join(b, s, [2, 4]), "no place 4"),
    "join below zero": (lambda b, s: join(b, s, [0, -1]), "no place -1"),
    "join of other rows": (lambda b, s: join(b, s, [2]), "one place for each row"),
    "join itself": (lambda b, s: s.join(s, [2, 3]), "cannot join itself"),
    "join of another kind": (
        lambda b, s: s.join(b.encode(SOURCE, capacity=10), [2, 3]),
        "opened for different modes",
    ),
    "fewer slots than none": (lambda b, s: draft(b, s, [2, -1]), "cannot draft -1 tokens"),
    "too many slots": (lambda b, s: b.draft(LAST_B1, s, 8), "exceeds the capacity"),
    "far too many slots": (lambda b, s: b.draft(LAST_B1, s, 2**21), "draft: "),
    "draft after a wrong id": (
        lambda b, s: b.draft(torch.tensor([[3], [WORDS]]), s, 2),
        "token 37 is not",
    ),
    "draft of other rows": (lambda b, s: b.draft(LAST_B1[:1], s, 2), "one token and one count"),
    "too few numbers": (
        lambda b, s: draft(b, s, [1, 2], uniform=[[0.5], [0.5]]),
        "a number, or a known token, for every slot",
    ),
    "numbers of other rows": (
        lambda b, s: draft(b, s, [1, 2], uniform=[[0.5, 0.5]]),
        "numbers and known tokens for each row",
    ),
    "temperature zero": (
        lambda b, s: b.draft(LAST_B1, s, 2, temperature=0.0),
        "temperature must be above zero",
    ),
    "temperature nan": (
        lambda b, s: b.draft(LAST_B1, s, 2, temperature=float("nan")),
        "temperature must be above zero",
    ),
    "known id too large": (
        lambda b, s: b.predict(LAST_B1, s, torch.tensor([[-1, WORDS], [-1, -1]])),
        "token 37 is not",
    ),
    "known id of a slot too large": (
        lambda b, s: b.ctc(s, torch.full((2, 6), WORDS)),
        "token 37 is not",
    ),
    "slots of another shape": (
        lambda b, s: b.ctc(s, torch.full((2, 5), -1)),
        r"ctc: known tokens must be \[rows, slots\]",
    ),
    "no sources": (lambda b, s: b.encode([], capacity=3), "no sources"),
    "empty source": (lambda b, s: b.encode([[3], []], capacity=3), "a source is empty"),
    "source id": (lambda b, s: b.encode([[3, WORDS]], capacity=3), "token 37 is not"),
    "capacity below zero": (lambda b, s: b.encode(SOURCE, capacity=-1), "capacity -1"),
    "capacities of other rows": (
        lambda b, s: b.encode(SOURCE, capacity=[3]),
        "one capacity for each source",
    ),
    "capacity too large": (lambda b, s: b.encode(SOURCE, capacity=2**31 - 1), "is out of range"),
}


@pytest.mark.parametrize("name", wrong_calls)
def test_an_invalid_call_is_refused_and_the_state_stays_usable(backend, name) -> None:
    call, message = wrong_calls[name]
    expected = backend.extend(LAST_B1, open_state(backend))
    drafted = backend.draft(LAST_B1, open_state(backend), 3)
    state = open_state(backend)
    with pytest.raises(InputError, match=message):
        call(backend, state)
    if len(state.lengths) != 2:
        return  # the valid part of the call has been executed
    state.rollback([3, 3])
    for found, other in zip(backend.draft(LAST_B1, state, 3), drafted, strict=True):
        assert torch.equal(found, other)
    assert torch.equal(backend.extend(LAST_B1, state), expected)


@pytest.mark.parametrize(
    "tokens",
    [[[1.5], [2.5]], [["a"], ["b"]], [3, 4], [[3], None], None, [[3], [2**40]]],
    ids=["fractions", "letters", "one axis", "a row of nothing", "nothing", "huge id"],
)
def test_tokens_that_are_not_rows_of_ids_are_refused(backend, tokens) -> None:
    state = open_state(backend)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        backend.core.extend(state.core, tokens, False)
    assert state.lengths == [3, 3]


def test_rows_without_new_tokens(backend) -> None:
    """A row without new tokens has no logits and does not change; it can still be rolled back."""
    state, other = open_state(backend), open_state(backend)
    assert backend.extend([[], []], state, Logits()).shape == (2, 0, WORDS)
    found = backend.extend(LAST_B1, state, count_B=torch.tensor([0, 1]), last=True)
    assert torch.equal(found[1], backend.extend(LAST_B1, other)[1])
    drafted = backend.draft(LAST_B1, open_state(backend), 3)
    assert torch.equal(backend.draft(LAST_B1, state, 3).confidence_BK[0], drafted.confidence_BK[0])
    state.rollback([1, 4])
    assert state.lengths == [1, 4]


def test_uses_that_a_state_was_not_opened_for_are_refused(backend) -> None:
    state = backend.encode(SOURCE, capacity=10)
    with pytest.raises(InputError, match="was not opened for drafting"):
        backend.draft(LAST_B1, state, 2)
    with pytest.raises(InputError, match="was not opened for parallel decoding"):
        backend.ctc(state)
    plain = native_calls(native_tiny.build("plain"), threads=1)
    with pytest.raises(InputError, match="has no drafter"):
        plain.encode([[3]], capacity=2, drafting=True)
    with pytest.raises(InputError, match="has no CTC decoder"):
        plain.encode([[3]], capacity=2, parallel=True)
    text = native_calls(native_tiny.build("text"), threads=1)
    with pytest.raises(InputError, match="a language model has no source"):
        text.encode([[3]], capacity=2)


def test_learned_positions_are_limited(backend) -> None:
    learned = native_calls(native_tiny.build("learned"), threads=1)
    with pytest.raises(InputError, match="41 tokens exceed the 40 positions"):
        learned.encode([[3]], capacity=41)
    with pytest.raises(InputError, match="41 tokens exceed the 40 positions"):
        learned.encode([[3] * 41], capacity=4)


def test_a_state_of_another_model_is_refused(backend) -> None:
    """It may have other layers and widths, so reading it would be out of bounds."""
    small = native_calls(native_tiny.build("plain"), threads=1)
    state = small.encode(SOURCE, capacity=10)
    with pytest.raises(InputError, match="a state of another model"):
        backend.extend(LAST_B1, state)
    assert small.extend(LAST_B1, state).shape == (2, 1, tiny.VOCABULARY)


def test_states_and_logits_outlive_their_model() -> None:
    small = native_calls(native_tiny.build("plain"), threads=2)
    state = small.encode(SOURCE, capacity=10)
    logits = small.extend(LAST_B1, state)
    expected = logits.clone()
    del small
    gc.collect()
    state.select([1, 0, 1])
    assert state.lengths == [1, 1, 1]
    assert torch.equal(logits, expected)


def test_returned_logits_are_never_overwritten(backend) -> None:
    """A buffer is reused only after the caller has released it."""
    state = open_state(backend)
    kept = [backend.extend(torch.tensor([[n], [n]]), state) for n in range(3, 8)]
    copies = [logits.clone() for logits in kept]
    state = open_state(backend)
    again = [backend.extend(torch.tensor([[n], [n]]), state) for n in range(3, 8)]
    for logits, copy, other in zip(kept, copies, again, strict=True):
        assert torch.equal(logits, copy)
        assert torch.equal(logits, other)


def test_models_are_independent() -> None:
    kinds = ["marian", "text", "silu", "learned"]
    models = [native_tiny.build(kind) for kind in kinds]
    source = [native_tiny.rows(model, [4, 7]) for model in models]

    def run(backend: TensorCalls, row: list[list[int]]) -> Tensor:
        return backend.extend(TOKENS_BT, backend.encode(row, capacity=4))

    alone = [run(native_calls(m, threads=1), row) for m, row in zip(models, source, strict=True)]
    together = [native_calls(model, threads=2) for model in models]
    states = [b.encode(row, capacity=4) for b, row in zip(together, source, strict=True)]
    found = [b.extend(TOKENS_BT, s) for b, s in zip(together, states, strict=True)]
    assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))


def test_threads_with_separate_states_are_independent(backend) -> None:
    requests = [Request(source=(4 + n, 5, 1), max_new_tokens=12) for n in range(6)]
    config = DecodeConfig(scores=True)
    expected = [greedy(backend, [request], config) for request in requests]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: greedy(backend, [requests[n % 6]], config), range(24)))
    assert found == expected * 4


def test_two_threads_cannot_use_one_state() -> None:
    model = tiny.seq2seq(hidden_size=128, intermediate_size=512, vocab_size=2000)
    backend = native_calls(model, threads=1)
    state = backend.encode([[3] * 5], capacity=400)
    tokens_BT = torch.randint(2000, (1, 300))
    done, messages = threading.Event(), set()

    def disturb() -> None:
        while not done.is_set():
            try:
                state.rollback(state.lengths)
            except InputError as error:
                messages.add(str(error))

    thread = threading.Thread(target=disturb)
    thread.start()
    extended = 0
    for _ in range(1000):
        try:
            backend.extend(tokens_BT, state)
            state.rollback([0])
            extended += 1
        except InputError as error:
            messages.add(str(error))
            if state.lengths[0]:  # the other thread's rollback was in progress
                state = backend.encode([[3] * 5], capacity=400)
        if messages and extended:
            break
    done.set()
    thread.join()
    # The other thread may also pass a length that is no longer that of the state.
    late = "backend native: rollback may only undo tokens of the last extend"
    taken = "backend native: this state is in use by another thread"
    assert taken in messages
    assert messages <= {taken, late}
    state.rollback([0])
    assert backend.extend(tokens_BT, state).shape == (1, 300, 2000)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named(value) -> None:
    model = native_tiny.build("marian")
    with torch.no_grad():
        model.decoder.blocks[1].feedforward.up.weight[3, 4] = value
    message = r"'decoder.blocks.1.feedforward.up.weight' holds NaN or infinite numbers"
    with pytest.raises(ModelError, match=message):
        native_calls(model, threads=1)


def test_weights_of_another_shape_are_named() -> None:
    model = native_tiny.build("plain")
    arrays, shape = weights(parts_of(model)), model_shape(model.config, "int8")

    def build(**changes: Any) -> None:
        values = {"model": shape, "weights": arrays, "drafter": None, "ctc": None}
        core.Engine(**values | changes, instruction_set="", threads=1)

    build()
    with pytest.raises(ValueError, match=r"'tokens.weight' is 23 x 16, expected 24 x 16"):
        build(model=shape | {"vocab_size": 24})
    with pytest.raises(ValueError, match=r"the weights lack 'decoder.blocks.2.attention"):
        build(model=shape | {"decoder_layers": 3})
    sizes = "vocab_size width heads kv_heads inner decoder_layers head_width"
    for key in sizes.split():
        with pytest.raises(ValueError, match=rf"{key} is 0"):
            build(model=shape | {key: 0})
    with pytest.raises(ValueError, match="encoder_layers is negative"):
        build(model=shape | {"encoder_layers": -1})
    for changes in ({"heads": 3}, {"head_width": 1 << 24}):
        with pytest.raises(ValueError, match="heads must be a multiple of kv_heads"):
            build(model=shape | changes)
    for epsilon in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="norm_eps must be finite and not negative"):
            build(model=shape | {"norm_eps": epsilon})
    for changes in ({"frequencies": [1.0]}, {"position": "rotary", "frequencies": [1.0, 0.5]}):
        with pytest.raises(ValueError, match="frequencies must have one number"):
            build(model=shape | changes)
    turned = {"position": "rotary", "frequencies": [float("nan")] * 4}
    with pytest.raises(ValueError, match="a frequency is not finite"):
        build(model=shape | turned)
    for edges in ([0, 1], [3, 2], [-1]):
        with pytest.raises(ValueError, match="decoder_edges are not ascending"):
            build(model=shape | {"decoder_edges": edges})
    with pytest.raises(ValueError, match="decoder_edges are too many"):
        build(model=shape | {"decoder_edges": list(range(1, 1 << 17))})
    with pytest.raises(ValueError, match="unsupported position 'alibi'"):
        build(model=shape | {"position": "alibi"})
    with pytest.raises(ValueError, match="unsupported dtype 'int4'"):
        build(model=shape | {"dtype": "int4"})
    for key, value in (("max_positions", 2**40), ("width", "wide"), ("pre_norm", None)):
        with pytest.raises(ValueError, match=rf"{key} is of another type or out of range"):
            build(model=shape | {key: value})
    with pytest.raises(ValueError, match="embedding_scale is not finite"):
        build(model=shape | {"embedding_scale": float("inf")})
    with pytest.raises(ValueError, match="position is missing"):
        build(model={key: value for key, value in shape.items() if key != "position"})
    with pytest.raises(ValueError, match=r"'tokens.weight' is not a contiguous array"):
        build(weights=arrays | {"tokens.weight": [1.0]})


def test_instruction_sets_are_chosen_by_name(monkeypatch) -> None:
    model = native_tiny.build("plain")
    names = core.instruction_sets()
    assert names[-1] == "portable"
    for name in names:
        monkeypatch.setenv(INSTRUCTION_SET, name)
        assert native_calls(model, threads=1).instruction_set == name
    assert native_calls(model, threads=1, instruction_set=names[0]).instruction_set == names[0]
    monkeypatch.setenv(INSTRUCTION_SET, "abacus")
    with pytest.raises(ConfigError, match=r"^OUTRIDER_ISA: instruction set 'abacus' is"):
        native_calls(model, threads=1)
    monkeypatch.delenv(INSTRUCTION_SET)
    assert native_calls(model, threads=1).instruction_set == names[0]


def test_invalid_options_are_named() -> None:
    model = native_tiny.build("plain")
    with pytest.raises(ConfigError, match=r"^dtype: got 'int4', expected one of int8, float32"):
        native_calls(model, dtype="int4")
    with pytest.raises(ConfigError, match=r"threads is 5000, expected 1 to 1024"):
        native_calls(model, threads=5000)
    with pytest.raises(ModelError, match=r"does not compute position: alibi; use backend torch"):
        native_calls(tiny.seq2seq(position="alibi"))
    another = native_tiny.build_drafter(native_tiny.build("learned"))
    with pytest.raises(ModelError, match="made for another model: its vocab_size is 37"):
        native_calls(model, drafter=another)


def test_repeating_rows_twice_is_a_value_error(backend) -> None:
    with pytest.raises(ValueError, match="repeated already"):
        open_state(backend).repeat_rows(2).repeat_rows(2)


def test_a_temperature_that_32_bits_cannot_hold_is_refused(backend) -> None:
    for temperature in (1e-60, 1e300):
        with pytest.raises(InputError, match="temperature must be above zero"):
            backend.draft(LAST_B1, open_state(backend), 2, temperature=temperature)
