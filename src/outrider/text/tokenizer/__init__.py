"""Tokenizers. The text of a special token, such as `</s>`, is read as ordinary characters.

`subword.py` has ours, pipelines of the `tokenizers` library; `marian.py` those of Marian models
(two SentencePiece files and a vocabulary); `pair.py` pairs of a pretrained encoder's tokenizer for
the source and another for the target.
"""

from pathlib import Path
from typing import Any

from outrider.errors import ModelError
from outrider.files import JsonFolder, Location
from outrider.formats.readers import has_binary
from outrider.text.tokenizer.pair import SOURCE_FILE, PairTokenizer, SourceTokenizer
from outrider.text.tokenizer.subword import (
    SPECIAL_TOKENS,
    SubwordTokenizer,
    Tokenizer,
    read_pipeline,
)

__all__ = ["SPECIAL_TOKENS", "SubwordTokenizer", "Tokenizer", "load_tokenizer"]


def load_tokenizer(folder: Location) -> Tokenizer:
    """Read the tokenizer of a prepared folder or of a model folder."""
    files = JsonFolder.of(folder)
    target = _load_tokenizer(files)
    source = files.path / SOURCE_FILE
    return PairTokenizer(SourceTokenizer(source), target) if source.is_file() else target


def _load_tokenizer(files: JsonFolder) -> Tokenizer:
    folder = files.path
    binary = has_binary(folder)
    if binary:
        from outrider.formats.readers import bergamot

        if bergamot.find(folder) is not None:
            from outrider.text.tokenizer.bergamot import read_bergamot

            return read_bergamot(folder)
    if (folder / "tokenizer.json").is_file():
        return _load_subword(files)
    if binary:
        from outrider.formats.readers import ctranslate2
        from outrider.text.tokenizer.ctranslate2 import read_ctranslate2

        if (model := ctranslate2.find(folder)) is not None:
            return read_ctranslate2(files, model.parent)
    if (folder / "source.spm").is_file():
        from outrider.text.tokenizer.marian import read_marian

        return read_marian(files)
    raise ModelError(
        f"{folder} holds no tokenizer: neither tokenizer.json nor source.spm with vocab.json"
    )


def _load_subword(files: JsonFolder) -> SubwordTokenizer:
    pipeline = read_pipeline(files.path / "tokenizer.json")
    config_file = files.path / "tokenizer_config.json"
    if not config_file.exists():
        return SubwordTokenizer(pipeline)
    config = files.json(config_file.name)
    special = {name: config[name] for name in SPECIAL_TOKENS if config.get(name)}
    named = {name: _content(config_file, name, token) for name, token in special.items()}
    return SubwordTokenizer(pipeline, {**_model_tokens(files, pipeline), **named})


def _model_tokens(files: JsonFolder, pipeline: Any) -> dict[str, str]:
    """Return the special tokens of the model's config, which some tokenizers do not name."""
    config, found = files.json("config.json"), {}
    for name in SPECIAL_TOKENS:
        token = config.get(f"{name}_id")
        token = token[0] if isinstance(token, list) and token else token
        text = pipeline.id_to_token(token) if type(token) is int and 0 <= token < 1 << 32 else None
        if text is not None:
            found[name] = text
    return found


def _content(file: Path, name: str, token: Any) -> str:
    """Return the text of a token, which transformers writes as text or as a dictionary."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise ModelError(f"{file}: {name} is {str(token)[:80]!r}, expected a token")
    return text
