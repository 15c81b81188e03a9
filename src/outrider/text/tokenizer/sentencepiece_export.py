"""Write a unigram tokenizer as the SentencePiece files and vocabulary of a Marian folder.

A SentencePiece model is a protocol buffer of pieces, scores and a few settings; the field numbers
are those of `sentencepiece_model.proto`.
"""

import json
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from outrider.errors import UnsupportedError
from outrider.text.tokenizer.subword import SPECIAL_TOKENS, SubwordTokenizer

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
UNIGRAM = 1


def write_sentencepiece(tokenizer: SubwordTokenizer, folder: str | Path) -> None:
    """Write `source.spm`, `target.spm` and `vocab.json` with the ids of `tokenizer`."""
    pipeline = json.loads(tokenizer.pipeline.to_str())
    if pipeline["model"]["type"] != "Unigram":
        raise UnsupportedError(
            f"a {pipeline['model']['type']} tokenizer cannot be written as a SentencePiece model; "
            "train one with data.tokenizer.kind: unigram"
        )
    pieces: list[tuple[str, float]] = pipeline["model"]["vocab"]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model = sentencepiece_model(pieces)
    (folder / "source.spm").write_bytes(model)
    (folder / "target.spm").write_bytes(model)
    vocabulary = {piece: index for index, (piece, _) in enumerate(pieces)}
    text = json.dumps(vocabulary, ensure_ascii=False, indent=2)
    (folder / "vocab.json").write_text(text + "\n", encoding="utf-8")


def sentencepiece_model(pieces: list[tuple[str, float]], normalizer: bytes | None = None) -> bytes:
    """Return a unigram model: the special tokens first, every piece with its log-probability."""
    encoded = (_text(1, _piece(piece, score)) for piece, score in pieces)
    normalizer = _normalizer() if normalizer is None else normalizer
    return b"".join(encoded) + _text(2, _trainer(pieces)) + _text(3, normalizer)


def normalizer_of(model: bytes) -> bytes:
    """Return the serialized normalizer of a SentencePiece model."""
    normalizers = [content for field, _, content in _fields(model) if field == 3]
    if any(not isinstance(content, bytes) for content in normalizers):
        raise ValueError("not a SentencePiece model")
    return normalizers[-1] if normalizers else b""


def keep_pieces(model: bytes, kept: Collection[str]) -> bytes:
    """Return a SentencePiece model with only the kept ordinary pieces."""
    out = []
    for field, raw, content in _fields(model):
        if field == 1:
            parts = {number: value for number, _, value in _fields(content)}
            ordinary = parts.get(3, NORMAL) == NORMAL
            if ordinary and bytes(parts.get(1, b"")).decode(errors="replace") not in kept:
                continue
        out.append(raw)
    return b"".join(out)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, Any]]:
    """Yield the fields of a protocol buffer: number, bytes, and content."""
    place = 0
    while place < len(message):
        start = place
        key, place = _read_varint(message, place)
        if key & 7 == 0:
            content, place = _read_varint(message, place)
            yield key >> 3, message[start:place], content
            continue
        fixed = {1: 8, 5: 4}.get(key & 7)
        size, place = (fixed, place) if fixed is not None else _read_varint(message, place)
        if key & 7 not in (1, 2, 5) or place + size > len(message):
            raise ValueError("not a SentencePiece model")
        place += size
        yield key >> 3, message[start:place], message[place - size : place]


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if place == len(data):
            break
        value |= (data[place] & 0x7F) << shift
        place += 1
        if data[place - 1] < 0x80:
            return value, place
    raise ValueError("not a SentencePiece model")


def _piece(piece: str, score: float) -> bytes:
    kind = _kind(piece)
    score = score if kind == NORMAL else 0.0
    return _text(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + _number(3, kind)


def _kind(piece: str) -> int:
    if piece == SPECIAL_TOKENS["unk_token"]:
        return UNKNOWN
    if piece in SPECIAL_TOKENS.values():
        return CONTROL
    return BYTE if len(piece) == 6 and piece.startswith("<0x") else NORMAL


def _trainer(pieces: list[tuple[str, float]]) -> bytes:
    special = list(SPECIAL_TOKENS)
    ids = {"unk_token": 40, "bos_token": 41, "eos_token": 42, "pad_token": 43}
    texts = {"unk_token": 45, "bos_token": 46, "eos_token": 47, "pad_token": 48}
    bytewise = any(_kind(piece) == BYTE for piece, _ in pieces)
    fields = [_number(3, UNIGRAM), _number(4, len(pieces)), _number(35, bytewise)]
    fields += [_number(field, special.index(name)) for name, field in ids.items()]
    fields += [_text(field, SPECIAL_TOKENS[name].encode()) for name, field in texts.items()]
    return b"".join(fields)


def _normalizer() -> bytes:
    """No character mapping; a blank before the first word, extra blanks removed."""
    return _text(1, b"identity") + _number(3, 1) + _number(4, 1) + _number(5, 1)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
