"""Errors about a model name its keys as they stand in a run config."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import StrictDataclassError

from outrider.errors import ConfigError

__all__ = ["keys_as_typed"]


@contextmanager
def keys_as_typed() -> Iterator[None]:
    """Put `model.` before the key of an error."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"model.{error.key}", str(error).removeprefix(f"{error.key}: ")) from None
    except StrictDataclassError as error:
        message = " ".join(str(error.__cause__ or error).split())
        raise ConfigError("model", f"a value has the wrong type: {message}") from None
