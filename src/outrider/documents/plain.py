"""Parts of plain text that are not translated: placeholders, addresses, code, tags and emoji.

Messages of ICU (`{n, plural, one {# file} other {# files}}`) are kept whole: their branches are
not translated. Numbers are not kept, because a translation writes them as its language does.
"""

import re
from bisect import bisect_right
from collections import deque

from outrider.documents.marked import MarkedText, Span
from outrider.text.alignment import Range

_EMOJI_ONE = (
    "(?:[\U0001f1e6-\U0001f1ff]{2}|[0-9#*]\ufe0f?\u20e3"
    "|[\U0001f000-\U0001f1e5\U0001f200-\U0001f3fa\U0001f400-\U0001faff\u2600-\u27bf\u2b50\u2b55"
    "\u231a\u231b\u23e9-\u23f3][\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]{0,8})"
)
EMOJI = re.compile(f"{_EMOJI_ONE}(?:\u200d{_EMOJI_ONE})*")
TAG = re.compile(
    r"""<(?P<end>/?)(?P<name>[A-Za-z][\w:.-]{0,80}|\d{1,4})"""
    r"""(?:\s(?:[^<>"']|"[^"<>]*"|'[^'<>]*')*)?(?P<empty>/?)>|<!--.{0,500}?-->""",
    re.DOTALL,
)
INTEGER = re.compile(r"%(?:\(\w+\)|\d+\$)?[-+#0]{0,3}\d*(?:hh|ll|[hlqjzt])?[diu]|\{#\}")
_PRINTF = (
    r"(?<![0-9%])%(?:\(\w{1,60}\)|\d{1,2}\$)?[-+#0]{0,3}(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?"
    r"(?:hh|ll|[hlLqjzt])?[diouxXeEfFgGcrsaA@]|%%|(?<![0-9%])%L?[1-9]\d?(?![0-9%])"
)
_ICU = re.compile(r"\{\s*\w+\s*,\s*(?:plural|select|selectordinal|number|date|time|choice)\b")
_KEPT = re.compile(
    "|".join(
        [
            r"`[^`\n]{1,500}`",
            r"(?:https?|ftp|file)://[^\s<>\"'`{}]*[^\s<>\"'`{}.,;:!?)\]»…]",
            r"\bmailto:[^\s<>\"']*\w|\bwww\.[\w-]+(?:\.[\w-]+)+(?:/[\w./?=&%#~+-]*[\w/])?",
            r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
            r"\{\{[^{}\n]{1,200}\}\}|[$#%@]?\{[^\s{}]{0,100}\}|\{ ?[\w.]{1,60} ?\}",
            _PRINTF,
            r"\$[A-Za-z_]\w*|%[A-Z_]{2,40}%|__\w{1,60}?__",
            r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|[a-zA-Z]{2,30}\d{0,2});",
            r"(?<![\w/.:<])(?:~|\.{1,2})?(?:/[\w.-]*[\w-]){2,}/?|(?<![\w/.:<])[~.]/[\w.-]*\w",
            r"\b[A-Za-z]:\\[^\s\"<>|]*[\w\\]",
            r"(?<![\w@&])[@#][A-Za-z_]\w*",
            EMOJI.pattern,
        ]
    )
    + f"|(?P<tag>{TAG.pattern})",
    re.DOTALL,
)
_TRIGGER = re.compile(r"[`{}%$@#&<>/\\]|__|www\.|[^\x00-\u22ff]|[\u2300-\u2bff]|\u20e3")


def mark_kept(text: str | MarkedText) -> MarkedText:
    """Mark the parts of a text that stay unchanged, beside the spans that it has."""
    marked = MarkedText(text) if isinstance(text, str) else text
    if _TRIGGER.search(marked.text) is None:
        return marked
    found = [Span(start, end, "", "", kept=True) for start, end in _find(marked.text)]
    if not marked.spans or not found:
        return MarkedText(marked.text, marked.spans or tuple(found))
    return MarkedText(marked.text, tuple(_merge(marked.spans, found)))


def _find(text: str) -> list[Range]:
    found: list[Range] = []
    messages = deque(_messages(text))
    at = 0
    while (match := _KEPT.search(text, at)) or messages:
        if match is not None and not (messages and messages[0][0] <= match.start()):
            start, at = match.span()
        else:
            start, at = messages[0]
        if (
            found
            and found[-1][1] == start
            and not (_apart(text, *found[-1]) or _apart(text, start, at))
        ):
            found[-1] = (found[-1][0], at)
        else:
            found.append((start, at))
        while messages and messages[0][0] < at:
            messages.popleft()
    return found


def _apart(text: str, start: int, end: int) -> bool:
    """Whether a part is a tag or emoji, which is not joined with the next part."""
    return bool(TAG.fullmatch(text, start, end) or EMOJI.fullmatch(text, start, end))


def _messages(text: str) -> list[Range]:
    """Return the messages of ICU."""
    starts = {match.start() for match in _ICU.finditer(text)}
    messages: list[Range] = []
    braces: list[int] = []
    for match in re.finditer(r"[{}]", text) if starts else ():
        if match[0] == "{":
            braces.append(match.start())
        elif braces and (start := braces.pop()) in starts:
            while messages and messages[-1][0] > start:
                messages.pop()
            messages.append((start, match.end()))
    return messages


def _merge(spans: tuple[Span, ...], found: list[Span]) -> list[Span]:
    """Add kept spans, except those inside another kept one and those that cross a span."""
    starts = [one.start for one in found]
    wrong = set()
    kept_end = -1
    for span in spans:
        for place in (span.start, span.end):
            number = bisect_right(starts, place) - 1
            if number >= 0 and found[number].start < place < found[number].end:
                one = found[number]
                if span.start < one.start or span.end > one.end:
                    wrong.add(number)
        if span.kept and span.end > kept_end:
            number = max(0, bisect_right(starts, max(span.start, kept_end)) - 1)
            kept_end = span.end
            while number < len(found) and found[number].start < span.end:
                if found[number].end > span.start:
                    wrong.add(number)
                number += 1
    merged: list[Span] = []
    left = [one for number, one in enumerate(found) if number not in wrong]
    left.reverse()
    for span in spans:
        while left and (
            left[-1].start < span.start or (left[-1].start == span.start < span.end < left[-1].end)
        ):
            merged.append(left.pop())
        merged.append(span)
    return [*merged, *reversed(left)]
