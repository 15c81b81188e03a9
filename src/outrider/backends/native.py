"""The native core: int8 on a CPU, for the standard encoder-decoders, language models and drafters.

Rows are computed to the bit alike whatever stands beside them, so a block of tokens and single ones
agree exactly, and no near-tie is ever in doubt (`epsilon` is 0).
"""

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from outrider.backends.native_parts import (
    ctc_shape,
    drafter_shape,
    missing,
    model_shape,
    weights,
)
from outrider.backends.packed import PackedWeights
from outrider.backends.special_tokens import special_tokens
from outrider.bounds import default_threads
from outrider.decoding import tandem as rounds
from outrider.decoding.protocol import Draft, RoundOutput, State
from outrider.decoding.queries import Argmax, Chosen, Query
from outrider.errors import (
    SMALLER,
    ConfigError,
    InputError,
    ModelError,
    OutriderError,
    ResourceError,
    UnsupportedError,
    is_out_of_memory,
)
from outrider.formats.folder import Parts
from outrider.formats.readers.shortlist import Shortlist

_fault: ImportError | None = None
try:
    import outrider_native

    from outrider.backends.native_answers import from_core, to_core
except ImportError as error:  # pure Python: PyTorch computes everything
    outrider_native = None  # type: ignore[assignment]
    _fault = error

__all__ = [
    "DTYPES",
    "INSTRUCTION_SET",
    "NativeBackend",
    "NativeState",
    "check_installed",
    "choose_instruction_set",
    "fault",
    "instruction_sets",
    "is_damaged",
    "is_installed",
]

DTYPES = ("int8", "float32")
INSTRUCTION_SET = "OUTRIDER_ISA"
"""Environment variable that forces an instruction set; by default the best of the machine."""


_Given = ParamSpec("_Given")
_Got = TypeVar("_Got")


def _call(function: Callable[_Given, _Got], *given: _Given.args, **named: _Given.kwargs) -> _Got:
    """Call the core; whatever it throws becomes an error of our tree."""
    try:
        return function(*given, **named)
    except Exception as error:
        raise _ours(error) from None


def _ours(error: Exception) -> OutriderError:
    """Return what the core threw as an error of our tree."""
    if isinstance(error, OutriderError):
        return error
    if is_out_of_memory(error):
        return ResourceError(f"backend native: the machine ran out of memory; {SMALLER}")
    if isinstance(error, ValueError | TypeError | LookupError | ArithmeticError):
        reason = str(error).partition(". The following argument types")[0]
        return InputError(f"backend native: {reason}")
    if isinstance(error, OSError):  # threads that the system does not give
        reason = error.strerror or str(error)
        return ResourceError(f"backend native: {reason}; use fewer threads")
    reason = str(error) or type(error).__name__  # a fault of the core
    return UnsupportedError(f"backend native: {reason}; use backend torch")


def is_installed() -> bool:
    """Whether the core can be used."""
    return outrider_native is not None


def is_damaged() -> bool:
    """Whether the core is there and cannot be loaded."""
    absent = isinstance(_fault, ModuleNotFoundError) and _fault.name == "outrider_native"
    return _fault is not None and not absent


def fault() -> str | None:
    """Return why the core cannot be used, and the fix; None where it can."""
    if is_damaged():
        return f"does not load ({_fault}): pip install --force-reinstall ./native in a checkout"
    return None if is_installed() else "is not installed: pip install ./native in a checkout"


def check_installed() -> None:
    """Raise a `ConfigError` unless the core can be used."""
    if (reason := fault()) is not None:
        raise ConfigError("backend native", f"needs outrider-native, which {reason}")


def instruction_sets() -> list[str]:
    """Return what the core can compute with on this machine, best first; nothing without it."""
    return _call(outrider_native.instruction_sets) if is_installed() else []


def choose_instruction_set(name: str | None = None) -> str:
    """Settle what the core computes with: `name`, or `OUTRIDER_ISA`, or the best there is."""
    check_installed()
    key = "instruction_set" if name else INSTRUCTION_SET
    name, known = name or os.environ.get(INSTRUCTION_SET), instruction_sets()
    if name and name not in known:
        message = f"instruction set {name!r} is not there; this machine has {', '.join(known)}"
        raise ConfigError(key, message)
    return name or known[0]


AnswerT = TypeVar("AnswerT")


class NativeState:
    """Implements `decoding.protocol.State` for rows that the core remembers."""

    def __init__(self, core: "outrider_native.State") -> None:
        self.core = core
        self.beams = 1

    @property
    def lengths(self) -> list[int]:
        """Tokens each row has taken in."""
        return _call(lambda: self.core.lengths)

    @property
    def nbytes(self) -> int:
        """Memory of the caches, in bytes."""
        return _call(lambda: self.core.bytes)

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget the newest tokens of each row, at most those of the last extend."""
        _call(self.core.rollback, lengths)

    def select(self, rows: Sequence[int]) -> None:
        """Drop, reorder or copy rows."""
        _call(self.core.select, rows)

    def join(self, other: State, at: Sequence[int]) -> None:
        """Take over the rows of another state, row n as row `at[n]`."""
        assert isinstance(other, NativeState), "a state of another backend"
        _call(self.core.join, other.core, at)

    def repeat_rows(self, times: int) -> Self:
        """Copy every row `times` times; the copies read one source."""
        if self.beams != 1:
            raise ValueError("the rows of this state were repeated already")
        self.select([row for row in range(len(self.core)) for _ in range(times)])
        self.beams = times
        return self


def _build_core(
    parts: Parts, shape: dict[str, Any], *, keep: bool, screened: bool
) -> "outrider_native.Model":
    """Build the core from weights that were packed before, or pack them."""
    kept = PackedWeights(parts) if keep else None
    if kept is not None and (packed := kept.find()) is not None:
        with suppress(InputError):  # a file that is not what it says
            return _call(outrider_native.Model, weights=packed, **shape)
    parts.check_values()
    found = weights(parts, screened=screened)
    core = _call(outrider_native.Model, weights=found, **shape)
    if kept is not None:
        kept.keep(core)
    return core


class NativeBackend:
    """Implements `decoding.protocol.Backend` with the native core; the model is not kept."""

    epsilon = 0.0
    compact_threshold = 0.0

    def __init__(
        self,
        parts: Parts,
        *,
        dtype: str = "int8",
        threads: int | None = None,
        instruction_set: str | None = None,
        ends: Sequence[int] = (),
        keep: bool = False,
        shortlist: Shortlist | None = None,
    ) -> None:
        """Pack the weights of a model.

        Args:
            parts: A model, and the drafter and the CTC decoder that were made for it.
            dtype: int8, or float32 to compare with.
            threads: CPU threads; None for as many as the machine has cores.
            instruction_set: One of `instruction_sets()`; None for `OUTRIDER_ISA` or the best.
            ends: End tokens beside those of the model's config.
            keep: Take int8 weights that were packed before, and keep them for the next time.
            shortlist: Which words may follow a source; None for all.
        """
        instruction_set = choose_instruction_set(instruction_set)
        if dtype not in DTYPES:
            raise ConfigError("dtype", f"got {dtype!r}, expected one of {', '.join(DTYPES)}")
        config = parts.model.config
        drafter = None if parts.drafter is None else parts.drafter.config
        ctc = None if parts.ctc is None else parts.ctc.config
        lacking = missing(config, drafter, ctc)
        if lacking is not None:
            raise ModelError(f"backend native does not compute {lacking}; use backend torch")
        parts.check()
        shape: dict[str, Any] = {
            "model": model_shape(config, dtype),
            "drafter": None if parts.drafter is None else drafter_shape(parts.drafter),
            "ctc": None if ctc is None else ctc_shape(ctc),
            "instruction_set": instruction_set,
            "threads": threads or default_threads(),
        }
        try:
            whole = dtype == "int8"
            screened = whole and shortlist is None
            self.core = _build_core(parts, shape, keep=keep and whole, screened=screened)
        except InputError as error:
            message = str(error).removeprefix("backend native: ")
            raise ConfigError("backend native", message) from None
        self.config, self.dtype, self.shortlist = config, dtype, shortlist
        self.vocab_size: int = config.vocab_size
        self.start, self.ends, self.pad = special_tokens(config, ends)
        self.eos = self.ends[0]
        self.max_length: int | None = config.max_positions if config.position == "learned" else None
        self._longest = (0, 0)
        if drafter is not None:
            self._longest = drafter.block, drafter.longest_text
        self._upsample = 0 if ctc is None else ctc.upsample

    # Made anew each time: kept, they would keep the model, and the model them.
    @property
    def drafts(self) -> "NativeDrafts | None":
        """The drafter."""
        return NativeDrafts(self, *self._longest) if self._longest[0] else None

    @property
    def slots(self) -> "NativeSlots | None":
        """The CTC decoder."""
        return NativeSlots(self.core, self._upsample) if self._upsample else None

    @property
    def device(self) -> str:
        """Where the core computes."""
        return "cpu"

    @property
    def instruction_set(self) -> str:
        """What its products are computed with."""
        return self.core.instruction_set

    def encode(
        self,
        source: Sequence[Sequence[int]],
        *,
        capacity: int | Sequence[int],
        drafting: bool = False,
        parallel: bool = False,
    ) -> NativeState:
        """Open one row per source."""
        capacities = [capacity] * len(source) if isinstance(capacity, int) else capacity
        if parallel and self.shortlist is not None:
            raise ConfigError("shortlist", "is for ar and tandem; a CTC decoder scores every word")
        words = [] if self.shortlist is None else [self.shortlist.listed(one) for one in source]
        return NativeState(_call(self.core.encode, source, capacities, drafting, parallel, words))

    def extend(
        self,
        tokens: Sequence[Sequence[int]],
        state: State,
        ask: Query[AnswerT],
        *,
        last: bool = False,
    ) -> AnswerT:
        """Append tokens to every row and answer a question about what comes after each."""
        assert isinstance(state, NativeState), "a state of another backend"
        forbidden = None if last else _simply(ask)
        if forbidden is not None:  # named while the scores are in the cache
            best = _call(self.core.likeliest, state.core, tokens, *forbidden)
            return cast(AnswerT, Chosen(best))
        asked = _call(to_core, ask, len(tokens))
        if asked is None:
            return ask.answer(_call(self.core.extend, state.core, tokens, last))
        found = _call(self.core.answer, state.core, tokens, asked, last)
        return cast(AnswerT, from_core(ask, found))

    def greedy(
        self,
        newest: Sequence[int],
        state: State,
        forbidden: Sequence[int],
        *,
        steps: int,
        ends: Collection[int],
    ) -> list[list[int]]:
        """Let every row say the likeliest tokens after its newest, in one call."""
        assert isinstance(state, NativeState), "a state of another backend"
        return _call(self.core.greedy, state.core, newest, steps, [*ends], forbidden)

    def cross_attention(
        self, source: Sequence[int], tokens: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        """Return where the decoder looks, weights [L, H, T, S], while it is given some tokens."""
        state = self.encode([source], capacity=len(tokens))
        weights_TLHS = _call(self.core.cross_attention, state.core, [tokens])
        return weights_TLHS.transpose(1, 2, 0, 3)


class NativeDrafts:
    """Implements `decoding.protocol.Drafts`."""

    def __init__(self, backend: NativeBackend, longest: int, longest_text: int) -> None:
        self.backend, self.longest, self.longest_text = backend, longest, longest_text
        self._ends = [backend.ends]

    def draft(
        self,
        newest: Sequence[int],
        state: State,
        tokens: Sequence[int],
        *,
        temperature: float = 1.0,
        uniform: Sequence[Sequence[float]] | None = None,
    ) -> Draft:
        """Guess the tokens that follow the newest ones."""
        assert isinstance(state, NativeState), "a state of another backend"
        core, temperatures = self.backend.core, [temperature] * len(tokens)
        guessed, ids_BKC, prob_BKC, confidence = _call(
            core.draft, state.core, newest, tokens, temperatures, uniform or [], []
        )
        return Draft(guessed, confidence, ids_BKC, prob_BKC)

    def predict(
        self, newest: Sequence[int], state: State, known: Sequence[Sequence[int]]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Guess whole blocks of which some tokens are known."""
        assert isinstance(state, NativeState), "a state of another backend"
        core, counts = self.backend.core, [len(row) for row in known]
        tokens, ids_BKC, prob_BKC, _ = _call(core.draft, state.core, newest, counts, [], [], known)
        prob_BK = (prob_BKC * (ids_BKC == np.array(tokens)[..., None])).sum(-1)
        return tokens, prob_BK.tolist()

    def draft_and_verify(
        self,
        newest: Sequence[int],
        state: State,
        tokens: Sequence[int],
        ask: Argmax,
        *,
        held: Sequence[int],
        min_survival: float,
    ) -> RoundOutput:
        """Draft and append what is worth checking: in one call where only tokens are wanted."""
        assert isinstance(state, NativeState), "a state of another backend"
        if ask.closeness:  # which nobody asks where nothing is nearly tied
            return rounds.draft_and_verify(
                *(self.backend, self, newest, state, tokens, ask),
                held=held,
                min_survival=min_survival,
            )
        said, wants = ask.forbidden, ask.log_probs
        drafted, best, log_probs, confidence, drafting = _call(
            self.backend.core.draft_and_verify,
            *(state.core, held, newest, tokens, min_survival, self._ends),
            *(said.always, (), said.ends, said.early, wants),
        )
        return RoundOutput(
            drafted, Chosen(best, log_probs if wants else None), confidence, drafting
        )


class NativeSlots:
    """Implements `decoding.protocol.Slots`."""

    def __init__(self, core: "outrider_native.Model", per_token: int) -> None:
        self.core, self.per_token = core, per_token

    def fill(
        self, state: State, ask: Query[AnswerT], known: Sequence[Sequence[int]] | None = None
    ) -> AnswerT:
        """Answer a question about the slots of whole texts."""
        assert isinstance(state, NativeState), "a state of another backend"
        known_BU = None if known is None else np.array(known, dtype=np.int64)
        return ask.answer(_call(self.core.ctc, state.core, known_BU))


def _simply(ask: object) -> tuple[Sequence[Any], ...] | None:
    """Return what to leave out, as the core is told it, where only the likeliest is asked for."""
    if not isinstance(ask, Argmax) or not ask.tokens_only:
        return None
    forbidden = ask.forbidden
    return forbidden.always, (), forbidden.ends, forbidden.early
