"""E-books: pages, tables of contents and the title are translated."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.documents import epub
from outrider.errors import InputError
from tests.helpers.marking import CLOSE, GENERATED, OPEN, translated, unzipped, zipped

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile '
    'full-path="OEBPS/book.opf"/></rootfiles></container>'
)
OPF = """<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>A &amp; B</dc:title>
<dc:language>en</dc:language><dc:creator>Ann Lee</dc:creator></metadata><manifest>
<item id="toc" href="toc.ncx" media-type="application/x-dtbncx+xml"/>
<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
<item id="two" href="text/two%20.xhtml" media-type="application/xhtml+xml"/>
<item id="one" href="text/../one.xhtml#a" media-type="application/xhtml+xml"/>
<item id="css" href="a.css" media-type="text/css"/></manifest>
<spine toc="toc"><itemref idref="one"/><itemref idref="two"/></spine></package>"""
NCX = (
    '<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://[::1]/ncx-2005-1.dtd">'
    '<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap><navPoint><navLabel><text>Start'
    '</text></navLabel><content src="one.xhtml"/></navPoint></navMap></ncx>'
)
WORDS = (
    "a",
    "Zug ",
    " is",
    "б",
    "漢字。",
    "שלום ",
    "مرحبا",
    "👩‍👧",
    "7",
    "x &amp; y",
    "<br/>",
    "<img src='1'/>",
)


def page(body: str) -> str:
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n<html xmlns="http://www.w3.org/'
        f'1999/xhtml"><head><title>T</title></head>\n<body>{body}</body></html>'
    )


def book(one: str = "<p>One</p>", two: str = "<p>Two</p>", **others: str) -> dict[str, str | bytes]:
    return {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": OPF,
        "OEBPS/toc.ncx": NCX,
        "OEBPS/nav.xhtml": page('<nav><ol><li><a href="one.xhtml">Start</a></li></ol></nav>'),
        "OEBPS/one.xhtml": page(one),
        "OEBPS/text/two .xhtml": page(two),
        "OEBPS/a.css": "p { color: red }",
        **others,
    }


@st.composite
def inlines(draw: st.DrawFn, depth: int = 0) -> str:
    out = []
    for kind in draw(st.lists(st.sampled_from("wwwwwbia" if depth < 3 else "w"), max_size=5)):
        if kind == "w":
            out.append(draw(st.sampled_from(WORDS)))
        else:
            out.append(
                f'<{kind} id="{draw(st.integers(0, 3))}">{draw(inlines(depth + 1))}</{kind}>'
            )
    return "".join(out)


def stream(raw: bytes) -> list[str]:
    """Return the characters and tags of a page; white space is left out."""
    out: list[str] = []

    def walk(element: ET.Element) -> None:
        out.append(f"<{element.tag} {sorted(element.attrib.items())}>")
        out.extend("".join((element.text or "").split()))
        for child in element:
            walk(child)
            out.extend("".join((child.tail or "").split()))
        out.append(f"</{element.tag}>")

    walk(ET.fromstring(raw))
    return out


@GENERATED
@given(st.lists(inlines(), max_size=4), inlines())
def test_generated_documents_keep_everything(one: list[str], two: str) -> None:
    members = book("".join(f"<p>{inner}</p>" for inner in one), f"<div>{two}</div>")
    content = zipped(members)
    found = epub.read(content)
    assert found.write(found.texts) == content
    before, after = unzipped(content), unzipped(translated(found))
    assert list(before) == list(after)
    count = 0
    for name in before:
        if not name.endswith(("xhtml", "opf", "ncx")):
            assert before[name] == after[name]
            continue
        old, new = stream(before[name]), stream(after[name])
        assert [item for item in new if item not in (OPEN, CLOSE)] == old
        assert new.count(OPEN) == new.count(CLOSE)
        count += new.count(OPEN)
    assert count == len(found.texts)


def test_pages_are_read_in_the_order_of_the_book() -> None:
    content = zipped(book("<h1>One <b>bold</b></h1>"))
    texts = [text.text for text in epub.read(content).texts]
    assert texts == ["A & B", "T", "One bold", "T", "Two", "Start", "T", "Start"]
    after = unzipped(translated(epub.read(content)))
    assert b"<dc:title>\xc2\xabA &amp; B\xc2\xbb</dc:title>" in after["OEBPS/book.opf"]
    assert b"<text>\xc2\xabStart\xc2\xbb</text>" in after["OEBPS/toc.ncx"]


def test_protected_and_damaged_books_are_refused() -> None:
    start = '<encryption xmlns:e="http://www.w3.org/2001/04/xmlenc#">'
    font, text = (
        f'{start}<e:CipherReference URI="OEBPS/{name}"/></encryption>'
        for name in ("font.ttf", "text/two%20.xhtml")
    )
    assert epub.read(zipped(book(**{epub.ENCRYPTION: font}))).texts
    with pytest.raises(InputError, match="DRM"):
        epub.read(zipped(book(**{epub.ENCRYPTION: text})))
    for broken in ({"a": "b"}, book(**{epub.CONTAINER: CONTAINER.replace("book", "x")})):
        with pytest.raises(InputError, match="damaged"):
            epub.read(zipped(broken))
    bomb = '<!DOCTYPE package [<!ENTITY a "b">]>' + OPF.partition("?>")[2]
    with pytest.raises(InputError, match="entity 'a'"):
        epub.read(zipped(book(**{"OEBPS/book.opf": bomb})))
