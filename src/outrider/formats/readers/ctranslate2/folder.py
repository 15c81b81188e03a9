"""A CTranslate2 folder as a model of ours."""

from pathlib import Path

from outrider.errors import ModelError
from outrider.files import read_json
from outrider.formats.description import Seq2SeqDescription
from outrider.formats.readers.ctranslate2.binary import read_binary
from outrider.formats.readers.ctranslate2.transformer import import_config, import_weights
from outrider.formats.readers.ctranslate2.vocabulary import read_vocabulary
from outrider.formats.safetensors import Weight

__all__ = ["find", "read"]

FILE = "model.bin"
SPECIFICATION = "TransformerSpec"


def find(folder: Path) -> Path | None:
    """Return the `model.bin` of a folder; Argos packages have it one level further down."""
    for path in (folder / FILE, folder / "model" / FILE):
        if path.is_file():
            return path
    return None


def read(path: Path) -> tuple[Seq2SeqDescription, dict[str, Weight]]:
    """Say what model a `model.bin` holds, and map its weights."""
    found = read_binary(path)
    if found.specification != SPECIFICATION:
        kind = f"it holds a {found.specification[:80]}; of CTranslate2's models, Outrider reads"
        raise ModelError(f"{kind} encoder-decoders ({SPECIFICATION})")
    vocabulary = read_vocabulary(path.parent)
    config = import_config(found.variables, vocabulary, read_json(path.parent / "config.json"))
    return config, import_weights(found.variables, vocabulary, config)
