"""Every error a user can cause, as one tree.

OutriderError
├── ConfigError          a key or value in a config, an override or an option is wrong
├── DataError            a corpus, shard or prepared folder is not what it should be
├── ModelError           a model folder is missing, foreign or damaged
├── InputError           a text or request handed to a loaded model cannot be processed
├── UnsupportedError     the chosen parts cannot do this (declared by the part itself)
├── ResourceError        the machine ran out of something: disk, memory, permission
└── MissingExtraError    an optional dependency is not installed

A message names the key as the user typed it, the value received, what is accepted, and the fix.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

__all__ = [
    "ConfigError",
    "DataError",
    "FallbackWarning",
    "InputError",
    "MissingExtraError",
    "ModelError",
    "OutriderError",
    "ResourceError",
    "ScriptWarning",
    "SettingsWarning",
    "UnsupportedError",
    "is_out_of_memory",
    "missing_extra",
    "nearest",
    "within_memory",
]

_NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "storage size calculation overflowed",
)
"""How PyTorch and others say it in a RuntimeError, in small letters."""
SMALLER = (
    "give smaller batches (batch_tokens), shorter texts or fewer beams, or use a smaller model"
)

LONGEST_KEY = 200
"""Characters of a key that a message repeats."""


EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "accelerate"), ("PyTorch", "train")),
    **{name: (name, "train") for name in ("pyarrow", "sacrebleu", "safetensors")},
    "datasets": ("datasets", "hub"),
    "matplotlib": ("matplotlib", "plot"),
    "ctranslate2": ("ctranslate2", "peers"),
    "peft": ("peft", "lora"),
    "py3langid": ("py3langid", "language"),
    "rouge_score": ("rouge-score", "rouge"),
    "fsspec": ("fsspec", "stores"),
    "prometheus_client": ("prometheus-client", "serve"),
    **{name: (name, "serve") for name in ("fastapi", "starlette", "uvicorn", "jinja2")},
}
"""Modules that `pip install outrider` does not bring: their name, and the extra that has them."""


class OutriderError(Exception):
    """Base of all errors caused by a user's input; the command line prints it and exits with 2."""

    def __init__(self, message: str) -> None:
        # One line, also where it quotes a library that writes several.
        super().__init__(" ".join(message.split()))


class ConfigError(OutriderError):
    """A wrong key or value; `key` is spelled as the user typed it."""

    def __init__(self, key: str, message: str) -> None:
        shown = key if len(key) <= LONGEST_KEY else f"{key[:LONGEST_KEY]}..."
        super().__init__(f"{shown}: {message}")
        self.key = key


class DataError(OutriderError):
    """A corpus or prepared folder is not what it should be."""


class ModelError(OutriderError):
    """A model folder is missing, of a foreign kind, or damaged."""


class InputError(OutriderError):
    """A text handed to a loaded model cannot be processed."""


class UnsupportedError(OutriderError):
    """The chosen parts cannot do what was asked of them."""


class ResourceError(OutriderError):
    """The machine ran out of disk, memory or permission."""


class MissingExtraError(OutriderError):
    """An optional dependency is missing; the message says how to install it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed: pip install 'outrider[{extra}]'"
        )


class MissingLabError(OutriderError):
    """The package with the commands of `outrider lab` is missing."""

    def __init__(self) -> None:
        super().__init__(
            "outrider lab needs the package outrider-lab, which is not published: in a clone of "
            "the repository, pip install --editable lab"
        )


def missing_extra(error: ModuleNotFoundError, purpose: str) -> Exception:
    """Say which extra brings what could not be imported; `error` itself where none does."""
    name = (error.name or "").partition(".")[0]
    if name not in EXTRAS:
        return error
    package, extra = EXTRAS[name]
    return MissingExtraError(package, extra, purpose)


class FallbackWarning(UserWarning):
    """Something was asked for that another part does instead, as well but not as fast."""


class ScriptWarning(UserWarning):
    """A text is in a script that the language of the model does not use."""


class SettingsWarning(UserWarning):
    """A model folder has generation settings that are not applied."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the choice closest to `word`, or an empty string."""
    close = get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, PyTorch (which has several ways to say it) or the core found no memory."""
    text = str(error).lower()
    found = isinstance(error, RuntimeError) and any(one in text for one in _NO_MEMORY)
    return found or isinstance(error, MemoryError)


@contextmanager
def within_memory(doing: str, fix: str = SMALLER) -> Iterator[None]:
    """Say in one sentence what could not be done for lack of memory, and what to do about it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ResourceError(f"{doing}: the machine ran out of memory; {fix}") from None
