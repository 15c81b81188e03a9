"""Parts of plain text that stay unchanged."""

import time

import pytest

from outrider.documents.marked import MarkedText, Span
from outrider.documents.plain import mark_kept
from tests.helpers.markup import marked_up, parse


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Hello {name}, {0} of {}, {n:.2f}, { x }", "{name} {0} {} {n:.2f} { x }"),
        ("{{user.name}} lives in ${city} or %{place}", "{{user.name}} ${city} %{place}"),
        ("%s, %d, %1$s, %(name)s, %5.2f and %@", "%s %d %1$s %(name)s %5.2f %@"),
        ("100%% of %1 and %L2", "%% %1 %L2"),
        ("100% sure, 50% of it", ""),
        ("$HOME and %PATH% and __count__", "$HOME %PATH% __count__"),
        ("It costs $5.50 in 2024, or 12.5%.", ""),
        ("See https://example.com/a?b=c, or (www.x.org).", "https://example.com/a?b=c www.x.org"),
        ("Write to a.b+c@example.org.", "a.b+c@example.org"),
        ("Run `ls -l` now", "`ls -l`"),
        ("In /etc/passwd, ~/x and C:\\a\\b, not and/or 1/2", "/etc/passwd ~/x C:\\a\\b"),
        ("so 😀 much 👩‍🚀👍🏽 🇧🇷 1️⃣!", "😀 👩‍🚀 👍🏽 🇧🇷 1️⃣"),
        ("#tag and @me, not # or 5@", "#tag @me"),
        ("a &amp; b &#39;", "&amp; &#39;"),
        ("<b0>x</b0> <0>y</0> <br/> <a href='>'>", "<b0> </b0> <0> </0> <br/>"),
        ("a < b and c > d, x<y", ""),
        ("<!-- note --> x", "<!-- note -->"),
        (
            "{n, plural, one {# file} other {# files}} left",
            "{n, plural, one {# file} other {# files}}",
        ),
        ("{a}{b} {c}<b>", "{a}{b} {c} <b>"),
        ("plain text", ""),
    ],
)
def test_kept_parts(text: str, kept: str) -> None:
    found = mark_kept(text)
    assert found.text == text
    assert all(span.kept and not (span.open or span.close) for span in found.spans)
    rest = kept
    for span in found.spans:
        part = text[span.start : span.end]
        assert rest.startswith(part), (part, rest)
        rest = rest[len(part) :].lstrip(" ")
    assert rest == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<b>x {a}</b> y", "<b>x [{a}]</b> y"),
        ("<b>{a}</b>", "<b>[{a}]</b>"),
        ("{a<b>b</b>}", "[{a<b>b</b>}]"),
        ("{a<b>b} c</b>", "{a<b>b} c</b>"),
        ("see [ls {a}] {b}", "see [ls {a}] [{b}]"),
        ("<i/>{a}<i/>", "<i/>[{a}]<i/>"),
    ],
)
def test_kept_parts_beside_other_spans(before: str, after: str) -> None:
    assert marked_up(mark_kept(parse(before))) == after


def test_two_kept_parts_in_one_span() -> None:
    marked = mark_kept(MarkedText("{a} x {b}", (Span(0, 9, "<b>", "</b>"),)))
    assert marked_up(marked) == "<b>[{a}] x [{b}]</b>"


@pytest.mark.parametrize(
    "piece",
    [
        *("{", "}", "{a", "{a,plural", "{a,plural{", "{{", "%", "%(", "`", "`a", "<", "<a", "<a '"),
        *("<!--", "a@", "a.", "a@a.", "/a", "http://", "www.", "&a", "$a", "#", "😀\u200d", "{}"),
        *("__", "~", "<b>", "C:\\", "-", "@a", "a/a."),
    ],
)
def test_hostile_texts_take_linear_time(piece: str) -> None:
    began = time.process_time()
    mark_kept(piece * (100_000 // len(piece)))
    assert time.process_time() - began < 3
