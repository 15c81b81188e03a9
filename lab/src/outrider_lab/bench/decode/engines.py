"""The engines of `bench decode`, each at its best setting.

Engines take texts and return texts, so tokenizing and detokenizing are part of the time. All decode
greedily, from the same weights, with the same length limit and suppressed tokens. Nothing heavy is
imported before an engine is built: each runs in a process of its own, whose memory is measured.
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

__all__ = [
    "CTranslate2Engine",
    "Engine",
    "EnginePlan",
    "OutriderEngine",
    "TimeSplit",
    "TransformersEngine",
    "Translated",
    "build_engine",
]

Library = Literal["torch", "native", "ctranslate2", "transformers"]

MODES = ("ar", "tandem", "parallel")
_ONE_BATCH = 1 << 20
"""Token limit of a batch: so large that a batch is never split."""


@dataclass(frozen=True)
class EnginePlan:
    """Which library computes what, with how many threads."""

    name: str
    """What `--engines` calls it."""
    library: Library
    folder: Path
    """What it loads: a model folder of ours, or an exported one."""
    dtype: str = "float32"
    threads: int = 1
    modes: tuple[str, ...] = ("ar",)
    """Decoding modes to measure."""
    shallow: bool = False
    """Whether the model is the one with a shallow decoder."""
    assistant: Path | None = None
    """An exported model that drafts for transformers' assisted generation."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its process."""


class Translated(NamedTuple):
    """What an engine made of a batch."""

    texts: list[str]
    tokens: int
    """Target tokens written, without end tokens."""


@dataclass
class TimeSplit:
    """Where the time of some batches went, in seconds."""

    wall: float = 0.0
    text: float = 0.0
    """Inside the tokenizer."""
    core: dict[str, float] = field(default_factory=dict)
    """Inside the backend, by method."""
    sentences: int = 0
    statistics: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio_to_bare_engine(self) -> float:
        """Time of decoding over the part of it that was spent inside the core."""
        return (self.wall - self.text) / sum(self.core.values())


class Engine(Protocol):
    """What the worker of an engine asks of it."""

    modes: dict[str, str | None]
    """Decoding modes asked for, each with the reason why it is not supported, or None."""
    largest_batch: dict[str, int]
    """Largest batch size of the modes that have a limit."""

    def translate(self, texts: Sequence[str], mode: str) -> Translated:
        """Translate one batch."""
        ...

    def split_time(self, batches: Sequence[Sequence[str]], mode: str) -> TimeSplit | None:
        """Translate batches again and return where the time goes; None where that is not known."""
        ...


def build_engine(plan: EnginePlan) -> Engine:
    """Load the engine; raises an `OutriderError` where that cannot be done."""
    builders: dict[Library, Callable[[EnginePlan], Engine]] = {
        "torch": OutriderEngine,
        "native": OutriderEngine,
        "ctranslate2": CTranslate2Engine,
        "transformers": TransformersEngine,
    }
    return builders[plan.library](plan)


_PARTS = ("drafts", "slots")
"""Parts of a backend that compute as well."""


class _Timed:
    """A proxy that adds up the time spent in the methods of an object and of its parts."""

    def __init__(self, target: Any, seconds: dict[str, float] | None = None) -> None:
        self._target = target
        self.seconds: dict[str, float] = defaultdict(float) if seconds is None else seconds

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name in _PARTS and found is not None:
            part = _Timed(found, self.seconds)
            setattr(self, name, part)
            return part
        if not callable(found):
            return found

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return found(*arguments, **options)
            finally:
                self.seconds[name] += time.perf_counter() - began

        setattr(self, name, timed)  # built once, so that the proxy costs little
        return timed


class OutriderEngine:
    """Ours, on PyTorch or on the native core."""

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
            raise ModelError(f"{plan.folder}: is a language model; it translates nothing")
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
        # Lines whole: the other engines split nothing.
        found = self.translator.results(texts, split=False, batch_tokens=_ONE_BATCH, mode=mode)
        best = [results[0] for results in found]
        return Translated([one.text for one in best], sum(len(one.tokens) for one in best))

    def split_time(self, batches: Sequence[Sequence[str]], mode: str) -> TimeSplit:
        """Translate batches again with timers around the backend and the tokenizer."""
        from outrider.decoding.statistics import Statistics

        backend, tokenizer = _Timed(self.translator.backend), _Timed(self.translator.tokenizer)
        timed = self._like(backend, tokenizer)
        if mode == "tandem":
            timed.controller = self.translator.controller  # with what it has learned
        seen, statistics = TimeSplit(), Statistics()
        for texts in batches:
            began = time.perf_counter()
            timed.results(texts, split=False, batch_tokens=_ONE_BATCH, stats=statistics, mode=mode)
            seen.wall += time.perf_counter() - began
            seen.sentences += len(texts)
        seen.core, seen.text = dict(backend.seconds), sum(tokenizer.seconds.values())
        seen.statistics = statistics.as_dict()
        return seen

    def _like(self, backend: Any, tokenizer: Any) -> "Translator":
        ours = self.translator
        return type(ours)(backend, tokenizer, longest=ours.longest, defaults=ours.defaults)


class CTranslate2Engine:
    """CTranslate2 on the exported weights."""

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
        found = self.translator.translate_batch(
            [[self.source[index] for index in row] for row in rows],
            beam_size=1,
            max_batch_size=len(rows),
            max_decoding_length=max(map(_most_tokens, rows)),
        )
        return _join(
            self.tokenizer,
            [[self.target[name] for name in one.hypotheses[0]] for one in found],
            rows,
        )

    def split_time(self, batches: Sequence[Sequence[str]], mode: str) -> None:
        """Return None: this engine does not report it."""


class TransformersEngine:
    """`generate` of transformers on the same weights, alone or assisted by a smaller model."""

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
            self.modes["assisted"] = "it needs a smaller model to assist; give one with --shallow"

    def translate(self, texts: Sequence[str], mode: str) -> Translated:
        """Translate one batch."""
        import torch

        eos, pad = self.tokenizer.eos_id, self.tokenizer.pad_id
        rows = self.tokenizer.encode_batch(texts)
        longest = max(map(len, rows))
        helper = {"assistant_model": self.assistant} if mode == "assisted" else {}
        with torch.inference_mode():
            written = self.model.generate(
                input_ids=torch.tensor([[*r, eos, *[pad] * (longest - len(r))] for r in rows]),
                attention_mask=torch.tensor(
                    [[1] * (len(row) + 1) + [0] * (longest - len(row)) for row in rows]
                ),
                max_new_tokens=max(map(_most_tokens, rows)),
                num_beams=1,
                do_sample=False,
                use_cache=True,
                **helper,
            )
        ids = [_until(row[1:], eos) for row in written.tolist()]  # without the start token
        return _join(self.tokenizer, ids, rows)

    def split_time(self, batches: Sequence[Sequence[str]], mode: str) -> None:
        """Return None: this engine does not report it."""


def _most_tokens(row: Sequence[int]) -> int:
    """Allow what our `Translator` allows: 3 tokens for each of the source and 30 more."""
    return 3 * len(row) + 30


def _until(row: list[int], end: int) -> list[int]:
    return row[: row.index(end)] if end in row else row


def _join(
    tokenizer: "Tokenizer", rows: Sequence[list[int]], sources: Sequence[list[int]]
) -> Translated:
    """Detokenize; a row without an end token is cut at its own limit, not that of its batch."""
    ids = [row[: _most_tokens(source)] for row, source in zip(rows, sources, strict=True)]
    texts = [text.strip() for text in tokenizer.decode_batch(ids)]
    return Translated(texts, sum(map(len, ids)))


def _names(folder: Path, side: str) -> list[str]:
    """Read the names of the tokens of an exported model."""
    paths = (folder / f"{name}_vocabulary.json" for name in (side, "shared"))
    path = next(path for path in paths if path.is_file())
    names: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return names
