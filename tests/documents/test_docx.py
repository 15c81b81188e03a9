"""Word documents: every text is found once, and its formatting survives."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.documents import docx
from outrider.documents.marked import MarkedText, Span
from outrider.errors import InputError
from tests.helpers.marking import CLOSE, GENERATED, OPEN, marked, translated, unzipped, zipped

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/'
    'content-types"><Override PartName="/word/document.xml" ContentType="application/vnd.'
    'openxmlformats-officedocument.wordprocessingml.document.main+xml"/><Override PartName='
    '"/word/footer1.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    'wordprocessingml.footer+xml"/></Types>'
)
STYLES = (
    "",
    "<w:rPr/>",
    "<w:rPr><w:b/></w:rPr>",
    "<w:rPr><w:i/></w:rPr>",
    '<w:rPr><w:b/><w:lang w:val="de-DE"/></w:rPr>',
    '<w:rPr><w:rFonts w:hint="eastAsia"/></w:rPr>',
    '<w:rPr><w:rtl/><w:color w:val="FF0000"/></w:rPr>',
)
WORDS = (
    "a",
    "Zug ",
    " is",
    "  ",
    " ",
    "б",
    "漢字。",
    "שלום ",
    "مرحبا",
    "👩‍👧",
    "é",
    "7",
    "x &amp; y",
    "&lt;",
)
KEPT = "ꝀꝂ"
"""Letters of texts that are not translated."""
BROKEN = "<!-- broken -->"
"""Stands before a part of a field that is not complete."""
POINTS = (
    '<w:drawing name="1"/>',
    '<w:footnoteReference w:id="2"/>',
    '<w:sym w:char="F04A"/>',
    '<w:pict name="3"><b/></w:pict>',
)


def body(inner: str) -> bytes:
    text = f'<?xml version="1.0"?>\n<w:document xmlns:w="{W}"><w:body>{inner}</w:body></w:document>'
    return text.encode()


def document(inner: str, footer: str = "") -> bytes:
    members = {"[Content_Types].xml": TYPES, "word/document.xml": body(inner)}
    return zipped(members | {"word/footer1.xml": body(footer), "word/media/1.png": b"\x89PNG"})


def run(text: str, style: str = "") -> str:
    return f'<w:r>{style}<w:t xml:space="preserve">{text}</w:t></w:r>'


def mark_up(kind: str) -> str:
    return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'


def complex_field(code: str, result: str) -> str:
    code = f"<w:r><w:instrText> {code} </w:instrText></w:r>"
    return f"{mark_up('begin')}{code}{mark_up('separate')}{result}{mark_up('end')}"


def texts(inner: str) -> list[MarkedText]:
    content = document(inner)
    found = docx.read(content)
    assert found.write(found.texts) == content
    return list(found.texts)


def changed(inner: str) -> str:
    """Return the body of a document after its translation by marks."""
    raw = unzipped(translated(docx.read(document(inner))))["word/document.xml"].decode()
    return raw.partition("<w:body>")[2].partition("</w:body>")[0]


@st.composite
def runs(draw: st.DrawFn, kept: bool = False) -> str:
    words = [KEPT] if kept else draw(st.lists(st.sampled_from(WORDS), max_size=4))
    out = []
    for word in words:
        out.append(f'<w:t xml:space="preserve">{word}</w:t>')
        if draw(st.integers(0, 5)) == 0:
            others = (*POINTS, "<w:tab/>", "<w:br/>", '<w:br w:type="page"/>', "<w:softHyphen/>")
            out.append(draw(st.sampled_from((*others, "<w:lastRenderedPageBreak/>"))))
    style = draw(st.sampled_from(STYLES))
    return f'<w:r w:rsidR="{len(words)}">{style}{"".join(out)}</w:r>'


@st.composite
def inlines(draw: st.DrawFn, depth: int = 0) -> str:
    kinds = ["run"] * 6 + ["range", "proof", "point", "kept", "field", "broken", "box"]
    kinds += ["hyperlink", "ins", "sdt", "bdo"] * (depth < 3)
    out = []
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=5)):
        inner = inlines(depth + 1)
        match kind:
            case "run":
                out.append(draw(runs()))
            case "range":
                name = draw(st.sampled_from(("bookmark", "commentRange")))
                end = draw(st.sampled_from(("Start", "End")))
                out.append(f'<w:{name}{end} w:id="{draw(st.integers(0, 2))}"/>')
            case "proof":
                out.append('<w:proofErr w:type="spellStart"/>')
            case "point":
                out.append(f"<w:del><w:r><w:delText>{KEPT}</w:delText></w:r></w:del>")
            case "kept":
                out.append(f'<w:fldSimple w:instr=" PAGE ">{draw(runs(kept=True))}</w:fldSimple>')
            case "field" if draw(st.booleans()):
                out.append(complex_field("PAGEREF x", draw(runs(kept=True))))
            case "field":
                out.append(complex_field('HYPERLINK "x"', draw(inner) if depth < 3 else ""))
            case "broken":
                ends = st.sampled_from(("begin", "separate", "end"))
                if draw(st.integers(0, 3)) == 0:
                    out.append(f"{BROKEN}{mark_up(draw(ends))}")
            case "box":
                box = f"<w:txbxContent><w:p>{draw(runs())}</w:p></w:txbxContent>"
                out.append(f"<w:r><w:drawing>{box}</w:drawing></w:r>" if depth < 3 else "")
            case "sdt":
                out.append(f"<w:sdt><w:sdtPr/><w:sdtContent>{draw(inner)}</w:sdtContent></w:sdt>")
            case _:
                out.append(f'<w:{kind} w:id="{draw(st.integers(0, 2))}">{draw(inner)}</w:{kind}>')
    return "".join(out)


def stream(paragraph: ET.Element) -> list[tuple[object, ...]]:
    """Return the characters and points of a paragraph with their formatting and containers.

    White space is one character without formatting.
    """
    out: list[tuple[object, ...]] = []
    style, blank = "", False

    def walk(element: ET.Element, around: tuple[str, ...]) -> None:
        nonlocal style, blank
        for child in element:
            name = child.tag.rpartition("}")[2]
            shown = f"{name} {sorted(child.attrib.items())}"
            if name == "r":
                formatting = child.find(f"{{{W}}}rPr")
                raw = "" if formatting is None else ET.tostring(formatting, "unicode")
                raw = re.sub(r' xmlns:\w+="[^"]*"|<\w+:(lang|rFonts) [^>]*/>', "", raw)
                style = "" if re.fullmatch(r"<\w+:rPr\s*/>|<(\w+:rPr)></\1>", raw) else raw
                walk(child, around)
            elif name == "t":
                for character in child.text or "":
                    if character.isspace():
                        out.extend([(" ",)] * (not blank))
                    else:
                        out.append((character, style, around))
                    blank = character.isspace() or (blank and character in OPEN + CLOSE)
            elif name in ("hyperlink", "ins", "sdt", "bdo", "fldSimple", "del", "sdtContent"):
                out.append(("(", shown))
                walk(child, (*around, shown))
                out.append((")", shown))
            elif name not in ("pPr", "rPr", "proofErr", "softHyphen", "lastRenderedPageBreak"):
                out.append((shown, child.text, style if element.tag.endswith("}r") else ""))

    walk(paragraph, ())
    return out


def sorted_spaces(items: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Move white space out of the containers at whose ends it stands."""
    out: list[tuple[object, ...]] = []
    for item in items:
        if item[0] == ")" and out[-1:] == [(" ",)]:
            out.insert(-1, item)
        elif item == (" ",):
            place = len(out)
            while place and out[place - 1][0] == "(":
                place -= 1
            out.insert(place, item)
        else:
            out.append(item)
    return out


def streams(raw: bytes) -> Iterator[list[tuple[object, ...]]]:
    for paragraph in ET.fromstring(raw).iter(f"{{{W}}}p"):
        yield stream(paragraph)


@GENERATED
@given(st.lists(inlines(), min_size=1, max_size=3), inlines())
def test_generated_documents_keep_everything(paragraphs: list[str], footer: str) -> None:
    inner = "".join(f'<w:p><w:pPr w:x="{i}"/>{one}</w:p>' for i, one in enumerate(paragraphs))
    content = document(inner, f"<w:p>{footer}</w:p>")
    found = docx.read(content)
    assert found.write(found.texts) == content
    out = translated(found)
    before, after = unzipped(content), unzipped(out)
    assert list(before) == list(after)
    assert all(before[name] == after[name] for name in ("[Content_Types].xml", "word/media/1.png"))
    count = 0
    for name in ("word/document.xml", "word/footer1.xml"):
        old, new = list(streams(before[name])), list(streams(after[name]))
        assert len(old) == len(new)
        for one, other in zip(old, new, strict=True):
            kept = [item for item in other if item[0] not in (OPEN, CLOSE)]
            assert sorted_spaces(kept) == sorted_spaces(one)
            count += sum(item[0] == OPEN for item in other)
            if BROKEN not in inner + footer:
                check_marks(other)
    assert count == len(found.texts)


def check_marks(items: list[tuple[object, ...]]) -> None:
    """Check that every letter is inside marks, except for kept ones."""
    inside = False
    for item in items:
        if item[0] in (OPEN, CLOSE):
            assert inside == (item[0] == CLOSE)
            inside = item[0] == OPEN
        elif len(item) == 3 and isinstance(item[0], str) and len(item[0]) == 1:
            assert inside or not item[0].isalpha() or item[0] in KEPT, items
    assert not inside


def test_runs_that_look_the_same_are_one_text() -> None:
    inner = (
        run("A sen") + '<w:proofErr w:type="spellStart"/>' + run("ten", STYLES[5])
        + run("ce", "<w:rPr/>") + run(" in ", STYLES[2]) + run("bold", STYLES[4]) + run(".")
    )  # fmt: skip
    (text,) = texts(f"<w:p>{inner}</w:p>")
    assert text == MarkedText("A sentence in bold.", (Span(10, 18, STYLES[2]),))
    assert changed(f"<w:p><w:pPr><w:bidi/></w:pPr>{inner}</w:p>") == (
        f"<w:p><w:pPr><w:bidi/></w:pPr>{run('«A sentence')}{run(' in bold', STYLES[2])}"
        f"{run('.»')}</w:p>"
    )


def test_the_most_frequent_formatting_is_no_span() -> None:
    (text,) = texts(f"<w:p>{run('Long red text, ', STYLES[6])}{run('b')}</w:p>")
    assert text.spans == (Span(15, 16, "<w:rPr/>"),)


def test_links_and_fields_of_text_are_containers_and_page_numbers_are_kept() -> None:
    link = f'<w:hyperlink w:id="1">{run("here")}</w:hyperlink>'
    field = complex_field('HYPERLINK "x"', run("there"))
    (text,) = texts(f"<w:p>{run('See ')}{link}{run(', ')}{field}{run(', page ')}"
                    f"{complex_field('PAGEREF x', run('7'))}{run('.')}</w:p>")  # fmt: skip
    assert text.text == "See here, there, page 7."
    kept = [(text.text[span.start : span.end], span.kept) for span in text.spans]
    assert kept == [("here", False), ("there", False), ("7", True)]


def test_a_table_of_contents_is_translated_over_its_paragraphs() -> None:
    begin = mark_up("begin") + "<w:r><w:instrText>TOC \\o</w:instrText></w:r>" + mark_up("separate")
    page = complex_field("PAGEREF a", run("5"))
    link = f'<w:hyperlink w:id="1">{run("One")}<w:r><w:tab/></w:r>{page}</w:hyperlink>'
    first = f"<w:p>{begin}{link}</w:p>"
    last = f"<w:p>{run('Two')}{mark_up('end')}</w:p>"
    assert [text.text for text in texts(first + last)] == ["One", "Two"]
    assert changed(first + last) == first.replace("One", "«One»") + last.replace("Two", "«Two»")


def test_a_field_of_several_paragraphs_is_kept() -> None:
    begin = (
        mark_up("begin")
        + "<w:r><w:instrText>BIBLIOGRAPHY</w:instrText></w:r>"
        + mark_up("separate")
    )
    inner = f"<w:p>{run('See')}{begin}{run('A book')}</w:p><w:p>{run('B')}{mark_up('end')}</w:p>"
    assert [text.text for text in texts(inner)] == ["See"]


def test_deleted_text_is_kept_and_inserted_text_is_translated() -> None:
    deleted = '<w:del w:id="1"><w:r><w:delText>old</w:delText></w:r></w:del>'
    inserted = f'<w:ins w:id="2">{run("new")}</w:ins>'
    (text,) = texts(f"<w:p>{run('A ')}{deleted}{inserted}{run(' text')}</w:p>")
    assert text.text == "A new text"
    assert [(span.start, span.end) for span in text.spans] == [(2, 2), (2, 5)]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("the end of", "a line", ["the end of a line"]),
        ("12 Main Road", "Paris", ["12 Main Road", "Paris"]),
        ("A sentence.", "b", ["A sentence.", "b"]),
    ],
)
def test_line_breaks_divide_a_paragraph_unless_a_sentence_continues(
    first: str, second: str, expected: list[str]
) -> None:
    inner = f"<w:p>{run(first)}<w:r><w:br/></w:r>{run(second)}</w:p>"
    assert [text.text for text in texts(inner)] == expected
    if len(expected) == 1:
        assert changed(inner) == inner.replace(first, f"«{first}").replace(second, f"{second}»")


def test_text_in_one_run_around_a_tab_is_two_texts() -> None:
    inner = (
        '<w:p><w:r w:x="1"><w:rPr><w:b/></w:rPr><w:t>Name</w:t><w:tab/><w:t>Ann</w:t></w:r></w:p>'
    )
    out = changed(inner)
    bold = "<w:rPr><w:b/></w:rPr>"
    assert out == (
        f'<w:p>{run("«Name»", bold)}<w:r w:x="1">{bold}<w:tab/></w:r>{run("«Ann»", bold)}</w:p>'
    )


def test_paragraphs_in_the_text_boxes_of_a_changed_paragraph_are_translated() -> None:
    box = f"<w:drawing><w:txbxContent><w:p>{run('Inside')}</w:p></w:txbxContent></w:drawing>"
    inner = f"<w:p>{run('Before ')}<w:r>{box}</w:r>{run('after')}</w:p>"
    assert [text.text for text in texts(inner)] == ["Before after", "Inside"]
    out = changed(inner)
    assert out.count("«Inside»") == 1
    assert "«Before </w:t></w:r><w:r><w:drawing>" in out


def test_unchanged_paragraphs_beside_changed_ones_keep_their_bytes() -> None:
    first = '<w:p><w:r w:rsidR="1"><w:t>On</w:t></w:r><w:r w:rsidR="2"><w:t>e</w:t></w:r></w:p>'
    found = docx.read(document(f"{first}<w:p>{run('Two')}</w:p>"))
    raw = found.write([found.texts[0], marked(found.texts[1])])
    assert f"{first}<w:p>{run('«Two»')}</w:p>".encode() in unzipped(raw)["word/document.xml"]


def test_text_without_a_letter_is_no_text() -> None:
    assert texts(f"<w:p>{run('2026-11-19')}</w:p><w:p>{run(' ')}</w:p>") == []


def test_symbols_of_fonts_are_kept() -> None:
    symbol = run("J", '<w:rPr><w:rFonts w:ascii="Wingdings"/></w:rPr>')
    (text,) = texts(f"<w:p>{run('A ')}{symbol}{run(' face')}</w:p>")
    assert text.text == "A  face"
    assert text.spans[0].open == symbol


def test_special_characters_are_escaped() -> None:
    found = docx.read(document(f"<w:p>{run('a')}</w:p>"))
    raw = unzipped(found.write([MarkedText("<w:p> & \x0b\x00 \ud800 \"'")]))["word/document.xml"]
    assert b"&lt;w:p&gt; &amp;   &quot;'" in raw


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ((), "lacks <w:hyperlink>"),
        ((Span(0, 1, "<w:hyperlink>", "</w:hyperlink>"),) * 2, "must not have <w:hyperlink>"),
        ((Span(0, 9, "<w:hyperlink>", "</w:hyperlink>"),), "crossed"),
    ],
)
def test_lost_doubled_or_crossed_mark_up_is_refused(spans: tuple[Span, ...], problem: str) -> None:
    link = f"<w:hyperlink>{run('b')}</w:hyperlink>"
    found = docx.read(document(f"<w:p>{run('a ')}{link}</w:p>"))
    with pytest.raises(InputError, match=problem):
        found.write([MarkedText("x y", spans)])


def test_a_container_may_be_two_spans() -> None:
    link = f"<w:hyperlink>{run('b ')}<w:r>{POINTS[0]}</w:r>{run('c')}</w:hyperlink>"
    found = docx.read(document(f"<w:p>{run('a ')}{link}{run(' d')}</w:p>"))
    opened, point = found.texts[0].spans
    text = MarkedText(
        "x yz",
        (
            replace(opened, start=2, end=3, close=""),
            replace(point, start=3, end=3),
            Span(3, 3, "</w:hyperlink>"),
        ),
    )
    raw = unzipped(found.write([text]))["word/document.xml"].decode()
    link = f"<w:hyperlink>{run('y')}<w:r>{POINTS[0]}</w:r></w:hyperlink>"
    assert f"<w:p>{run('x ')}{link}{run('z')}</w:p>" in raw


def test_a_translation_may_have_other_kept_text() -> None:
    found = docx.read(document(f"<w:p>{run('a b@c.org')}</w:p>"))
    raw = found.write([MarkedText("x b@c.org", (Span(2, 9, "", kept=True),))])
    assert run("x b@c.org").encode() in unzipped(raw)["word/document.xml"]


def test_another_number_of_texts_is_refused() -> None:
    found = docx.read(document(f"<w:p>{run('a ')}</w:p>"))
    with pytest.raises(InputError, match="1 texts, but 2"):
        found.write([marked(found.texts[0])] * 2)


def test_a_package_of_another_format_is_refused() -> None:
    with pytest.raises(InputError, match="no document"):
        docx.read(zipped({"[Content_Types].xml": TYPES.replace("wordprocessingml", "x")}))
    with pytest.raises(InputError, match="damaged or no office file"):
        docx.read(zipped({"a": "b"}))
