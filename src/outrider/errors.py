"""All errors that a user can cause.

OutriderError
├── ConfigError          a key or value in a config, an override or an option is wrong
├── DataError            a corpus, shard or prepared folder is missing or damaged
├── ModelError           a model folder is missing, damaged or of an unknown kind
├── InputError           a text or request cannot be processed
├── UnsupportedError     the chosen parts do not support this
├── ResourceError        no disk space, memory or permission
└── MissingExtraError    an optional dependency is not installed

A message names the key as typed, the value, the accepted values, and the fix.
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
"""Messages of RuntimeErrors for memory, in lower case."""
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
    "markdown_it": ("markdown-it-py", "documents"),
    "peft": ("peft", "lora"),
    "py3langid": ("py3langid", "language"),
    "rouge_score": ("rouge-score", "rouge"),
    "fsspec": ("fsspec", "stores"),
    "prometheus_client": ("prometheus-client", "serve"),
    **{
        name: (name, "serve") for name in ("fastapi", "starlette", "uvicorn", "jinja2", "zstandard")
    },
}
"""Optional modules: the name of their package, and the extra that installs it."""


class OutriderError(Exception):
    """Base of all errors that a user can cause; the command line prints it and exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))  # messages of libraries may have several lines


class ConfigError(OutriderError):
    """A wrong key or value; `key` is spelled as typed."""

    def __init__(self, key: str, message: str) -> None:
        shown = key if len(key) <= LONGEST_KEY else f"{key[:LONGEST_KEY]}..."
        super().__init__(f"{shown}: {message}")
        self.key, self.message = key, message


class DataError(OutriderError):
    """A corpus or prepared folder is missing or damaged."""


class ModelError(OutriderError):
    """A model folder is missing, damaged or of an unknown kind."""


class InputError(OutriderError):
    """A text or request cannot be processed."""


class UnsupportedError(OutriderError):
    """The chosen parts do not support this."""


class ResourceError(OutriderError):
    """The machine has no disk space, memory or permission left."""


class MissingExtraError(OutriderError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed: pip install 'outrider[{extra}]'"
        )


class MissingLabError(OutriderError):
    """The package with the commands of `outrider lab` is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "outrider lab needs the package outrider-lab, which is not published: in a clone of "
            "the repository, pip install --editable lab"
        )


def missing_extra(error: ModuleNotFoundError, purpose: str) -> Exception:
    """Return an error that names the extra of a missing module; `error` if no extra has it."""
    name = (error.name or "").partition(".")[0]
    if name not in EXTRAS:
        return error
    package, extra = EXTRAS[name]
    return MissingExtraError(package, extra, purpose)


class FallbackWarning(UserWarning):
    """A slower part with the same result is used."""


class ScriptWarning(UserWarning):
    """A text is in a script that the model's language does not use."""


class SettingsWarning(UserWarning):
    """A model folder has generation settings that are not applied."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the choice closest to `word`, or an empty string."""
    close = get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, PyTorch or the native core failed to allocate memory."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(phrase in text for phrase in _NO_MEMORY)
    )


@contextmanager
def within_memory(doing: str, fix: str = SMALLER) -> Iterator[None]:
    """Turn failed allocations into a `ResourceError` that names the action and the fix."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ResourceError(f"{doing}: the machine ran out of memory; {fix}") from error
