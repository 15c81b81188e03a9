"""The vocabularies of a CTranslate2 folder, numbered so that a model of ours can use them.

Ours have one number each for padding and for the end of a text, on both sides, and feed the decoder
an ordinary token first. Theirs may number the sides apart, have no padding, and start from zeros:
then two tokens of the source change places, and the tables get one more row, of zeros.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ModelError
from outrider.files import read_json, read_json_list, read_limited

__all__ = ["PAD", "Vocabulary", "read_vocabulary"]

LARGEST = 64 << 20
TOKEN_LIMIT = 1 << 22
PAD = "<pad>"
PADDINGS = (PAD, "<blank>")
"""Names of a padding token: Marian's and fairseq's, OpenNMT's."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of both sides by their numbers, and the special ones among them."""

    source: list[str]
    target: list[str]
    end: int
    """Number of the end of a text, on both sides."""
    unknown: int
    padding: int
    start: int | None
    """What the decoder is fed first; None where the config names nothing."""
    swapped: tuple[int, int] | None
    """Rows of the source that changed places."""
    ends_source: bool
    """Whether a source ends with the end token."""

    @property
    def rows(self) -> int:
        """Rows of the longer table, as it is in the file."""
        return max(len(self.source), len(self.target))


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read `config.json` and the vocabularies that lie beside `model.bin`."""
    config = read_json(folder / "config.json")
    source, target = _read_sides(folder)
    end, unknown = (
        _number(folder, target, config, key, usual)
        for key, usual in (("eos_token", "</s>"), ("unk_token", "<unk>"))
    )
    swapped = None
    if source is not target and target[end] in source and source.index(target[end]) != end:
        swapped = source.index(target[end]), end
        if end >= len(source):
            raise ModelError(f"{folder}: the end token {end} is no token of the source")
        source[swapped[0]], source[end] = source[end], source[swapped[0]]
    return Vocabulary(
        source,
        target,
        end=end,
        unknown=unknown,
        padding=_padding(source, target),
        start=_start(folder, target, config),
        swapped=swapped,
        ends_source=_flag(folder, config, "add_source_eos"),
    )


def _start(folder: Path, target: list[str], config: Mapping[str, Any]) -> int | None:
    if _flag(folder, config, "add_source_bos"):
        raise ModelError(f"{folder / 'config.json'}: add_source_bos is true: not supported")
    name = config.get("decoder_start_token", "<s>")
    return target.index(name) if name in target else None


def _padding(source: list[str], target: list[str]) -> int:
    """Return the padding token that both sides have, or the number after all tokens."""
    for name in PADDINGS:
        number = target.index(name) if name in target else len(source)
        if number < len(source) and source[number] == name:
            return number
    return max(len(source), len(target))


def _number(
    folder: Path, tokens: list[str], config: Mapping[str, Any], key: str, usual: str
) -> int:
    name = config.get(key, usual)
    if name not in tokens:
        raise ModelError(
            f"{folder / 'config.json'}: {key} is {str(name)[:80]!r}, which is no token"
        )
    return tokens.index(name)


def _flag(folder: Path, config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ModelError(
            f"{folder / 'config.json'}: {key} is {str(value)[:80]!r}, not true or false"
        )
    return value


def _read_sides(folder: Path) -> tuple[list[str], list[str]]:
    shared = _find(folder, "shared_vocabulary")
    if shared is not None:
        tokens = _read(shared)
        return tokens, tokens
    sides = [_find(folder, f"{side}_vocabulary") for side in ("source", "target")]
    if None in sides:
        raise ModelError(f"{folder}: has neither shared_vocabulary.json nor one of each side")
    source, target = (_read(path) for path in sides if path is not None)
    return source, target


def _find(folder: Path, name: str) -> Path | None:
    for path in (folder / f"{name}.json", folder / f"{name}.txt"):
        if path.is_file():
            return path
    return None


def _read(path: Path) -> list[str]:
    tokens = list(_tokens(path))
    if not tokens or len(tokens) > TOKEN_LIMIT or len(set(tokens)) != len(tokens):
        raise ModelError(
            f"{path}: is not a list of different tokens, at most {TOKEN_LIMIT} of them"
        )
    return tokens


def _tokens(path: Path) -> Iterator[str]:
    if path.suffix == ".json":
        for token in read_json_list(path, limit=LARGEST):
            if not isinstance(token, str):
                raise ModelError(f"{path}: {str(token)[:80]!r} is no token")
            yield token
    else:
        raw = read_limited(path, limit=LARGEST)
        try:
            yield from raw.decode("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError as problem:
            raise ModelError(f"{path}: is not UTF-8 text at byte {problem.start}") from None
