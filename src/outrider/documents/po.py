"""Catalogues of gettext (po, pot): entries without a translation get one.

Existing translations stay, also fuzzy ones. An entry whose translation equals its source stays
empty, which gettext shows as the source.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from outrider.documents.marked import MarkedText
from outrider.documents.text_file import Edit, Item, TextDocument, decode, with_markup
from outrider.errors import InputError

COLUMNS = 78
_LINE = re.compile(
    r"[ \t]*(?P<keyword>msgctxt|msgid_plural|msgid|msgstr(?:\[(?P<form>\d{1,2})\])?)?[ \t]*"
    r'(?P<string>"(?P<words>(?:[^"\\\r\n]|\\[^\r\n])*)")[ \t]*\Z'
)
_ESCAPED = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")
_CONTROLS = dict(zip("ntrabfv", "\n\t\r\a\b\f\v", strict=True))
_TO_ESCAPE = re.compile(r'[\\"\x00-\x1f\x7f]')
_NAMES = {value: f"\\{name}" for name, value in _CONTROLS.items()}
_DIRECTIVE = re.compile(
    r"%(?:%|(?:\(\w+\)|\d+\$)?[-+#0 ']*(?:\d+|\*)?(?:\.(?:\d+|\*)?)?(?:hh|ll|[hlLqjzt])?[a-zA-Z@])"
    r"|\{[^{}\s]*\}"
)
_FORMAT = re.compile(r"(?<!no-)\b[a-z+-]+-format\b")
_ACCELERATOR = re.compile(
    r"(?<!\w)([_&])(?=[^\W_])(?!\w+;)|(?<=[a-z])([_&])(?=[a-z])(?!\w+;)", re.I
)
_PLURALS = {
    "nplurals=1; plural=0;": "id ja km ko lo ms my th vi zh",
    "nplurals=2; plural=(n > 1);": "br fr oc pt_BR tg uz wa",
    "nplurals=2; plural=(n%10!=1 || n%100==11);": "is",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);": "lv",
    "nplurals=3; plural=(n==1 ? 0 : (n==0 || (n%100>0 && n%100<20)) ? 1 : 2);": "ro",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);": (
        "lt"
    ),
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20)"
    " ? 1 : 2);": "be bs hr ru sr uk",
    "nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;": "cs sk",
    "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);": "pl",
    "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);": "sl",
    "nplurals=4; plural=(n==1) ? 0 : (n==2) ? 1 : (n != 8 && n != 11) ? 2 : 3;": "cy",
    "nplurals=5; plural=n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4;": "ga",
    "nplurals=6; plural=(n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4"
    " : 5);": "ar",
}
"""Languages with other plural forms than English, as the manual of gettext lists them."""
_ENGLISH = "nplurals=2; plural=(n != 1);"


@dataclass
class _String:
    """The strings of a keyword."""

    start: int
    end: int
    keyword: int
    """First character of the keyword."""
    parts: list[str]

    @property
    def words(self) -> str:
        """The text, with escapes."""
        return "".join(self.parts)


@dataclass
class _Entry:
    flags: tuple[int, str] | None = None
    """Where the flags begin, and the line."""
    strings: dict[str, _String] = field(default_factory=dict)
    forms: list[_String] = field(default_factory=list)
    """`msgstr`, or `msgstr[0]` and those after it."""


def read(content: bytes, target: str = "") -> TextDocument:
    """Locate the entries without a translation.

    Args:
        content: The catalogue.
        target: Language of the translation, for a header that does not name it.
    """
    charset = re.search(rb"charset=([\w.:-]{1,40})", content[:10_000])
    encoding = charset[1].decode() if charset and charset[1] != b"CHARSET" else "utf-8"
    try:
        file = decode(content, encoding)
    except LookupError:
        raise InputError(f"the charset {encoding} of the header is unknown: use UTF-8") from None
    newline = "\r\n" if "\r\n" in file.text else "\n"
    entries = list(_entries(file.text))
    header = next((entry for entry in entries if _is_header(entry)), None)
    plural, also = _header(file.text, header, target, newline)
    accelerators = Counter(
        found[1]
        for entry in entries
        if (found := _ACCELERATOR.match(entry.strings["msgid"].words)) and found[1]
    )
    items = [
        Item([MarkedText(text) for text in texts], partial(_edits, entry, plural, newline, mark))
        for entry in entries
        if entry is not header and not any(form.words for form in entry.forms)
        for mark in (_accelerator(entry, accelerators),)
        if (texts := _texts(entry, plural, mark))
    ]
    return TextDocument(file, items, also)


def _entries(text: str) -> Iterator[_Entry]:
    """Locate the entries; obsolete ones are comments."""
    entry = _Entry()
    string: _String | None = None
    end = 0
    for number, line in enumerate(re.split(r"(?<=\n)", text), 1):
        start, end = end, end + len(line)
        words = line.strip(" \t\r\n\f\v")
        if not words or words.startswith("#"):
            string = None
            if entry.forms and words:
                yield entry
                entry = _Entry()
            if words.startswith("#,"):
                entry.flags = start + line.index("#,"), words
            continue
        match = _LINE.match(line.rstrip("\r\n"))
        if not match or (not match["keyword"] and string is None):
            raise InputError(f"line {number} of the file is not gettext: {words[:60]!r}")
        place = start + match.start("string"), start + match.end("string")
        keyword = match["keyword"]
        if not keyword and string is not None:
            string.end = place[1]
            string.parts.append(match["words"])
            continue
        if entry.forms and keyword in ("msgctxt", "msgid"):
            yield entry
            entry = _Entry()
        string = _String(*place, start + match.start("keyword"), [match["words"]])
        if keyword.startswith("msgstr"):
            if "msgid" not in entry.strings or int(match["form"] or 0) != len(entry.forms):
                raise InputError(f"line {number} of the file has {keyword} in a wrong place")
            entry.forms.append(string)
        else:
            entry.strings[keyword] = string
    if entry.forms:
        yield entry


def _is_header(entry: _Entry) -> bool:
    return not entry.strings["msgid"].words and "msgctxt" not in entry.strings


def _header(text: str, header: _Entry | None, target: str, newline: str) -> tuple[str, list[Edit]]:
    """Return the plural forms, and the edits of a header that lacks them or the language."""
    edits: list[Edit] = []
    words = header.forms[0].words if header else ""
    named = re.search(r"Plural-Forms:\s*(nplurals\s*=\s*\d.*?)\\n", words)
    language = re.search(r"Language:[ \t]*([\w@-]*)", words)
    target = (target or (language[1] if language else "")).replace("-", "_")
    plural = named[1] if named else _plural(target)
    if header is None or not target:
        return plural, edits
    first, last = header.forms[0].start, header.forms[0].end
    if language and not language[1] and (found := re.search(r"Language:[ \t]*", text[first:last])):
        edits.append((first + found.start(), first + found.end(), f"Language: {target}"))
    if not named:
        found = re.search(r"Plural-Forms:(?:[^\\\r\n]|\\[^n])*", text[first:last])
        line = f"Plural-Forms: {plural}"
        if found:
            edits.append((first + found.start(), first + found.end(), line))
        elif re.search(r"^msgid_plural", text, re.MULTILINE):
            edits.append((last, last, f'{newline}"{line}\\n"'))
    if found := re.search(r"charset=CHARSET", text[first:last]):
        edits.append((first + found.start(), first + found.end(), "charset=UTF-8"))
    return plural, edits


def _plural(language: str) -> str:
    for name in (language, language.partition("_")[0]):
        for forms, languages in _PLURALS.items():
            if name in languages.split():
                return forms
    return _ENGLISH


def _count(plural: str) -> int:
    count = re.match(r"nplurals\s*=\s*(\d{1,2})", plural)
    return max(1, min(int(count[1]), 10)) if count else 2


def _accelerator(entry: _Entry, used: Counter[str]) -> str:
    """Return the mark of an access key, as in `_File` or `E&xit`."""
    words = entry.strings["msgid"].words
    found = list(_ACCELERATOR.finditer(words))
    if len(found) != 1:
        return ""
    mark = found[0][1] or found[0][2]
    inside = not found[0][1]
    return mark if words.count(mark) == 1 and (not inside or used[mark]) else ""


def _texts(entry: _Entry, plural: str, mark: str) -> list[str]:
    names = ["msgid"]
    if "msgid_plural" in entry.strings:
        names = ["msgid", "msgid_plural"] if _count(plural) > 1 else ["msgid_plural"]
    texts = [_unescaped(entry.strings[name].words).strip() for name in names]
    if not any(map(str.isalpha, "".join(texts))):
        return []
    return [text.replace(mark, "", 1) if mark else text for text in texts]


def _edits(
    entry: _Entry, plural: str, newline: str, mark: str, translations: Sequence[MarkedText]
) -> Iterator[Edit]:
    """Write the forms of an entry."""
    source = _unescaped(entry.strings["msgid"].words)
    key = source[source.index(mark) + 1] if mark else ""
    texts = [with_markup(translation).strip() for translation in translations]
    if mark:
        texts = [_with_accelerator(text, mark, key) for text in texts]
    begin = source[: len(source) - len(source.lstrip())]
    end = source[len(source.rstrip()) :]
    texts = [f"{begin}{text}{end}" for text in texts]
    directives = Counter(_DIRECTIVE.findall(source))
    wrong = Counter(_DIRECTIVE.findall(texts[0])) != directives
    if "msgid_plural" in entry.strings:
        many = Counter(_DIRECTIVE.findall(_unescaped(entry.strings["msgid_plural"].words)))
        wrong = (wrong and len(texts) > 1) or Counter(_DIRECTIVE.findall(texts[-1])) != many
        if many != directives and re.sub(r"[\s()]", "", plural) != "nplurals=2;plural=n!=1;":
            texts[0] = texts[-1]
        texts = [texts[0]] + [texts[-1]] * (_count(plural) - 1)
        forms = (f"msgstr[{n}] {_quoted(text, newline, 10)}" for n, text in enumerate(texts))
        yield entry.forms[0].keyword, entry.forms[-1].end, newline.join(forms)
    else:
        yield entry.forms[0].start, entry.forms[0].end, _quoted(texts[0], newline, 7)
    if wrong and entry.flags and _FORMAT.search(entry.flags[1]) and "fuzzy" not in entry.flags[1]:
        yield entry.flags[0] + 2, entry.flags[0] + 2, " fuzzy,"


def _with_accelerator(text: str, mark: str, key: str) -> str:
    """Mark the access key: at the same letter if a word begins with it, else at the first word."""
    letters = [match.start() for match in re.finditer(r"(?<!\w)[^\W\d_]", text)]
    same = [at for at in letters if text[at].lower() == key.lower()]
    at = next(iter(same or letters), len(text))
    if text[at : at + 1].lower() == text[at : at + 1].upper():  # no key of a keyboard
        end = len(text.rstrip(".…:： "))
        return f"{text[:end]}({mark}{key.upper()}){text[end:]}"
    return f"{text[:at]}{mark}{text[at:]}"


def _unescaped(words: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[3]:
            return _CONTROLS.get(match[3], match[3])
        return chr(int(match[1], 8) if match[1] else int(match[2], 16))

    return _ESCAPED.sub(character, words)


def _quoted(text: str, newline: str, column: int) -> str:
    """Write a string; one that is long or has several lines begins on its own line."""

    def escaped(match: re.Match[str]) -> str:
        return _NAMES.get(match[0]) or (
            f"\\{match[0]}" if match[0] in '\\"' else f"\\{ord(match[0]):03o}"
        )

    lines = [_TO_ESCAPE.sub(escaped, line) for line in re.split(r"(?<=\n)", text) if line]
    if len(lines) <= 1 and len("".join(lines)) + column + 2 <= COLUMNS:
        return f'"{"".join(lines)}"'
    wrapped: list[str] = []
    for line in lines:
        start, size = 0, len(wrapped)
        for word in re.finditer(r"[^ ]* *", line):
            if word.end() - start > COLUMNS and word.start() > start:
                wrapped.append(line[start : word.start()])
                start = word.start()
        if start < len(line) or size == len(wrapped):
            wrapped.append(line[start:])
    return newline.join(['""', *(f'"{line}"' for line in wrapped)])
