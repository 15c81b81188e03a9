"""Write a model again: for another engine, weight for weight, or smaller, for this one."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file

from outrider.data.sentencepiece_export import write_sentencepiece
from outrider.data.tokenizer import SubwordTokenizer, load_tokenizer
from outrider.errors import ConfigError, ModelError
from outrider.models import Seq2Seq, load_model
from outrider.models.folder import DTYPES, read_weights
from outrider.models.marian import to_marian
from outrider.runtime.folder import model_folder

__all__ = ["export_copy", "export_marian"]

RIDERS = ("drafter", "ctc")
"""Subfolders of a model with weights of their own."""


def export_marian(model: str | Path, folder: str | Path) -> Path:
    """Write the model as a Marian folder that transformers and converters of Marian can read."""
    source = model_folder(model)
    loaded, tokenizer = load_model(source), load_tokenizer(source)
    if not isinstance(loaded, Seq2Seq):
        raise ModelError(f"{source}: is a language model; Marian models translate")
    twin = to_marian(loaded)
    with _new_folder(Path(folder)) as draft:
        twin.save_pretrained(draft)
        if isinstance(tokenizer, SubwordTokenizer):
            write_sentencepiece(tokenizer, draft)
        else:
            tokenizer.save(draft)
    return Path(folder)


def export_copy(model: str | Path, folder: str | Path, *, dtype: str) -> Path:
    """Write the whole folder again, drafter and CTC decoder included, with weights as `dtype`."""
    source = model_folder(model)
    if dtype not in DTYPES:
        raise ConfigError("dtype", f"got {dtype!r}, expected one of {', '.join(DTYPES)}")
    load_model(source)  # what cannot be loaded is not worth copying
    with _new_folder(Path(folder)) as draft:
        for part in (".", *RIDERS):
            if (source / part / "config.json").is_file():
                _copy_part(source / part, draft / part, dtype)
    return Path(folder)


def _copy_part(source: Path, target: Path, dtype: str) -> None:
    target.mkdir(exist_ok=True)
    weights = {
        name: tensor.to(DTYPES[dtype]) if tensor.is_floating_point() else tensor
        for name, tensor in read_weights(source).items()
    }
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith(("model", ".")):
            shutil.copyfile(path, target / path.name)


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Give a place to write to; what is written appears under its name when it is complete."""
    if target.exists():
        raise ModelError(f"{target}: exists already; name a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as working:
        draft = Path(working) / "model"
        draft.mkdir()
        yield draft
        draft.rename(target)
