"""Glossaries: terms of a source language and how they are translated.

Read from TSV (source, target and optionally `inflect`, one term a line), TMX and TBX. A term is
found as whole words, in scripts without spaces anywhere; in any case unless it has capitals. The
longest term is taken. With `inflect` the source may also end in `s` or `es`, and the translation
may have another ending.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from outrider.errors import DataError
from outrider.languages import normalise_code

LARGEST = 10 << 20
"""Most bytes of a glossary."""
LONGEST_TERM = 1024
"""Most characters of a term."""
DEEPEST = 64
"""Most XML elements inside each other."""
INFLECT = "inflect"
"""The third column of a term that may be inflected."""
SHORTEST_STEM, STEM, ENDING = 4, 0.7, 4
"""Fewest letters of a stem, its share of the letters of a word, and most letters of another ending.
"""

_DENSE = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_UNIT = re.compile(rf"[{_DENSE}]|[^\W{_DENSE}]+|[^\w\s]")
"""A character of a script without spaces, a word, or a mark."""
_IS_DENSE = re.compile(f"[{_DENSE}]")


class Entry(NamedTuple):
    """A term and its translation."""

    source: str
    target: str
    inflected: bool = False
    """Whether both may have other endings."""


class Match(NamedTuple):
    """A term in a text."""

    start: int
    end: int
    entry: Entry


class Glossary:
    """Terms with their translations."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = tuple(entries)

    @cached_property
    def _by_first(self) -> dict[str, list[Entry]]:
        """Return the terms by their first word, the longest first."""
        found = defaultdict(list)
        for entry in sorted(self.entries, key=lambda entry: -len(entry.source)):
            first = _UNIT.search(lower(entry.source))
            if first is not None:
                found[first[0]].append(entry)
        return dict(found)

    def find(self, text: str) -> list[Match]:
        """Return the terms in a text from left to right; they do not overlap."""
        matches: list[Match] = []
        low, end = lower(text), 0
        for unit in _UNIT.finditer(low):
            if unit.start() < end:
                continue
            word = unit[0]
            forms = [word, *(word.removesuffix(ending) for ending in ("s", "es"))]
            entries = [
                entry for form in dict.fromkeys(forms) for entry in self._by_first.get(form, ())
            ]
            for entry in sorted(entries, key=lambda entry: -len(entry.source)):
                last = _end(entry.source, text, low, unit.start(), plural=entry.inflected)
                if last is not None:
                    matches.append(Match(unit.start(), last, entry))
                    end = last
                    break
        return matches


def lower(text: str) -> str:
    """Convert to lower case without a change of the length."""
    low = text.lower()
    return (
        low
        if len(low) == len(text)
        else "".join(one if len(one.lower()) != 1 else one.lower() for one in text)
    )


def is_dense(character: str) -> bool:
    """Whether the script of a character puts no spaces between words."""
    return _IS_DENSE.match(character) is not None


def _end(term: str, text: str, low: str, start: int, *, plural: bool = False) -> int | None:
    """Return the end of a term that begins at this place; None if it does not."""
    small = term == lower(term)
    if not (low if small else text).startswith(term, start):
        return None
    if start and _joined(text[start - 1], term[0]):
        return None
    end = start + len(term)
    endings = ("", "s", "es") if plural else ("",)
    for ending in endings:
        last = end + len(ending)
        if low.startswith(ending, end) and not _joined(term[-1], text[last : last + 1]):
            return last
    return None


def _joined(left: str, right: str) -> bool:
    """Whether two characters belong to one word."""
    return left.isalnum() and right.isalnum() and not (is_dense(left) or is_dense(right))


def count(entry: Entry, text: str) -> int:
    """Count the translation of a term in a text, with `inflected` in any form."""
    low, found, start = lower(text), 0, 0
    target = entry.target
    if entry.inflected and not is_dense(target[0]):
        return len(_forms(target).findall(low))
    # At the beginning of a sentence, a term in lower case may be capitalised.
    while (start := low.find(lower(target), start)) >= 0:
        end = _end(target, text, low, start)
        found += end is not None
        start += 1 if end is None else len(target)
    return found


def _forms(target: str) -> re.Pattern[str]:
    words = [_stem(word) for word in lower(target).split()]
    forms = [rf"{re.escape(stem)}\w{{0,{most}}}" for stem, most in words]
    phrase = r"\s+".join(forms)
    return re.compile(rf"(?<!\w){phrase}(?!\w)")


def _stem(word: str) -> tuple[str, int]:
    """Return the beginning of a word that all forms have, and most letters after it."""
    kept = max(SHORTEST_STEM, ceil(STEM * len(word)))
    return (word, 0) if len(word) < SHORTEST_STEM else (word[:kept], len(word[kept:]) + ENDING)


def read_glossary(path: Path, *, source: str | None = None, target: str | None = None) -> Glossary:
    """Read a file: `.tmx`, `.tbx`, `.csv`, else TSV. TMX and TBX may have many languages."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; give a glossary as TSV, TMX or TBX")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    suffix = path.suffix.lower()
    if suffix in (".tmx", ".tbx"):
        return read_xml(content, str(path), source=source, target=target)
    return read_table(content, str(path), separator="," if suffix == ".csv" else "\t")


def read_table(content: bytes, name: str, *, separator: str = "\t") -> Glossary:
    """Read one term a line; lines that begin with `#` are comments."""
    _check_size(content, name)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: is not UTF-8; save it as UTF-8") from error
    if separator == "\t":
        rows: Iterable[Sequence[str]] = (line.split("\t") for line in text.splitlines())
    else:
        rows = csv.reader(io.StringIO(text), strict=True)
    entries: dict[str, Entry] = {}
    try:
        for number, row in enumerate(rows, 1):
            fields = [field.strip() for field in row]
            if not any(fields) or (separator == "\t" and fields[0].startswith("#")):
                continue
            entry = _read_row(fields, f"{name}: line {number}")
            if entries.setdefault(entry.source, entry) != entry:
                message = f"{entry.source[:80]!r} has two translations; keep one"
                raise DataError(f"{name}: line {number}: {message}")
    except csv.Error as error:
        raise DataError(
            f"{name}: is not CSV ({error}); quote fields with quotation marks"
        ) from error
    return Glossary(entries.values())


def _read_row(fields: Sequence[str], place: str) -> Entry:
    if not 2 <= len(fields) <= 3 or not all(fields[:2]):
        raise DataError(f"{place}: expected source, tab, target, and perhaps tab and {INFLECT}")
    if max(map(len, fields)) > LONGEST_TERM:
        raise DataError(f"{place}: a term has more than {LONGEST_TERM} characters; shorten it")
    flag = fields[2] if len(fields) == 3 else ""
    if flag not in ("", INFLECT):
        raise DataError(f"{place}: got {flag[:40]!r} in the third column, expected {INFLECT}")
    return Entry(fields[0], fields[1], flag == INFLECT)


def _check_size(content: bytes, name: str) -> None:
    if len(content) > LARGEST:
        raise DataError(f"{name}: has more than {LARGEST:,} bytes; divide the glossary")


UNITS = {"tu", "termEntry", "conceptEntry"}
"""Elements of a term in all its languages, in TMX and TBX."""
LANGUAGES = {"tuv", "langSet", "langSec"}
TERMS = {"seg", "term"}
INLINE = {"bpt", "ept", "ph", "it", "ut"}
"""Elements of TMX that hold mark-up."""


def read_xml(
    content: bytes, name: str, *, source: str | None = None, target: str | None = None
) -> Glossary:
    """Read TMX or TBX; without languages it must have two, of which TMX names the source."""
    _check_size(content, name)
    reader = _XmlReader(name)
    reader.parse(content)
    known = [*dict.fromkeys(code for unit in reader.units for code, _ in unit)]
    first = _choose(known, source or reader.source, name)
    others = [code for code in known if code != first]
    if target is None and len(others) != 1:
        languages = ", ".join(known[:8])
        raise DataError(f"{name}: has the languages {languages}; name two with --from and --to")
    second = _choose(known, target or others[0], name)
    entries: dict[str, Entry] = {}
    for unit in reader.units:
        targets = [term for code, term in unit if code == second]
        for code, term in unit:
            if code == first and targets and max(len(term), len(targets[0])) <= LONGEST_TERM:
                entries.setdefault(term, Entry(term, targets[0]))
    return Glossary(entries.values())


def _choose(known: Sequence[str], wanted: str | None, name: str) -> str:
    """Return the language of a file that is the wanted one, with or without a region."""
    if wanted is None:
        if not known:
            raise DataError(f"{name}: has no terms")
        return known[0]
    code = normalise_code(wanted)
    for form in (code, code.partition("-")[0]):
        for one in known:
            if form in (one, one.partition("-")[0]):
                return one
    raise DataError(f"{name}: has no terms in {wanted}, only in {', '.join(known[:8])}")


class _XmlReader:
    """Collects the terms of each unit with their languages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.units: list[list[tuple[str, str]]] = []
        self.source: str | None = None
        self._open: list[str] = []
        self._language = ""
        self._text: list[str] | None = None
        self._inline = 0

    def parse(self, content: bytes) -> None:
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._refuse
        try:
            parser.Parse(content, True)
        except expat.ExpatError as error:
            raise DataError(f"{self.name}: is not valid XML: {error}") from error

    def _doctype(self, name: str, system: str | None, public: str | None, subset: bool) -> None:
        if subset:
            self._refuse()

    def _refuse(self, *_: object) -> None:
        raise DataError(f"{self.name}: declares entities or a DTD; remove <!DOCTYPE ... [...]>")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        tag = tag.rpartition(" ")[2]
        self._open.append(tag)
        if len(self._open) > DEEPEST:
            raise DataError(f"{self.name}: has more than {DEEPEST} elements inside each other")
        if tag == "header" and attributes.get("srclang", "*all*") != "*all*":
            self.source = attributes["srclang"]
        elif tag in UNITS:
            self.units.append([])
        elif tag in LANGUAGES:
            xml = "http://www.w3.org/XML/1998/namespace lang"
            code = attributes.get(xml) or attributes.get("lang") or ""
            self._language = normalise_code(code)
        elif tag in TERMS:
            self._text = []
        self._inline += tag in INLINE

    def _end(self, tag: str) -> None:
        tag = self._open.pop()
        self._inline -= tag in INLINE
        if tag in TERMS and self._text is not None:
            term = " ".join("".join(self._text).split())
            if term and self._language and self.units:
                self.units[-1].append((self._language, term))
            self._text = None

    def _characters(self, text: str) -> None:
        if self._text is not None and not self._inline:
            self._text.append(text)
