"""Lists of models: Mozilla's registry (`models.json`, also our own), Remote Settings, and the Hub.

    registry          {"baseUrl": …, "models": {"de-en": [{"architecture": "tiny", "files": …}]}}
    Remote Settings   {"data": [{"sourceLanguage": "de", "fileType": "lex", "attachment": …}]}

A list is untrusted: paths must stay below its base, names of files follow a pattern, sizes have
limits. A damaged entry is skipped and named in `Index.faults`.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from outrider.errors import ConfigError, ModelError
from outrider.languages import normalise_code

REGISTRY = (
    "https://storage.googleapis.com/moz-fx-translations-data--303e-prod-translations-data"
    "/db/models.json"
)
REMOTE_SETTINGS = "https://firefox.settings.services.mozilla.com/v1"
RECORDS = f"{REMOTE_SETTINGS}/buckets/main/collections/translations-models-v2/records"
MAJOR = 3
"""Major version of the models of that collection."""
MPL = "MPL-2.0"
FILE = "models.json"
"""Name of a list in a folder."""

_CODE = r"([A-Za-z]{2,3}(?:[-_](?:[A-Za-z]{4}|[A-Z]{2}))?)"
_PAIR = re.compile(f"{_CODE}-{_CODE}")

ROLES = {
    "model": ("model", "bin"),
    "lexicalShortlist": ("lex", "bin"),
    "vocab": ("vocab", "spm"),
    "srcVocab": ("srcvocab", "spm"),
    "trgVocab": ("trgvocab", "spm"),
}
"""Files of an entry: the registry's name, Remote Settings' name, which begins our name, and the
suffix."""
ROLE_OF = {role: key for key, (role, _) in ROLES.items()}
OPUS_MT = "opus-mt"
"""Architecture of OPUS-MT, whose files a list names by their own names."""
OPUS_NEEDED = ("config.json", "model.safetensors", "source.spm", "target.spm", "vocab.json")
OPUS_FILES = (*OPUS_NEEDED, "generation_config.json", "tokenizer_config.json", "README.md")
LARGEST = {"model": 2 << 30, "lex": 256 << 20}
"""Limits in bytes of decompressed files."""
LARGEST_OTHER = 32 << 20
_HASH = re.compile(r"[0-9a-f]{64}")
_ARCHITECTURE = re.compile(r"[A-Za-z0-9][\w.-]{0,31}")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})([ab]\d{1,4})?")


class Pair(NamedTuple):
    """Source and target language, normalised: `zh` for zh-Hans, `nb` for no."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"

    @classmethod
    def of(cls, source: str, target: str) -> "Pair":
        """Return the pair of two codes."""
        return cls(normalise_code(source), normalise_code(target))

    @classmethod
    def parse(cls, text: str) -> "Pair | None":
        """Return the pair of a name such as `de-en` or `en-zh-Hans`; None for other names."""
        match = _PAIR.fullmatch(text)
        return None if match is None else cls.of(match[1], match[2])

    @classmethod
    def require(cls, text: str) -> "Pair":
        """Return the pair of a name, or refuse the name."""
        pair = cls.parse(text)
        if pair is None:
            raise ConfigError(text, "is not a pair of languages; give one such as de-en")
        return pair


@dataclass(frozen=True)
class File:
    """A file of an entry; sizes and checksums are None if the list does not state them."""

    name: str
    url: str
    """A URL, or a path for a list in a folder."""
    size: int | None = None
    """Bytes after decompression."""
    sha256: str | None = None
    """Checksum after decompression."""
    sent_size: int | None = None
    """Bytes before decompression."""

    @property
    def largest(self) -> int:
        """The most bytes after decompression."""
        role = self.name.partition(".")[0]
        return LARGEST.get(role, LARGEST_OTHER) if self.size is None else self.size


@dataclass(frozen=True)
class Entry:
    """A model that a list offers."""

    pair: Pair
    architecture: str
    files: tuple[File, ...]
    origin: str
    """Name of the list."""
    licence: str
    release: bool = True
    version: str = ""
    comet: float | None = None
    """Mozilla's COMET on Flores, from 0 to 1."""

    @property
    def model(self) -> File:
        """The file of the weights."""
        return next(file for file in self.files if file.name.startswith("model."))

    @property
    def size(self) -> int | None:
        """Bytes of its files after decompression, as far as they are known."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if sizes else None


@dataclass(frozen=True)
class Index:
    """The entries of a list."""

    entries: tuple[Entry, ...]
    faults: tuple[str, ...] = ()
    """One sentence for each damaged entry."""


def read_registry(values: Mapping[str, Any], base: str, origin: str) -> Index:
    """Read Mozilla's registry or our own list.

    Args:
        values: The JSON object.
        base: The URL or folder of relative paths, if the list names no other.
        origin: Name of the list.
    """
    stated = values.get("baseUrl")
    if isinstance(stated, str) and stated:
        if urlsplit(stated).scheme not in ("http", "https"):
            raise ModelError(f"{origin}: baseUrl is {stated[:100]!r}, expected an https URL")
        base = stated
    models = values.get("models")
    if not isinstance(models, dict):
        raise ModelError(f"{origin}: models must hold one list for each pair")
    entries, faults = [], []
    for name, rows in models.items():
        for row in rows if isinstance(rows, list) else [rows]:
            try:
                entries.append(_registered(row, base, origin))
            except (ModelError, ConfigError) as error:
                faults.append(f"{name[:40]}: {error}")
    return Index(tuple(entries), tuple(faults))


def _registered(row: Any, base: str, origin: str) -> Entry:
    if not isinstance(row, dict) or not isinstance(row.get("files"), dict):
        raise ModelError("files is missing")
    pair = _pair(row)
    architecture = _architecture(row)
    opus = architecture == OPUS_MT
    files = [
        _registered_file(key, row["files"][key], base, pair)
        for key in (OPUS_FILES if opus else ROLES)
        if row["files"].get(key) is not None
    ]
    if opus and len([file for file in files if file.name in OPUS_NEEDED]) < len(OPUS_NEEDED):
        raise ModelError(f"files needs {', '.join(OPUS_NEEDED)}")
    status = row.get("releaseStatus")
    version = row.get("version", "")
    return Entry(
        pair,
        architecture,
        tuple(files) if opus else _complete(files),
        row["source"][:80] if isinstance(row.get("source"), str) else origin,
        row["licence"][:80] if isinstance(row.get("licence"), str) else MPL,
        release=isinstance(status, str) and status.startswith("Release"),
        version=version[:20] if isinstance(version, str) else "",
        comet=_comet(row),
    )


def _registered_file(key: str, stated: Any, base: str, pair: Pair) -> File:
    if not isinstance(stated, dict):
        raise ModelError(f"files.{key} is not an object")
    path, role = _text(stated, "path"), ROLES[key][0] if key in ROLES else key.partition(".")[0]
    name = _local_name(path, role, pair) if key in ROLES else key
    size, sha256 = stated.get("uncompressedSize"), stated.get("uncompressedHash")
    return File(name, _join(base, path), _size(size, role), _hash(sha256))


def read_records(values: Mapping[str, Any], base: str, origin: str) -> Index:
    """Read the records of Remote Settings; `base` is the URL of attachments."""
    rows = values.get("data")
    if not isinstance(rows, list):
        raise ModelError(f"{origin}: data must hold the list of records")
    groups: dict[tuple[Pair, str, str, bool], list[File]] = {}
    faults = []
    for row in rows:
        try:
            if not isinstance(row, dict) or row.get("fileType") not in ROLE_OF:
                continue
            version = _text(row, "version")
            match = _VERSION.fullmatch(version)
            if match is None or int(match[1]) != MAJOR:
                continue
            release = not row.get("filter_expression") and match[3] is None
            key = (_pair(row), _architecture(row), version, release)
            groups.setdefault(key, []).append(_attached(row, base))
        except (ModelError, ConfigError) as error:
            faults.append(f"{origin}: {error}")
    entries = []
    for (pair, architecture, version, release), files in groups.items():
        try:
            entry = Entry(pair, architecture, _complete(files), origin, MPL, release, version)
        except ModelError as error:
            faults.append(f"{pair}: {error}")
        else:
            entries.append(entry)
    return Index(tuple(entries), tuple(faults))


def _attached(row: Mapping[str, Any], base: str) -> File:
    """Return the file of a record."""
    attachment, role = row.get("attachment"), row["fileType"]
    if not isinstance(attachment, dict):
        raise ModelError("attachment is missing")
    sha256 = _hash(row.get("decompressedHash"))
    return File(
        _local_name(_text(row, "name"), role, _pair(row)),
        _join(base, _text(attachment, "location")),
        _size(row.get("decompressedSize"), role),
        sha256,
        sent_size=_size(attachment.get("size"), role),
    )


def version_key(version: str) -> tuple[int, int, bool, str]:
    """Order versions; `3.0a1` comes before `3.0`."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (0, 0, False, version)
    return (int(match[1]), int(match[2]), match[3] is None, match[3] or "")


def with_hashes(entry: Entry, others: Iterable[Entry]) -> Entry:
    """Add the checksums that another list states for the same model."""
    for other in others:
        if other.pair == entry.pair and other.model.sha256 == entry.model.sha256 is not None:
            known = {file.name.partition(".")[0]: file for file in other.files}
            return Entry(
                **{
                    **vars(entry),
                    "files": tuple(_with_hash(file, known) for file in entry.files),
                }
            )
    return entry


def _with_hash(file: File, known: Mapping[str, File]) -> File:
    other = known.get(file.name.partition(".")[0])
    if file.sha256 is not None or other is None:
        return file
    return File(file.name, file.url, other.size, other.sha256)


def _pair(row: Mapping[str, Any]) -> Pair:
    text = f"{_text(row, 'sourceLanguage')}-{_text(row, 'targetLanguage')}"
    return Pair.require(text)


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 1000:
        raise ModelError(f"{key} is {str(value)[:50]!r}, expected a text")
    return value


def _architecture(row: Mapping[str, Any]) -> str:
    value = row.get("architecture")
    if not isinstance(value, str) or not _ARCHITECTURE.fullmatch(value):
        raise ModelError(f"architecture is {str(value)[:50]!r}, expected a name such as tiny")
    return value


def _size(value: Any, role: str) -> int | None:
    largest = LARGEST.get(role, LARGEST_OTHER)
    if value is None:
        return None
    if type(value) is not int or not 0 < value <= largest:
        raise ModelError(f"the size of {role} is {str(value)[:30]}, expected 1 to {largest}")
    return value


def _hash(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ModelError(f"a checksum is {str(value)[:80]!r}, expected 64 hexadecimal digits")
    return value


def _comet(row: Mapping[str, Any]) -> float | None:
    """Return COMET on Flores; lists state it from 0 to 1 or from 0 to 100."""
    metrics = row.get("metrics")
    flores = metrics.get("flores200-plus") if isinstance(metrics, dict) else None
    value = flores.get("comet") if isinstance(flores, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 100:
        return None
    return round(value / 100 if value > 1 else float(value), 6)


def list_key(name: str) -> str:
    """Return the name of a file in a list."""
    return name if name in OPUS_FILES else ROLE_OF[name.partition(".")[0]]


def _complete(files: list[File]) -> tuple[File, ...]:
    """Require the weights, and one vocabulary or two."""
    roles = sorted(file.name.partition(".")[0] for file in files)
    known = {"lex", "model", "vocab"}, {"lex", "model", "srcvocab", "trgvocab"}
    if not any(set(roles) | {"lex"} == wanted for wanted in known) or len({*roles}) != len(roles):
        message = "expected model, vocab (or srcvocab and trgvocab), and lex or not"
        raise ModelError(f"its files are {', '.join(roles) or 'none'}; {message}")
    return tuple(sorted(files, key=lambda file: file.name))


def _local_name(path: str, role: str, pair: Pair) -> str:
    """Return the published name of a file if it follows the pattern of its role, else ours."""
    name = posixpath.basename(path).removesuffix(".gz").removesuffix(".zst")
    suffix = ROLES[ROLE_OF[role]][1]
    if re.fullmatch(rf"{role}\.[A-Za-z0-9][\w.-]{{0,99}}\.{suffix}", name):
        return name
    return f"{role}.{pair.source}{pair.target}.{suffix}"


def _join(base: str, path: str) -> str:
    """Return the URL, or for a folder the path, of a relative path that stays below `base`."""
    parts = unquote(path).split("/")
    if path.startswith("/") or "\\" in unquote(path) or ":" in parts[0] or ".." in parts:
        raise ModelError(f"path {path[:100]!r} leaves the list's folder")
    if not all(character.isprintable() for character in unquote(path)):
        raise ModelError(f"path {path[:100]!r} holds control characters")
    if urlsplit(base).scheme in ("http", "https"):
        return f"{base.rstrip('/')}/{quote(path, safe='/%')}"
    return posixpath.join(base, path)


def known_pairs(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the sorted names of pairs."""
    yield from sorted({str(entry.pair) for entry in entries})
