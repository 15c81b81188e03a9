"""PowerPoint presentations: every text is found once, and its formatting survives."""

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from outrider.documents import pptx
from outrider.documents.marked import MarkedText, Span
from tests.helpers.marking import CLOSE, GENERATED, OPEN, translated, unzipped, zipped

A = "http://schemas.openxmlformats.org/drawingml/2006/main"
KIND = "application/vnd.openxmlformats-officedocument.presentationml.{}+xml"
NAMES = {f"ppt/slides/slide{i}.xml": "slide" for i in (1, 2, 10)} | {
    "ppt/notesSlides/notesSlide1.xml": "notesSlide",
    "ppt/slideLayouts/slideLayout1.xml": "slideLayout",
}
TYPES = "".join(
    f'<Override PartName="/{name}" ContentType="{KIND.format(kind)}"/>'
    for name, kind in NAMES.items()
)
STYLES = (
    "",
    "<a:rPr/>",
    '<a:rPr lang="en-US" dirty="0"/>',
    '<a:rPr lang="en-US" b="1"/>',
    '<a:rPr b="1"/>',
    '<a:rPr i="1"><a:hlinkClick x="1"/></a:rPr>',
)
WORDS = (
    "a",
    "Zug ",
    " is",
    "  ",
    " ",
    "б\tc",
    "漢字。",
    "שלום ",
    "مرحبا",
    "👩‍👧",
    "7",
    "x &amp; y",
    "",
)


def run(text: str, style: str = "") -> str:
    return f"<a:r>{style}<a:t>{text}</a:t></a:r>"


def xml(inner: str) -> bytes:
    return f'<p:sld xmlns:p="p" xmlns:a="{A}"><p:txBody>{inner}</p:txBody></p:sld>'.encode()


def document(*slides: str) -> bytes:
    space = "http://schemas.openxmlformats.org/package/2006/content-types"
    types = f'<Types xmlns="{space}">{TYPES}</Types>'
    inner = dict(zip(NAMES, slides, strict=False))
    members = {name: xml(inner.get(name, "")) for name in NAMES}
    layout = {"ppt/slideLayouts/slideLayout1.xml": xml(f"<a:p>{run('Click')}</a:p>")}
    return zipped({"[Content_Types].xml": types} | members | layout)


def texts(inner: str) -> list[MarkedText]:
    content = document(inner)
    found = pptx.read(content)
    assert found.write(found.texts) == content
    return list(found.texts)


def changed(inner: str) -> str:
    raw = unzipped(translated(pptx.read(document(inner))))["ppt/slides/slide1.xml"].decode()
    return raw.partition("<p:txBody>")[2].partition("</p:txBody>")[0]


@st.composite
def paragraphs(draw: st.DrawFn) -> str:
    out = []
    for kind in draw(st.lists(st.sampled_from("rrrrrrbfm"), max_size=8)):
        style = draw(st.sampled_from(STYLES))
        if kind == "r":
            out.append(run(draw(st.sampled_from(WORDS)), style))
        elif kind == "b":
            out.append(f"<a:br>{style}</a:br>")
        elif kind == "f":
            out.append(f'<a:fld type="slidenum">{style}<a:pPr/><a:t>Ꝁ</a:t></a:fld>')
        else:
            out.append('<p:math x="1"><a:t>Ꝃ</a:t></p:math>')
    return f'<a:p><a:pPr lvl="1"/>{"".join(out)}<a:endParaRPr dirty="0"/></a:p>'


def stream(paragraph: ET.Element) -> list[tuple[object, ...]]:
    """Return the characters with their formatting, and the points; white space is left out."""
    out: list[tuple[object, ...]] = []
    for child in paragraph:
        name = child.tag.rpartition("}")[2]
        formatting = child.find(f"{{{A}}}rPr")
        style: object = ""
        if formatting is not None:
            seen = {key: value for key, value in formatting.items() if key not in ("lang", "dirty")}
            style = (sorted(seen.items()), [one.tag for one in formatting])
        style = "" if style == ([], []) else style
        text = "".join(child.itertext())
        if name == "r":
            out += [(one, style) for one in text if not one.isspace() or one == "\t"]
        else:
            out.append((name, str(style), text, child.attrib.get("x")))
    return [one for i, one in enumerate(out) if one[0] != "\t" or i]


def streams(raw: bytes) -> list[list[tuple[object, ...]]]:
    return [stream(one) for one in ET.fromstring(raw).iter(f"{{{A}}}p")]


@GENERATED
@given(st.lists(paragraphs(), max_size=4), paragraphs(), paragraphs())
def test_generated_documents_keep_everything(slide: list[str], other: str, notes: str) -> None:
    content = document("".join(slide), other, "", notes)
    found = pptx.read(content)
    assert found.write(found.texts) == content
    before, after = unzipped(content), unzipped(translated(found))
    assert list(before) == list(after)
    count = 0
    for name in before:
        if "slideLayout" in name:
            assert before[name] == after[name]
            continue
        for one, new in zip(streams(before[name]), streams(after[name]), strict=True):
            assert [item for item in new if item[0] not in (OPEN, CLOSE)] == one
            count += sum(item[0] == OPEN for item in new)
            inside = False
            for item in new:
                inside = item[0] == OPEN or (inside and item[0] != CLOSE)
                assert inside or len(item) > 2 or not str(item[0]).isalpha()
    assert count == len(found.texts)


def test_runs_that_look_the_same_are_one_text() -> None:
    inner = run("A sen", STYLES[2]) + run("tence", "") + run(" in bold", STYLES[3])
    paragraph = f"<a:p>{inner}{run('.', STYLES[4])}</a:p>"
    (text,) = texts(paragraph)
    assert text == MarkedText("A sentence in bold.", (Span(10, 19, STYLES[3]),))
    new = run("«A sentence", STYLES[2]) + run(" in bold.", STYLES[3]) + run("»", STYLES[2])
    assert changed(paragraph) == f"<a:p>{new}</a:p>"


def test_slides_are_in_the_order_of_their_numbers() -> None:
    slides = (f"<a:p>{run(word)}</a:p>" for word in ("one", "two", "ten", "notes"))
    assert [one.text for one in pptx.read(document(*slides)).texts] == [
        "one",
        "two",
        "ten",
        "notes",
    ]


def test_tabs_and_slide_numbers_are_kept() -> None:
    field = '<a:fld type="slidenum"><a:t>3</a:t></a:fld>'
    (text,) = texts(f"<a:p>{run(f'Slide{chr(9)}no ')}{field}{run(' of')}</a:p>")
    assert text.text == "Slide\tno 3 of"
    assert text.spans == (Span(5, 6, "", kept=True), Span(9, 10, field, kept=True))
