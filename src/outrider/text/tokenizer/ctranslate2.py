"""The tokenizer of a CTranslate2 folder: Marian's files, where they lie beside it, or made for it.

Argos packages hold one SentencePiece model, that of the source. The target needs none to be
written: its pieces are joined, and their mark becomes a blank. To read a target (a model is tuned,
a draft is judged), its vocabulary is made into a SentencePiece model: it is sorted by frequency,
so the piece at rank r has a share of 1/r (Zipf), and characters are normalised as in the
source.
"""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from outrider.errors import ModelError
from outrider.files import read_limited
from outrider.formats.readers.ctranslate2 import read_vocabulary
from outrider.text.tokenizer.marian import LARGEST_MODEL, MarianTokenizer
from outrider.text.tokenizer.sentencepiece_export import normalizer_of, sentencepiece_model
from outrider.text.tokenizer.subword import SPECIAL_TOKENS

__all__ = ["read_ctranslate2"]

SOURCES = ("sentencepiece.model", "source.spm", "spm.model")
EULER = 0.5772
PAD = SPECIAL_TOKENS["pad_token"]


def read_ctranslate2(folder: Path, model: Path) -> MarianTokenizer:
    """Read the tokenizer that lies in a folder or in that of `model.bin` inside it."""
    vocabulary = read_vocabulary(model)
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
    """Return a vocabulary as Marian has it, with padding."""
    ids = {token: number for number, token in enumerate(tokens) if number != padding}
    return {**ids, PAD: padding}


def _by_rank(tokens: Sequence[str], source: bytes) -> bytes:
    """Make a SentencePiece model of a vocabulary that is sorted by frequency."""
    special = set(SPECIAL_TOKENS.values())
    pieces = [(token, 0.0) for token in SPECIAL_TOKENS.values()]
    words = [token for token in tokens if token and token not in special]
    total = math.log(len(words)) + EULER  # of 1/1 + 1/2 + ... + 1/n
    pieces += [(word, -math.log(rank * total)) for rank, word in enumerate(words, 1)]
    return sentencepiece_model(pieces, normalizer_of(source))
