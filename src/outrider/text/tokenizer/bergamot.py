"""The tokenizer of a Bergamot folder: one SentencePiece model for both sides, or two.

Ids are those of SentencePiece. Padding, the decoder's start token, has the id after all of them.
"""

import json
from pathlib import Path

import sentencepiece

from outrider.errors import ModelError
from outrider.files import read_limited
from outrider.formats.readers.bergamot import EOS, find_files
from outrider.text.tokenizer.marian import LARGEST_MODEL, MarianTokenizer
from outrider.text.tokenizer.subword import SPECIAL_TOKENS

PAD = SPECIAL_TOKENS["pad_token"]


def read_bergamot(folder: Path) -> MarianTokenizer:
    """Read `vocab.*.spm`, or `srcvocab.*.spm` and `trgvocab.*.spm`."""
    shared, source, target = find_files(folder, "vocab.*.spm", "srcvocab.*.spm", "trgvocab.*.spm")
    source, target = shared or source, shared or target
    if source is None or target is None:
        raise ModelError(f"{folder}: holds neither vocab.*.spm nor srcvocab.*.spm and trgvocab.*")
    source_ids = _pieces(source)
    target_ids = source_ids if target == source else _pieces(target)
    for ids in (source_ids, target_ids):
        ids[PAD] = max(len(ids.keys() - {PAD}) for ids in (source_ids, target_ids))
    about = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": target != source}
    return MarianTokenizer(
        folder,
        source=read_limited(source, limit=LARGEST_MODEL),
        target=read_limited(target, limit=LARGEST_MODEL),
        source_ids=source_ids,
        target_ids=target_ids,
        config=json.dumps(about, indent=2).encode(),
    )


def _pieces(path: Path) -> dict[str, int]:
    raw = read_limited(path, limit=LARGEST_MODEL)
    try:
        model = sentencepiece.SentencePieceProcessor(model_proto=raw)
    except (RuntimeError, OSError) as error:
        raise ModelError(f"{path}: is not a SentencePiece model") from error
    if model.eos_id() != EOS or model.unk_id() < 0:
        message = f"its end token is {model.eos_id()}, expected {EOS}"
        raise ModelError(f"{path}: {message}, and an unknown token")
    return {model.id_to_piece(number): number for number in range(model.get_piece_size())}
