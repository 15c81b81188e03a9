"""Subtitles in SubRip (srt) and WebVTT (vtt).

Parts of cues that belong to one sentence are one text, with a point where the next cue begins.
"""

import html
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from outrider.documents.marked import MarkedText, Span
from outrider.documents.pauses import columns, cut, joint
from outrider.documents.text_file import Edit, Item, TextDocument, decode, with_markup
from outrider.errors import InputError
from outrider.text.sentences import BEFORE_A_NAME, INSIDE

BREAK = "\n\n"
"""Mark-up of the point between two cues."""
PAUSE = 1.5
"""Seconds between two cues after which a sentence does not go on."""
COLUMNS = 42
LINES = 2
LONGEST = 400
"""Characters of a text after which no cue is added."""
DEPTH = 50
"""Tags inside each other; deeper ones are not paired."""

_TIME = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{2})[.,](\d{1,3})"
_TIMING = re.compile(
    rf"^[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}(?![\d:.,])[^\r\n]*(?:\r?\n|\Z)", re.MULTILINE
)
_NUMBER = re.compile(r"(?:\A|\n)[ \t]*\d+[ \t]*\r?\n\Z")
_EMPTY_LINE = re.compile(r"(?:\A|\n)\r?(?:\n|\Z)")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r|\Z)")
_TAG = re.compile(
    r"</?(?:[biusv]|c|em|font|lang|rp|rt|ruby|span|strong)(?:[ .\t][^<>]*)?/?>"
    r"|<\d[\d:.]*>|\{\\[^{}]*\}",
    re.IGNORECASE,
)
_VTT_TAG = re.compile(r"<[^<>]*>")
_NAME = re.compile(r"<(/?)([a-z]+)[^<>]*(?<!/)>", re.IGNORECASE)
_PIECE = r"(?P<tag>{tag})|(?P<line>[ \t]*[\r\n]\s*)|(?P<entity>{entity})"
_NO_ENTITY = r"(?!)"
_ENTITY = r"&(?:[a-z]{2,8}|\#\d{1,7}|\#x[\da-f]{1,6});"
_PLACE = re.compile(r"\{\\an?\d+")
_NOTES = "♩♪♫♬"
_AFTER = frozenset(_NOTES)
_FIRST = re.compile(rf"(?:[\s{_NOTES}]|>>+|[-‐‑–—]+(?!\d))*")
"""White space and what marks a speaker or a song, before a text."""
_SPEAKER = re.compile(rf"\s*(?:[-‐‑–—]+(?!\d)|>>|[{_NOTES}])")
_LABEL = re.compile(r"\s*([^\W\d_][^:\r\n]{0,30}):(?=\s)")
_SOUND = re.compile(
    r"(?m)^[ \t]*(?:[-‐‑–—]+[ \t]*)?[\[（［【]([^\[\]（）［］【】]*)[\]）］】]"
    r"|^[ \t]*(?:[-‐‑–—]+[ \t]*)?\(([^()]*)\)(?=[ \t]*\r?$)|\[([^\[\]]*)\](?=[ \t]*\r?$)"
)
_END = re.compile(r"(?:(\w+)?\.|[!?…。！？｡؟।])[\"'”’»)\]」』】）]*\s*\Z")


@dataclass(frozen=True)
class Part:
    """A text inside one cue."""

    start: int
    end: int
    text: MarkedText
    lines: int
    width: int
    """Columns of its longest line."""
    begins: bool
    """Whether it begins a sentence: another speaker, a song, a sound."""
    ends: bool
    """Whether it ends one."""
    cue: int
    times: tuple[float, float]
    position: str


@dataclass(frozen=True)
class _Syntax:
    tag: re.Pattern[str]
    token: re.Pattern[str]
    escape: bool


def _syntax(tag: re.Pattern[str], entity: str, escape: bool) -> _Syntax:
    token = _PIECE.format(tag=tag.pattern, entity=entity)
    return _Syntax(tag, re.compile(token, re.IGNORECASE), escape)


_SRT, _VTT = _syntax(_TAG, _NO_ENTITY, False), _syntax(_VTT_TAG, _ENTITY, True)


def read(content: bytes) -> TextDocument:
    """Locate the sentences of subtitles."""
    file = decode(content)
    syntax = _VTT if file.text.startswith("WEBVTT") else _SRT
    newline = "\r\n" if "\r\n" in file.text else "\n"
    groups: list[list[Part]] = []
    for part in _parts(file.text, syntax):
        if groups and _continues(groups[-1], part):
            groups[-1].append(part)
        else:
            groups.append([part])
    if not groups and "-->" not in file.text and file.text.strip():
        raise InputError(
            "the file has no subtitles: no line has the form 00:00:01,000 --> 00:00:02,000"
        )
    escape = syntax.escape
    return TextDocument(
        file, [Item([_joined(group)], partial(_edits, group, newline, escape)) for group in groups]
    )


def _cues(text: str, vtt: bool) -> Iterator[tuple[tuple[float, float], int, int]]:
    """Yield the times of each cue, and the first and last character of its text."""
    matches = list(_TIMING.finditer(text))
    for index, match in enumerate(matches):
        start = match.end()
        end = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        if vtt:
            empty = _EMPTY_LINE.search(text[start:end])
            end = start + empty.start() if empty else end
        elif end < len(text) and (number := _NUMBER.search(text[start:end])):
            end = start + number.start()
        groups = [int(group or 0) for group in match.groups()]
        begin, stop = (
            hours * 3600 + minutes * 60 + seconds + float(f"0.{match[last]}")
            for hours, minutes, seconds, last in ((*groups[:3], 4), (*groups[4:7], 8))
        )
        yield (begin, stop), start, end


def _parts(text: str, syntax: _Syntax) -> Iterator[Part]:
    for cue, (times, start, end) in enumerate(_cues(text, syntax.escape)):
        position = place[0] if (place := _PLACE.search(text, start, end)) else ""
        for first, last, begins, ends in _ranges(text[start:end], syntax.tag):
            part = _part(text, start + first, start + last, syntax)
            if part is not None:
                yield replace(
                    part, begins=begins, ends=ends, cue=cue, times=times, position=position
                )


def _ranges(text: str, tag: re.Pattern[str]) -> Iterator[tuple[int, int, bool, bool]]:
    """Divide a cue at speakers, songs, sounds and empty lines: start, end, begins, ends."""
    blank = tag.sub(lambda match: " " * len(match[0]), text)
    starts: list[tuple[int, bool]] = []
    empty = True
    for match in _LINE.finditer(blank):
        line = match[0]
        if line.strip():
            label = _LABEL.match(line)
            speaker = bool(_SPEAKER.match(line) or (label and label[1].isupper()))
            if empty or speaker:
                starts.append((match.start(), speaker))
        empty = not line.strip()
    for (first, begins), (end, _) in pairwise([*starts, (len(text), True)]):
        done = first
        for sound in _SOUND.finditer(blank[first:end]):
            inner = next(group for group in (1, 2, 3) if sound[group] is not None)
            yield done, first + sound.start(inner) - 1, begins, False
            yield first + sound.start(inner), first + sound.end(inner), True, True
            done, begins = first + sound.end(inner) + 1, True
        yield done, end, begins, False


def _pairs(tags: list[re.Match[str]]) -> dict[int, int]:
    """Return the number of the other tag for each tag that has one."""
    pairs: dict[int, int] = {}
    opened: list[tuple[str, int]] = []
    names: Counter[str] = Counter()
    for number, tag in enumerate(tags):
        name = _NAME.fullmatch(tag[0])
        if not name:
            continue
        word = name[2].lower()
        if not name[1]:
            if len(opened) < DEPTH:
                opened.append((word, number))
                names[word] += 1
        elif names[word]:
            while True:
                other, first = opened.pop()
                names[other] -= 1
                if other == word:
                    pairs[first], pairs[number] = number, first
                    break
    return pairs


def _part(text: str, start: int, end: int, syntax: _Syntax) -> Part | None:
    """Locate the words of a part of a cue; tags and marks around them do not belong to it."""
    tags = list(syntax.tag.finditer(text, start, end))
    pairs = _pairs(tags)
    last, after = len(tags), end  # the tags behind the words
    while True:
        while after > start and (text[after - 1].isspace() or text[after - 1] in _AFTER):
            after -= 1
        if not last or tags[last - 1].end() != after:
            break
        last -= 1
        after = tags[last].start()
    first = 0  # the tags before the words, each with its other one behind them
    while True:
        if match := _FIRST.match(text, start, end):
            start = match.end()
        if not (first < last and tags[first].start() == start and pairs.get(first, last) >= last):
            break
        start = tags[first].end()
        first += 1
    last, after = len(tags), end
    while True:
        while after > start and (text[after - 1].isspace() or text[after - 1] in _AFTER):
            after -= 1
        if not (last > first and tags[last - 1].end() == after and pairs.get(last - 1, -1) < first):
            break
        last -= 1
        after = tags[last].start()
    return _words(text, start, after, syntax, tags[first:last])


def _words(
    text: str, start: int, end: int, syntax: _Syntax, tags: list[re.Match[str]]
) -> Part | None:
    pairs = _pairs(tags)
    found: list[str] = []
    places: list[int] = []
    size = number = lines = width = column = 0
    position = start
    for token in syntax.token.finditer(text, start, end):
        words = text[position : token.start()]
        position = token.end()
        if token["line"]:
            before = words or (found[-1] if found else "")
            lines, width, column = lines + 1, max(width, column + columns(words)), 0
            words += joint(before, text[position : position + 1])
        elif token["entity"]:
            words += html.unescape(token[0])
        found.append(words)
        size += len(words)
        column += 0 if token["line"] else columns(words)
        if token["tag"]:
            places.append(size)
            number += 1
    found.append(text[position:end])
    whole = "".join(found)
    if not any(map(str.isalpha, whole)):
        return None
    spans = tuple(
        Span(places[index], places[other], tags[index][0], tags[other][0])
        if (other := pairs.get(index, index)) != index
        else Span(places[index], places[index], tags[index][0])
        for index in range(number)
        if pairs.get(index, index) >= index
    )
    width = max(width, column + columns(found[-1]))
    marked = MarkedText(whole, spans)
    return Part(start, end, marked, lines + 1, width, False, False, 0, (0, 0), "")


def _continues(group: list[Part], part: Part) -> bool:
    """Whether a part belongs to the sentence of those before it."""
    last = group[-1]
    if part.begins or part.ends or last.ends or part.position != last.position:
        return False
    gap = part.times[0] - last.times[1]
    if part.cue != last.cue and not -PAUSE / 3 <= gap <= PAUSE:
        return False
    if sum(len(other.text.text) for other in group) > LONGEST:
        return False
    end = _END.search(last.text.text[-40:])
    initial = next(filter(str.isalpha, part.text.text))
    word = (end[1] or "").lower() if end else ""
    return not end or initial.islower() or word in BEFORE_A_NAME or word in INSIDE


def _joined(group: list[Part]) -> MarkedText:
    """Join the parts of a sentence, with a point where each but the first begins."""
    text = ""
    spans: list[Span] = []
    for part in group:
        if text:
            text += joint(text, part.text.text)
            spans.append(Span(len(text), len(text), BREAK))
        base = len(text)
        spans += (
            replace(span, start=base + span.start, end=base + span.end) for span in part.text.spans
        )
        text += part.text.text
    return MarkedText(text, tuple(spans))


def _edits(
    group: list[Part], newline: str, escape: bool, translations: Sequence[MarkedText]
) -> Iterator[Edit]:
    """Divide the translation of a sentence between its cues."""
    (translation,) = translations
    text = re.sub(r"\s", " ", translation.text)
    spans = [span for span in translation.spans if span.open != BREAK]
    kept = [(span.start, span.end) for span in spans if span.kept]
    cuts = cut(
        text,
        [len(part.text.text) for part in group],
        [span.start for span in translation.spans if span.open == BREAK],
        whole=kept,
        together=[(span.start, span.end) for span in spans if span.close],
    )
    ends = [*cuts, len(text)]
    shares: list[list[Span]] = [[] for _ in group]
    for span in spans:
        shares[_most(ends, span)].append(span)
    start = 0
    for part, end, inside in zip(group, ends, shares, strict=True):
        words = text[start:end]
        first = start + len(words) - len(words.lstrip())
        length = len(words.strip())
        moved = (
            replace(
                span,
                start=min(max(span.start - first, 0), length),
                end=min(max(span.end - first, 0), length),
            )
            for span in inside
        )
        wrapped = _wrapped(MarkedText(words.strip(), tuple(moved)), part)
        yield part.start, part.end, with_markup(wrapped, partial(_escape, newline, escape))
        start = end


def _most(ends: list[int], span: Span) -> int:
    """Return the number of the part that has most of a span."""
    first = min(bisect_right(ends, span.start), len(ends) - 1)
    best, most = first, -1
    start = span.start
    for number in range(first, len(ends)):
        if min(span.end, ends[number]) - start > most:
            best, most = number, min(span.end, ends[number]) - start
        start = ends[number]
        if start >= span.end:
            break
    return best


def _wrapped(marked: MarkedText, part: Part) -> MarkedText:
    """Divide a part of a cue into lines."""
    limit = max(COLUMNS, part.width)
    width = columns(marked.text)
    count = min(max(LINES, part.lines), -(-width // limit))
    if count < 2:
        return marked
    kept = [(span.start, span.end) for span in marked.spans if span.kept]
    text = list(marked.text)
    spans = list(marked.spans)
    for at in cut(marked.text, [1.0] * count, whole=kept):
        if at < len(text) and text[at - 1] == " ":
            text[at - 1] = "\n"
        elif at < len(text):
            before = sum(span.start < at for span in spans)
            spans.insert(before, Span(at, at, "\n"))
    return MarkedText("".join(text), tuple(spans))


def _escape(newline: str, escape: bool, text: str) -> str:
    if escape:
        text = html.escape(text, quote=False)
    return text.replace("\n", newline)
