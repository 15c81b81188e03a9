"""Write a model again: for another engine, weight for weight, or smaller, for this one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from outrider.backends.torch import TorchBackend
from outrider.data.tokenizer import SubwordTokenizer, Tokenizer, load_tokenizer
from outrider.data.tokenizer.marian import MarianTokenizer
from outrider.data.tokenizer.sentencepiece_export import write_sentencepiece
from outrider.errors import ConfigError, ModelError
from outrider.files import working_folder
from outrider.formats.folder import model_files
from outrider.formats.weights import DTYPES, read_weights, weight_files
from outrider.hub import model_folder
from outrider.models import Seq2Seq, load_model
from outrider.models.ctranslate2 import Words, to_ctranslate2
from outrider.models.folder import as_tensor
from outrider.models.marian import to_marian
from outrider.runtime.options import model_defaults

__all__ = ["export_copy", "export_ctranslate2", "export_marian"]

SIDE_DECODERS = ("drafter", "ctc")
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


def export_ctranslate2(
    model: str | Path, folder: str | Path, *, quantization: str = "float32"
) -> Path:
    """Write the model as a folder of CTranslate2; its tokenizer lies beside the weights."""
    source = model_folder(model)
    loaded, tokenizer = load_model(source), load_tokenizer(source)
    if not isinstance(loaded, Seq2Seq):
        raise ModelError(f"{source}: is a language model; only models that translate are exported")
    suppress = model_defaults(source, TorchBackend(loaded))["suppress"]
    spec = to_ctranslate2(loaded, _words(tokenizer), suppress=suppress, quantization=quantization)
    with _new_folder(Path(folder)) as draft:
        spec.save(str(draft))
        tokenizer.save(draft)
    return Path(folder)


def export_copy(model: str | Path, folder: str | Path, *, dtype: str) -> Path:
    """Write the whole folder again, drafter and CTC decoder included, with weights as `dtype`."""
    source = model_folder(model)
    if dtype not in DTYPES:
        raise ConfigError("dtype", f"got {dtype!r}, expected one of {', '.join(DTYPES)}")
    loaded = load_model(source)  # what cannot be loaded is not worth copying
    with _new_folder(Path(folder)) as draft:
        if weight_files(source) != model_files(source):  # of another format: written as ours
            loaded.to(getattr(torch, dtype)).save_pretrained(draft)
            load_tokenizer(source).save(draft)
            return Path(folder)
        for part in (".", *SIDE_DECODERS):
            if (source / part / "config.json").is_file():
                _copy_part(source / part, draft / part, dtype)
    return Path(folder)


def _words(tokenizer: Tokenizer) -> Words:
    """List the names of the tokens of both sides."""
    if isinstance(tokenizer, MarianTokenizer):
        sides = tokenizer.names
    elif isinstance(tokenizer, SubwordTokenizer):
        ids = tokenizer.pipeline.get_vocab(with_added_tokens=True)
        sides = (ids, ids)
    else:
        raise ModelError("a source with a tokenizer of its own cannot be exported")
    source, target = ({index: name for name, index in ids.items()} for ids in sides)
    places = range(tokenizer.vocab_size)
    return Words(
        [source.get(place, f"<unused {place}>") for place in places],
        [target.get(place, f"<unused {place}>") for place in places],
        tokenizer.unk_id,
    )


def _copy_part(source: Path, target: Path, dtype: str) -> None:
    target.mkdir(exist_ok=True)
    tensors = {name: as_tensor(weight) for name, weight in read_weights(source).items()}
    weights = {
        name: tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
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
    with working_folder(target) as draft:
        yield draft
