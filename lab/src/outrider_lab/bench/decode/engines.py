"""The engines of `bench decode`, each at its best setting.

Engines take and return texts, so tokenization is part of the time. All decode greedily, from the
same weights, with the same length limit and suppressed tokens. Heavy modules are imported when an
engine is built: each runs in its own process, whose memory is measured.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from outrider.errors import ModelError

if TYPE_CHECKING:
    from outrider.runtime import Translator
    from outrider.text.tokenizer import Tokenizer

Library = Literal["torch", "native", "ctranslate2", "transformers"]

MODES = ("ar", "tandem", "parallel")
_ONE_BATCH = 1 << 20
"""Token limit of a batch that is never exceeded."""


@dataclass(frozen=True)
class EnginePlan:
    """A library, what it loads, and its threads."""

    name: str
    """Its name in `--engines`."""
    library: Library
    folder: Path
    """A model folder of ours, or an exported one."""
    dtype: str = "float32"
    threads: int = 1
    modes: tuple[str, ...] = ("ar",)
    """Decoding modes to measure."""
    shallow: bool = False
    """Whether the model is that of `--shallow`."""
    assistant: Path | None = None
    """An exported model for transformers' assisted generation."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its process."""


class Translated(NamedTuple):
    """The output of a batch."""

    texts: list[str]
    tokens: int
    """Target tokens without end tokens."""


@dataclass
class TimeSplit:
    """The time of some batches by component, in seconds."""

    wall: float = 0.0
    text: float = 0.0
    """Inside the tokenizer."""
    core: dict[str, float] = field(default_factory=dict)
    """Inside the backend, by method."""
    sentences: int = 0
    statistics: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio_to_bare_engine(self) -> float:
        """Time without tokenization over the time inside the backend."""
        return (self.wall - self.text) / sum(self.core.values())


class Engine(Protocol):
    """The interface used by the worker process."""

    modes: dict[str, str | None]
    """Requested decoding modes, each with the reason why it is not supported, or None."""
    largest_batch: dict[str, int]
    """Maximum batch size of the modes that have one."""

    def translate(self, texts: Sequence[str], mode: str) -> Translated:
        """Translate one batch."""
        ...

    def split_time(self, batches: Sequence[Sequence[str]], mode: str) -> TimeSplit | None:
        """Translate batches again and return the time by component; None if unknown."""
        ...


def build_engine(plan: EnginePlan) -> Engine:
    """Load the engine; raises an `OutriderError` if that is not possible."""
    builders: dict[Library, Callable[[EnginePlan], Engine]] = {
        "torch": OutriderEngine,
        "native": OutriderEngine,
        "ctranslate2": CTranslate2Engine,
        "transformers": TransformersEngine,
    }
    return builders[plan.library](plan)


_PARTS = ("drafts", "slots")
"""Parts of a backend that are timed too."""


class _Timed:
    """A proxy that measures the time in the methods of an object and of its parts."""

    def __init__(self, target: Any, seconds: dict[str, float] | None = None) -> None:
        self._target = target
        self.seconds: dict[str, float] = defaultdict(float) if seconds is None else seconds

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name in _PARTS and value is not None:
            part = _Timed(value, self.seconds)
            setattr(self, name, part)
            return part
        if not callable(value):
            return value

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return value(*arguments, **options)
            finally:
                self.seconds[name] += time.perf_counter() - start

        setattr(self, name, timed)  # built once, for low overhead
        return timed


class OutriderEngine:
    """Outrider on PyTorch or on the native core."""

    def __init__(self, plan: EnginePlan) -> None:
        from outrider.runtime import Translator, load

        loaded = load(
            plan.folder,
            device="cpu",
            backend=plan.library,
            dtype=plan.dtype,
            threads=plan.threads,
        )
        if not isinstance(loaded, Translator):
            raise ModelError(
                f"{plan.folder}: is a language model; bench decode needs a translation model"
            )
        self.translator: Translator = loaded
        self.modes = {mode: self._unsupported(mode) for mode in plan.modes}
        self.largest_batch: dict[str, int] = {}

    def _unsupported(self, mode: str) -> str | None:
        from outrider.runtime.options import call_settings

        try:
            call_settings(self.translator.backend, self.translator.defaults, {"mode": mode})
        except ModelError as error:
            return str(error)
        return None

    def translate(self, texts: Sequence[str], mode: str) -> Translated:
        """Translate one batch."""
        # Without sentence splitting, like the other engines.
        results = self.translator.results(texts, split=False, batch_tokens=_ONE_BATCH, mode=mode)
        best = [candidates[0] for candidates in results]
        return Translated([b.text for b in best], sum(len(b.tokens) for b in best))

    def split_time(self, batches: Sequence[Sequence[str]], mode: str) -> TimeSplit:
        """Translate batches again with timers around backend and tokenizer."""
        from outrider.decoding.statistics import Statistics

        backend, tokenizer = _Timed(self.translator.backend), _Timed(self.translator.tokenizer)
        timed = self._like(backend, tokenizer)
        if mode == "tandem":
            timed.controllers = self.translator.controllers  # with what it has learned
        split, statistics = TimeSplit(), Statistics()
        for texts in batches:
            start = time.perf_counter()
            timed.results(texts, split=False, batch_tokens=_ONE_BATCH, stats=statistics, mode=mode)
            split.wall += time.perf_counter() - start
            split.sentences += len(texts)
        split.core, split.text = dict(backend.seconds), sum(tokenizer.seconds.values())
        split.statistics = statistics.as_dict()
        return split

    def _like(self, backend: Any, tokenizer: Any) -> "Translator":
        translator = self.translator
        return type(translator)(
            backend, tokenizer, longest=translator.longest, defaults=translator.defaults
        )


class CTranslate2Engine:
    """CTranslate2 with exported weights."""

    def __init__(self, plan: EnginePlan) -> None:
        import ctranslate2

        from outrider.text.tokenizer import load_tokenizer

        self.tokenizer: Tokenizer = load_tokenizer(plan.folder)
        self.translator = ctranslate2.Translator(
            str(plan.folder),
            device="cpu",
            compute_type=plan.dtype,
            inter_threads=1,
            intra_threads=plan.threads,
        )
        self.source = _names(plan.folder, "source")
        self.target = {name: index for index, name in enumerate(_names(plan.folder, "target"))}
        self.modes: dict[str, str | None] = dict.fromkeys(plan.modes)
        self.largest_batch: dict[str, int] = {}

    def translate(self, texts: Sequence[str], mode: str) -> Translated:
        """Translate one batch."""
        rows = self.tokenizer.encode_batch(texts)
        results = self.translator.translate_batch(
            [[self.source[index] for index in row] for row in rows],
            beam_size=1,
            max_batch_size=len(rows),
            max_decoding_length=max(map(_max_tokens, rows)),
        )
        return _join(
            self.tokenizer,
            [[self.target[name] for name in result.hypotheses[0]] for result in results],
            rows,
        )

    def split_time(self, batches: Sequence[Sequence[str]], mode: str) -> None:
        """Return None: not supported."""


class TransformersEngine:
    """`generate` of transformers, optionally assisted by a smaller model."""

    def __init__(self, plan: EnginePlan) -> None:
        import torch
        from transformers import MarianMTModel

        from outrider.text.tokenizer import load_tokenizer

        torch.set_num_threads(plan.threads)
        self.tokenizer: Tokenizer = load_tokenizer(plan.folder)
        self.model = MarianMTModel.from_pretrained(plan.folder).eval()
        self.modes: dict[str, str | None] = dict.fromkeys(plan.modes)
        self.largest_batch = {"assisted": 1}
        self.assistant = None
        if plan.assistant is not None:
            self.assistant = MarianMTModel.from_pretrained(plan.assistant).eval()
        elif "assisted" in self.modes:
            self.modes["assisted"] = "it needs a smaller model; give one with --shallow"

    def translate(self, texts: Sequence[str], mode: str) -> Translated:
        """Translate one batch."""
        import torch

        eos, pad = self.tokenizer.eos_id, self.tokenizer.pad_id
        rows = self.tokenizer.encode_batch(texts)
        longest = max(map(len, rows))
        assistance = {"assistant_model": self.assistant} if mode == "assisted" else {}
        with torch.inference_mode():
            output = self.model.generate(
                input_ids=torch.tensor([[*r, eos, *[pad] * (longest - len(r))] for r in rows]),
                attention_mask=torch.tensor(
                    [[1] * (len(row) + 1) + [0] * (longest - len(row)) for row in rows]
                ),
                max_new_tokens=max(map(_max_tokens, rows)),
                num_beams=1,
                do_sample=False,
                use_cache=True,
                **assistance,
            )
        ids = [_until(row[1:], eos) for row in output.tolist()]  # without the start token
        return _join(self.tokenizer, ids, rows)

    def split_time(self, batches: Sequence[Sequence[str]], mode: str) -> None:
        """Return None: not supported."""


def _max_tokens(row: Sequence[int]) -> int:
    """Return the limit of our `Translator`: 3 tokens per source token and 30 more."""
    return 3 * len(row) + 30


def _until(row: list[int], end: int) -> list[int]:
    return row[: row.index(end)] if end in row else row


def _join(
    tokenizer: "Tokenizer", rows: Sequence[list[int]], sources: Sequence[list[int]]
) -> Translated:
    """Detokenize; a row without an end token is cut at its own limit, not that of its batch."""
    ids = [row[: _max_tokens(source)] for row, source in zip(rows, sources, strict=True)]
    texts = [text.strip() for text in tokenizer.decode_batch(ids)]
    return Translated(texts, sum(map(len, ids)))


def _names(folder: Path, side: str) -> list[str]:
    """Read the token strings of an exported model."""
    paths = (folder / f"{name}_vocabulary.json" for name in (side, "shared"))
    path = next(path for path in paths if path.is_file())
    names: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return names
