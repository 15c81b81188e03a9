"""The native core: int8 on a CPU, for standard encoder-decoders, language models and drafters.

A row's numbers are bit-identical in any batch and in blocks of any length, so near-ties cannot
differ (`epsilon` is 0).
"""

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast

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
from outrider.decoding.protocol import Candidates, Proposal, RoundOutput, State
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
from outrider.formats.spec import special_tokens

if TYPE_CHECKING:
    from outrider.decoding.alignment import AlignmentHeads
    from outrider.formats.readers.bergamot import Shortlist

_fault: ImportError | None = None
try:
    import outrider_native

    from outrider.backends.native_answers import from_core, to_core
except ImportError as error:  # pure Python: PyTorch is the only backend
    outrider_native = None  # type: ignore[assignment]
    _fault = error

DTYPES = ("int8", "float32")
INSTRUCTION_SET = "OUTRIDER_ISA"
"""Environment variable that forces an instruction set; by default the best of the machine."""


def default_threads() -> int:
    """Return `OMP_NUM_THREADS`, or the number of physical cores that this process may use."""
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if threads.isdigit() and int(threads):
        return int(threads)
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return os.cpu_count() or 1
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, len(cores))


def _siblings(cpu: int) -> str:
    """Return the hardware threads of a CPU's core, or the CPU itself if unknown."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return str(cpu)


_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def _call(function: Callable[_Args, _Result], *args: _Args.args, **named: _Args.kwargs) -> _Result:
    """Call the core and convert its exceptions to `OutriderError`, except those of wrong calls."""
    try:
        return function(*args, **named)
    except (TypeError, LookupError):
        raise
    except Exception as error:
        raise _convert(error) from error


def _convert(error: Exception) -> OutriderError:
    if isinstance(error, OutriderError):
        return error
    if is_out_of_memory(error):
        return ResourceError(f"backend native: the machine ran out of memory; {SMALLER}")
    if isinstance(error, ValueError | ArithmeticError):
        return InputError(f"backend native: {error}")
    if isinstance(error, OSError):  # the system refuses to start threads
        reason = error.strerror or str(error)
        return ResourceError(f"backend native: {reason}; use fewer threads")
    reason = str(error) or type(error).__name__
    return UnsupportedError(f"backend native: {reason}; use backend torch")


def is_installed() -> bool:
    """Whether the core can be loaded."""
    return outrider_native is not None


def is_damaged() -> bool:
    """Whether the core is installed but cannot be loaded."""
    absent = isinstance(_fault, ModuleNotFoundError) and _fault.name == "outrider_native"
    return _fault is not None and not absent


def fault() -> str | None:
    """Return why the core cannot be used and the fix; None if it can."""
    if is_damaged():
        return f"does not load ({_fault}): pip install --force-reinstall ./native in a checkout"
    return None if is_installed() else "is not installed: pip install ./native in a checkout"


def check_installed() -> None:
    """Raise a `ConfigError` unless the core can be used."""
    if (reason := fault()) is not None:
        raise ConfigError("backend native", f"needs outrider-native, which {reason}")


def instruction_sets() -> list[str]:
    """Return the instruction sets of this machine, best first; none without the core."""
    return _call(outrider_native.instruction_sets) if is_installed() else []


def choose_instruction_set(name: str | None = None) -> str:
    """Return the instruction set to use: `name`, `OUTRIDER_ISA` or the best available."""
    check_installed()
    key = "instruction_set" if name else INSTRUCTION_SET
    name, known = name or os.environ.get(INSTRUCTION_SET), instruction_sets()
    if name and name not in known:
        message = f"instruction set {name!r} is unavailable; this machine has {', '.join(known)}"
        raise ConfigError(key, message)
    return name or known[0]


AnswerT = TypeVar("AnswerT")


class NativeState:
    """Implements `decoding.protocol.State`."""

    def __init__(self, core: "outrider_native.State") -> None:
        self.core = core
        self.beams = 1

    @property
    def lengths(self) -> list[int]:
        """Cached tokens of each row."""
        return _call(lambda: self.core.lengths)

    @property
    def nbytes(self) -> int:
        """Memory of the caches, in bytes."""
        return _call(lambda: self.core.bytes)

    def rollback(self, lengths: Sequence[int]) -> None:
        """Truncate rows, at most undoing the last extend."""
        _call(self.core.rollback, lengths)

    def select(self, rows: Sequence[int]) -> None:
        """Drop, reorder or copy rows."""
        _call(self.core.select, rows)

    def join(self, other: State, at: Sequence[int]) -> None:
        """Move the rows of another state into this one, row n to row `at[n]`."""
        assert isinstance(other, NativeState), "a state of another backend"
        _call(self.core.join, other.core, at)

    def repeat_rows(self, times: int) -> Self:
        """Copy every row `times` times; the copies share the source."""
        if self.beams != 1:
            raise ValueError("the rows of this state were repeated already")
        self.select([row for row in range(len(self.core)) for _ in range(times)])
        self.beams = times
        return self


def _build_core(
    parts: Parts, shape: dict[str, Any], *, keep: bool, screened: bool
) -> "outrider_native.Engine":
    """Build the core from packed weights, or pack them."""
    cache = PackedWeights(parts) if keep else None
    if cache is not None and (packed := cache.find()) is not None:
        with suppress(InputError):  # the file does not fit the model
            return _call(outrider_native.Engine, weights=packed, **shape)
    parts.check_values()
    core = _call(outrider_native.Engine, weights=weights(parts, screened=screened), **shape)
    if cache is not None:
        cache.keep(core)
    return core


class NativeBackend:
    """Implements `decoding.protocol.Backend` with the native core."""

    epsilon = 0.0
    compact_threshold = 0.0
    alignment_heads: "AlignmentHeads | None" = None

    def __init__(
        self,
        parts: Parts,
        *,
        dtype: str = "int8",
        threads: int | None = None,
        instruction_set: str | None = None,
        ends: Sequence[int] = (),
        keep: bool = False,
        shortlist: "Shortlist | None" = None,
    ) -> None:
        """Pack the weights of a model.

        Args:
            parts: A model with its drafter and CTC decoder, if any.
            dtype: int8, or float32 for comparison.
            threads: CPU threads; None for `default_threads()`.
            instruction_set: One of `instruction_sets()`; None for `OUTRIDER_ISA` or the best.
            ends: End tokens in addition to those of the model's config.
            keep: Use packed int8 weights beside the model or in the cache, and cache new ones.
            shortlist: Lexical shortlist of target tokens; None for the whole vocabulary.
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
            int8 = dtype == "int8"
            screened = int8 and shortlist is None
            self.core = _build_core(parts, shape, keep=keep and int8, screened=screened)
        except InputError as error:
            message = str(error).removeprefix("backend native: ")
            raise ConfigError("backend native", message) from error
        self.config, self.dtype, self.shortlist = config, dtype, shortlist
        self.vocab_size = self.source_vocab_size = config.vocab_size
        self.start, self.ends, self.pad = special_tokens(config, ends)
        self.eos = self.ends[0]
        self.max_length: int | None = config.max_positions if config.position == "learned" else None
        self._longest = (0, 0)
        if drafter is not None:
            self._longest = drafter.block, drafter.longest_text
        self._upsample = 0 if ctc is None else ctc.upsample

    # Not stored, because they would form a reference cycle with the model.
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
        """The device of the core."""
        return "cpu"

    @property
    def instruction_set(self) -> str:
        """The instruction set in use."""
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
            raise ConfigError("shortlist", "is for ar and tandem; a CTC decoder scores every token")
        listed = [] if self.shortlist is None else [self.shortlist.listed(row) for row in source]
        return NativeState(_call(self.core.encode, source, capacities, drafting, parallel, listed))

    def extend(
        self,
        tokens: Sequence[Sequence[int]],
        state: State,
        query: Query[AnswerT],
        *,
        last: bool = False,
    ) -> AnswerT:
        """Append tokens to every row and answer a query about the scores after each."""
        assert isinstance(state, NativeState), "a state of another backend"
        value: object = query  # mypy: a Query[AnswerT] cannot be an Argmax
        if isinstance(value, Argmax) and value.tokens_only and not last:
            forbidden = value.forbidden
            limits = forbidden.always, forbidden.ends, forbidden.early
            best = _call(self.core.argmax, state.core, tokens, *limits)
            return cast(AnswerT, Chosen(best))
        queries = _call(to_core, query, len(tokens))
        if queries is None:
            return query.answer(_call(self.core.extend, state.core, tokens, last))
        answers = _call(self.core.answer, state.core, tokens, queries, last)
        return cast(AnswerT, from_core(query, answers))

    def greedy(
        self,
        newest: Sequence[int],
        state: State,
        forbidden: Sequence[int],
        *,
        steps: int,
        ends: Collection[int],
    ) -> list[list[int]]:
        """Append greedy tokens to every row in one call."""
        assert isinstance(state, NativeState), "a state of another backend"
        return _call(self.core.greedy, state.core, newest, steps, [*ends], forbidden)

    def cross_attention(
        self, source: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> list[npt.NDArray[np.float32]]:
        """Return the weights [L, H, T, S] of each row of target tokens on its source."""
        state = _call(self.core.encode, source, [len(row) for row in tokens], False, False, [])
        weights_NLHS = _call(self.core.cross_attention, state, tokens)
        ends = np.cumsum([len(row) for row in tokens])[:-1]
        rows = zip(np.split(weights_NLHS, ends), source, strict=True)
        return [row_TLHS[..., : len(ids)].transpose(1, 2, 0, 3) for row_TLHS, ids in rows]


class NativeDrafts:
    """Implements `decoding.protocol.FusedDrafts`."""

    def __init__(self, backend: NativeBackend, longest: int, longest_text: int) -> None:
        self.backend, self.longest, self.longest_text = backend, longest, longest_text

    def draft(
        self,
        newest: Sequence[int],
        state: State,
        tokens: Sequence[int],
        *,
        temperature: float = 1.0,
        uniform: Sequence[Sequence[float]] | None = None,
    ) -> Proposal:
        """Draft the tokens after the newest ones."""
        assert isinstance(state, NativeState), "a state of another backend"
        drafted, ids_BKC, prob_BKC, confidence = _call(
            self.backend.core.draft, state.core, newest, tokens, temperature, uniform or [], []
        )
        return Proposal(drafted, confidence, Candidates(ids_BKC, prob_BKC))

    def predict(
        self, newest: Sequence[int], state: State, known: Sequence[Sequence[int]]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Fill blocks in which some tokens are known."""
        assert isinstance(state, NativeState), "a state of another backend"
        core, counts = self.backend.core, [len(row) for row in known]
        tokens, ids_BKC, prob_BKC, _ = _call(core.draft, state.core, newest, counts, 1.0, [], known)
        prob_BK = (prob_BKC * (ids_BKC == np.array(tokens)[..., None])).sum(-1)
        return tokens, prob_BK.tolist()

    def draft_and_verify(
        self,
        newest: Sequence[int],
        state: State,
        tokens: Sequence[int],
        query: Argmax,
        *,
        cached: Sequence[int],
        min_survival: float,
    ) -> RoundOutput:
        """Draft and append the drafts worth verifying, in one call of the core."""
        assert isinstance(state, NativeState), "a state of another backend"
        forbidden, scored = query.forbidden, query.log_probs
        drafted, best, log_probs, confidence, drafting = _call(
            self.backend.core.draft_and_verify,
            *(state.core, cached, newest, tokens, min_survival, self.backend.ends),
            *(forbidden.always, forbidden.ends, forbidden.early, scored),
        )
        return RoundOutput(
            drafted, Chosen(best, log_probs if scored else None), confidence, drafting
        )


class NativeSlots:
    """Implements `decoding.protocol.Slots`."""

    def __init__(self, core: "outrider_native.Engine", per_token: int) -> None:
        self.core, self.per_token = core, per_token

    def fill(
        self, state: State, query: Query[AnswerT], known: Sequence[Sequence[int]] | None = None
    ) -> AnswerT:
        """Answer a query about the slots of whole texts."""
        assert isinstance(state, NativeState), "a state of another backend"
        known_BU = None if known is None else np.array(known, dtype=np.int64)
        return query.answer(_call(self.core.ctc, state.core, known_BU))
