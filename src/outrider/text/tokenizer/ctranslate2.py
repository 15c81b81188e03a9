"""The tokenizer of a CTranslate2 folder: SentencePiece models beside it, or derived ones.

Argos packages have a SentencePiece model of the source only. Decoding of targets needs none: pieces
are joined, and their mark becomes a blank. For encoding of targets, a SentencePiece model is made
from the vocabulary, which is sorted by frequency: the piece at rank r has a probability
proportional to 1/r (Zipf), and characters are normalised as in the source.
"""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from outrider.errors import ModelError
from outrider.files import JsonFolder, read_limited
from outrider.formats.readers.ctranslate2 import read_vocabulary
from outrider.text.tokenizer.marian import LARGEST_MODEL, MarianTokenizer
from outrider.text.tokenizer.sentencepiece_export import normalizer_of, sentencepiece_model
from outrider.text.tokenizer.subword import SPECIAL_TOKENS

SOURCES = ("sentencepiece.model", "source.spm", "spm.model")
EULER = 0.5772
PAD = SPECIAL_TOKENS["pad_token"]


def read_ctranslate2(files: JsonFolder, model: Path) -> MarianTokenizer:
    """Read the tokenizer of a folder, with files there or beside `model.bin`."""
    folder, vocabulary = files.path, read_vocabulary(files.inner(model))
    source = _find(folder, model, *SOURCES)
    if source is None:
        names = " or ".join(SOURCES)
        raise ModelError(
            f"{folder}: holds no SentencePiece model of the source ({names}); copy it there"
        )
    pieces = read_limited(source, limit=LARGEST_MODEL)
    source_ids = _numbered(vocabulary.source, vocabulary.padding)
    target_ids = source_ids
    if vocabulary.source is not vocabulary.target:
        target_ids = _numbered(vocabulary.target, vocabulary.padding)
    target = _find(folder, model, "target.spm")
    separate = target_ids is not source_ids
    about = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    return MarianTokenizer(
        folder,
        source=pieces,
        target=partial(_by_rank, vocabulary.target, pieces)
        if target is None
        else read_limited(target, limit=LARGEST_MODEL),
        source_ids=source_ids,
        target_ids=target_ids,
        config=json.dumps(about, indent=2).encode(),
    )


def _find(folder: Path, model: Path, *names: str) -> Path | None:
    for path in (place / name for name in names for place in (folder, model)):
        if path.is_file():
            return path
    return None


def _numbered(tokens: Sequence[str], padding: int) -> dict[str, int]:
    """Return the ids of tokens, with padding."""
    ids = {token: number for number, token in enumerate(tokens) if number != padding}
    return {**ids, PAD: padding}


def _by_rank(tokens: Sequence[str], source: bytes) -> bytes:
    """Return a SentencePiece model of a vocabulary that is sorted by frequency."""
    special = set(SPECIAL_TOKENS.values())
    pieces = [(token, 0.0) for token in SPECIAL_TOKENS.values()]
    words = [token for token in tokens if token and token not in special]
    total = math.log(len(words)) + EULER  # of 1/1 + 1/2 + ... + 1/n
    pieces += [(word, -math.log(rank * total)) for rank, word in enumerate(words, 1)]
    return sentencepiece_model(pieces, normalizer_of(source))
