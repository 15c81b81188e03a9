"""The native core: int8 on a CPU, for the standard encoder-decoders, language models and drafters.

Rows are computed to the bit alike whatever stands beside them, so a block of tokens and single ones
agree exactly, and no near-tie is ever in doubt (`epsilon` is 0).
"""

import os
from collections.abc import Callable, Sequence
from typing import ParamSpec, Self, TypeVar

import torch
from torch import Tensor

from outrider.backends.native_parts import (
    ctc_shape,
    drafter_shape,
    missing,
    model_shape,
    weights,
)
from outrider.backends.special_tokens import special_tokens
from outrider.decoding.ids import to_ids
from outrider.decoding.protocol import Draft, Ridden, State
from outrider.errors import (
    ConfigError,
    InputError,
    ModelError,
    OutriderError,
    ResourceError,
    UnsupportedError,
    within_memory,
)
from outrider.models import Drafter, LanguageModel, Seq2Seq
from outrider.models.ctc import Ctc

_fault: ImportError | None = None
try:
    import outrider_native
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
HOST = torch.device("cpu")
INSTRUCTION_SET = "OUTRIDER_ISA"
"""Environment variable that forces an instruction set; by default the best of the machine."""


_Given = ParamSpec("_Given")
_Got = TypeVar("_Got")


def _call(function: Callable[_Given, _Got], *given: _Given.args, **named: _Given.kwargs) -> _Got:
    """Call the core; whatever it throws becomes an error of our tree."""
    try:
        with within_memory("backend native"):
            return function(*given, **named)
    except OutriderError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        reason = str(error).partition(". The following argument types")[0]
        raise InputError(f"backend native: {reason}") from None
    except OSError as error:  # threads that the system does not give
        reason = error.strerror or str(error)
        raise ResourceError(f"backend native: {reason}; use fewer threads") from None
    except Exception as error:  # a fault of the core
        reason = str(error) or type(error).__name__
        raise UnsupportedError(f"backend native: {reason}; use backend torch") from None


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


class NativeState:
    """Implements `decoding.protocol.State` for rows that the core remembers."""

    def __init__(self, core: "outrider_native.State") -> None:
        self.core = core
        self.beams = 1

    @property
    def length_B(self) -> Tensor:
        """Tokens each row has taken in."""
        return to_ids(_call(lambda: self.core.lengths), HOST)

    @property
    def nbytes(self) -> int:
        """Memory of the caches, in bytes."""
        return _call(lambda: self.core.bytes)

    def rollback(self, length_B: Tensor) -> None:
        """Forget the newest tokens of each row, at most those of the last extend."""
        _call(self.core.rollback, length_B.tolist())

    def select(self, row_N: Tensor) -> None:
        """Drop, reorder or copy rows."""
        _call(self.core.select, row_N.tolist())

    def fan(self, beams: int) -> Self:
        """Copy every row `beams` times; the copies read one source."""
        if self.beams != 1:
            raise ValueError("this state has fanned out already")
        _call(self.core.select, [row for row in range(len(self.core)) for _ in range(beams)])
        self.beams = beams
        return self


class NativeBackend:
    """Implements `decoding.protocol.Backend` with the native core; the model is not kept."""

    epsilon = 0.0

    def __init__(
        self,
        model: Seq2Seq | LanguageModel,
        *,
        drafter: Drafter | None = None,
        ctc: Ctc | None = None,
        dtype: str = "int8",
        threads: int | None = None,
        instruction_set: str | None = None,
        ends: Sequence[int] = (),
    ) -> None:
        """Pack the weights of a model.

        Args:
            model: What to compute.
            drafter: Its drafter, bound to it.
            ctc: Its CTC decoder, bound to it.
            dtype: int8, or float32 to compare with.
            threads: CPU threads; None for as many as PyTorch uses.
            instruction_set: amx, vnni, avx2, neon or portable; None for `OUTRIDER_ISA` or the best.
            ends: End tokens beside those of the model's config.
        """
        instruction_set = choose_instruction_set(instruction_set)
        if dtype not in DTYPES:
            raise ConfigError("dtype", f"got {dtype!r}, expected one of {', '.join(DTYPES)}")
        lacking = missing(model, drafter, ctc)
        if lacking is not None:
            raise ModelError(f"backend native does not compute {lacking}; use backend torch")
        try:
            self.core = _call(
                outrider_native.Model,
                model=model_shape(model.config, dtype),
                weights=weights(model, drafter, ctc),
                drafter=None if drafter is None else drafter_shape(drafter),
                ctc=None if ctc is None else ctc_shape(ctc),
                instruction_set=instruction_set,
                threads=threads or torch.get_num_threads(),
            )
        except InputError as error:
            message = str(error).removeprefix("backend native: ")
            raise ConfigError("backend native", message) from None
        config = model.config
        self.dtype = dtype
        self.vocab_size: int = config.vocab_size
        self.start, self.ends, self.pad = special_tokens(config, ends)
        self.eos = self.ends[0]
        self.max_length: int | None = config.max_positions if config.position == "learned" else None
        self.longest_draft: int = 0 if drafter is None else drafter.config.block
        self.longest_text: int = 0 if drafter is None else drafter.config.longest_text
        self.has_ctc: bool = ctc is not None
        self._upsample = 0 if ctc is None else ctc.config.upsample

    @property
    def device(self) -> torch.device:
        """Where the core computes."""
        return HOST

    @property
    def instruction_set(self) -> str:
        """What its products are computed with."""
        return self.core.instruction_set

    def encode(
        self,
        source: Sequence[Sequence[int]],
        *,
        capacity: int,
        drafting: bool = False,
        parallel: bool = False,
    ) -> NativeState:
        """Open one row per source."""
        rows = [list(row) for row in source]
        return NativeState(_call(self.core.encode, rows, capacity, drafting, parallel))

    def extend(
        self,
        tokens_BT: Tensor,
        state: State,
        *,
        count_B: Tensor | None = None,
        last: bool = False,
    ) -> Tensor:
        """Append tokens to every row."""
        assert isinstance(state, NativeState), "a state of another backend"
        counts = None if count_B is None else count_B.contiguous().numpy()
        tokens = tokens_BT.contiguous().numpy()
        return torch.from_numpy(_call(self.core.extend, state.core, tokens, counts, last))

    def likeliest(
        self, tokens: Sequence[Sequence[int]], state: State, forbidden: Sequence[int]
    ) -> list[list[int]]:
        """Append tokens to every row and return the likeliest after each."""
        assert isinstance(state, NativeState), "a state of another backend"
        return _call(self.core.likeliest, state.core, tokens, forbidden)

    def ride(
        self,
        newest: Sequence[int],
        state: State,
        tokens: int,
        *,
        held: Sequence[int],
        worth: float,
        forbidden: Sequence[int],
    ) -> Ridden:
        """Draft after the newest tokens and append what is worth checking."""
        assert isinstance(state, NativeState), "a state of another backend"
        found = _call(self.core.ride, state.core, held, newest, tokens, worth, self.ends, forbidden)
        return Ridden(*found)

    def draft(
        self,
        last_B1: Tensor,
        state: State,
        tokens: int,
        *,
        temperature: float = 1.0,
        uniform_BK: Tensor | None = None,
    ) -> Draft:
        """Guess the tokens that follow `last_B1`."""
        assert isinstance(state, NativeState), "a state of another backend"
        uniform = None if uniform_BK is None else uniform_BK.double().contiguous().numpy()
        last = last_B1[:, 0].contiguous().numpy()
        found = _call(self.core.draft, state.core, last, tokens, temperature, uniform, None)
        return Draft(*map(torch.from_numpy, found))

    def predict(self, last_B1: Tensor, state: State, known_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Guess a whole block of which some tokens are known."""
        assert isinstance(state, NativeState), "a state of another backend"
        known, last = known_BK.contiguous().numpy(), last_B1[:, 0].contiguous().numpy()
        found = _call(self.core.draft, state.core, last, known.shape[1], 1.0, None, known)
        tokens_BK, ids_BKC, prob_BKC, _ = map(torch.from_numpy, found)
        prob_BK = (prob_BKC * (ids_BKC == tokens_BK[..., None])).sum(-1)
        return tokens_BK, prob_BK

    def ctc(self, state: State, known_BU: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Score the slots of whole texts."""
        assert isinstance(state, NativeState), "a state of another backend"
        known = None if known_BU is None else known_BU.contiguous().numpy()
        logits_BUV = torch.from_numpy(_call(self.core.ctc, state.core, known))
        lengths = _call(lambda: state.core.source_lengths)
        return logits_BUV, torch.tensor(lengths) * self._upsample
