"""OpenDocument texts: every text is found once, and its mark-up survives."""

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.documents import odt
from outrider.documents.marked import MarkedText
from outrider.errors import InputError
from tests.helpers.marking import CLOSE, GENERATED, OPEN, translated, unzipped, zipped

URNS = "urn:oasis:names:tc:opendocument:xmlns:"
SPACES = " ".join(f'xmlns:{name}="{URNS}{name}:1.0"' for name in ("text", "office", "drawing"))
WORDS = ("a", "Zug ", " is", "  ", "\n ", "б", "漢字。", "שלום ", "مرحبا", "👩‍👧", "7", "x &amp; y")
WORDS += ("<![CDATA[<c>]]>", '<text:s text:c="4"/>', "<text:s/>")
KEPT = "ꝀꝂ"
NOTE = (
    f"<text:note><text:note-citation>{KEPT}</text:note-citation><text:note-body><text:p>Note</text:p>"
    "</text:note-body></text:note>"
)
OTHERS = (
    *("<text:tab/>", "<text:line-break/>", "<text:soft-page-break/>"),
    '<text:bookmark text:name="b"/>',
    *(f"<text:date>{KEPT}</text:date>", '<text:change text:change-id="1"/>', "<!-- c -->"),
    NOTE,
    "<drawing:frame><drawing:text-box><text:h>Box <text:span>in</text:span></text:h>"
    "</drawing:text-box></drawing:frame>",
)  # fmt: skip


def xml(inner: str) -> bytes:
    return (
        f"<office:document {SPACES}><office:body>{inner}</office:body></office:document>".encode()
    )


def document(inner: str, styles: str = "") -> bytes:
    members = {"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": xml(inner)}
    return zipped(members | {"styles.xml": xml(styles), "Pictures/1.png": b"\x89PNG"})


def texts(inner: str) -> list[MarkedText]:
    content = document(inner)
    found = odt.read(content)
    assert found.write(found.texts) == content
    return list(found.texts)


def changed(inner: str) -> str:
    raw = unzipped(translated(odt.read(document(inner))))["content.xml"].decode()
    return raw.partition("<office:body>")[2].partition("</office:body>")[0]


@st.composite
def inlines(draw: st.DrawFn, depth: int = 0) -> str:
    out = []
    for kind in draw(st.lists(st.sampled_from("wwwwwprsa" if depth < 3 else "wp"), max_size=6)):
        if kind == "w":
            out.append(draw(st.sampled_from(WORDS)))
        elif kind == "p":
            out.append(draw(st.sampled_from(OTHERS)))
        elif kind == "r":
            name = draw(st.sampled_from(("bookmark", "reference-mark", "change")))
            end = draw(st.sampled_from(("start", "end")))
            out.append(f'<text:{name}-{end} text:name="{draw(st.integers(0, 1))}"/>')
        else:
            name, number = ("span" if kind == "s" else "a"), draw(st.integers(0, 2))
            inner = draw(inlines(depth + 1))
            out.append(f'<text:{name} text:style-name="T{number}">{inner}</text:{name}>')
    return "".join(out)


def stream(paragraph: ET.Element) -> list[tuple[object, ...]]:
    """Return the characters, tags and points of a paragraph; white space is left out."""
    out: list[tuple[object, ...]] = []

    def put(text: str | None) -> None:
        out.extend((character,) for character in text or "" if not character.isspace())

    def walk(element: ET.Element) -> None:
        put(element.text)
        for child in element:
            name = child.tag.rpartition("}")[2]
            if name in ("span", "a"):
                out.append(("(", name, *child.attrib.values()))
                walk(child)
                out.append((")", name))
            elif name not in ("s", "soft-page-break"):
                out.append((name, *child.attrib.values(), child.text))
            put(child.tail)

    walk(paragraph)
    return out


@GENERATED
@given(st.lists(inlines(), min_size=1, max_size=3), inlines())
def test_generated_documents_keep_everything(paragraphs: list[str], header: str) -> None:
    inner = "".join(f"<text:p>{one}</text:p>" for one in paragraphs)
    content = document(inner, f"<text:h>{header}</text:h>")
    found = odt.read(content)
    assert found.write(found.texts) == content
    before, after = unzipped(content), unzipped(translated(found))
    assert list(before) == list(after)
    assert all(before[name] == after[name] for name in ("mimetype", "Pictures/1.png"))
    count = 0
    for name in odt.MEMBERS:
        for one, other in zip(*map(paragraphs_of, (before[name], after[name])), strict=True):
            assert [item for item in other if item[0] not in (OPEN, CLOSE)] == one
            count += sum(item[0] == OPEN for item in other)
            inside = False
            for item in other:
                inside = item[0] == OPEN or (inside and item[0] != CLOSE)
                assert inside or len(item) > 1 or not str(item[0]).isalpha()
    assert count == len(found.texts)


def paragraphs_of(raw: bytes) -> list[list[tuple[object, ...]]]:
    return [
        stream(one) for one in ET.fromstring(raw).iter() if re.search(r"text:1.0}[ph]$", one.tag)
    ]


def test_formatting_is_a_container_and_fields_are_kept() -> None:
    bold = '<text:span text:style-name="T1">bold</text:span>'
    inner = f"<text:p>Some  {bold} text, page <text:page-number>7</text:page-number>.</text:p>"
    (text,) = texts(inner)
    assert text.text == "Some bold text, page 7."
    assert [(one.start, one.end, one.kept) for one in text.spans] == [(5, 9, False), (21, 22, True)]
    assert changed(inner) == inner.replace("Some  ", "«Some ").replace(
        "7</text:page-number>.", "7</text:page-number>.»"
    )


def test_the_text_of_notes_is_translated_inside_a_changed_paragraph() -> None:
    inner = f"<text:h>Be{NOTE}fore</text:h>"
    assert [text.text for text in texts(inner)] == ["Before", "Note"]
    assert changed(inner) == inner.replace("Be", "«Be").replace("fore", "fore»").replace(
        ">Note<", ">«Note»<"
    )


def test_deleted_text_is_kept() -> None:
    assert texts("<text:tracked-changes><text:p>Old</text:p></text:tracked-changes>") == []


def test_spaces_and_line_breaks_are_written() -> None:
    found = odt.read(document("<text:p>a</text:p>"))
    raw = unzipped(found.write([MarkedText("a   b\nc\td")]))["content.xml"]
    assert b'<text:p>a <text:s text:c="2"/>b<text:line-break/>c<text:tab/>d</text:p>' in raw


def test_files_with_passwords_and_other_formats_are_refused() -> None:
    space = f'xmlns:m="{URNS}manifest:1.0"'
    manifest = f"<m:manifest {space}><m:encryption-data/></m:manifest>"
    with pytest.raises(InputError, match="password"):
        odt.read(zipped({"content.xml": "x", "META-INF/manifest.xml": manifest}))
    with pytest.raises(InputError, match="another format"):
        odt.read(zipped({"a": "b"}))
