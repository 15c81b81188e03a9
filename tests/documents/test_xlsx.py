"""Excel workbooks: every text is found once, and its formatting survives."""

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from outrider.documents import xlsx
from outrider.documents.marked import MarkedText, Span
from tests.helpers.marking import CLOSE, GENERATED, OPEN, translated, unzipped, zipped

S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml.{}+xml"
NAMES = {
    "xl/sharedStrings.xml": "sharedStrings",
    "xl/worksheets/sheet1.xml": "worksheet",
    "xl/tables/table1.xml": "table",
    "xl/workbook.xml": "sheet.main",
}
TYPES = "".join(
    f'<Override PartName="/{name}" ContentType="{KIND.format(kind)}"/>'
    for name, kind in NAMES.items()
)
TABLE = (
    f'<table xmlns="{S}"><tableColumn name="Fruit"/><tableColumn name="Unit_x000a_price"/></table>'
)
STYLES = ("", "<rPr/>", "<rPr><b/></rPr>", '<rPr><color rgb="FF"/></rPr>')
STRINGS = (f"{{{S}}}si", f"{{{S}}}is")
WORDS = ("a", "Zug ", " is", "  ", "б\nc", "漢字。", "שלום ", "مرحبا", "👩‍👧", "7", "x &amp; y", "")


def run(text: str, style: str = "") -> str:
    return f'<r>{style}<t xml:space="preserve">{text}</t></r>'


def document(strings: str, cells: str = "") -> bytes:
    space = "http://schemas.openxmlformats.org/package/2006/content-types"
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{space}">{TYPES}</Types>',
            "xl/sharedStrings.xml": f'<sst xmlns="{S}">{strings}</sst>',
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{S}"><row>{cells}</row></worksheet>',
            "xl/tables/table1.xml": TABLE,
            "xl/workbook.xml": f'<workbook xmlns="{S}"><sheet name="Prices"/></workbook>',
        }
    )


def texts(strings: str, cells: str = "") -> list[MarkedText]:
    content = document(strings, cells)
    found = xlsx.read(content)
    assert found.write(found.texts) == content
    return list(found.texts)


def changed(strings: str) -> str:
    raw = unzipped(translated(xlsx.read(document(strings))))["xl/sharedStrings.xml"].decode()
    return raw.partition(">")[2].removesuffix("</sst>")


@st.composite
def strings(draw: st.DrawFn) -> str:
    words = st.sampled_from(WORDS)
    if draw(st.booleans()):
        preserved = draw(st.sampled_from(("", ' xml:space="preserve"')))
        return f"<t{preserved}>{draw(words)}{draw(words)}</t>"
    runs = st.lists(st.tuples(words, st.sampled_from(STYLES)), min_size=1, max_size=6)
    phonetic = draw(st.sampled_from(("", '<rPh sb="0" eb="1"><t>Ꝁ</t></rPh><phoneticPr/>')))
    return "".join(run(*one) for one in draw(runs)) + phonetic


def stream(string: ET.Element) -> list[tuple[str, str]]:
    """Return the characters with their formatting; white space is left out."""
    out = []
    for child in (string, *string.findall(f"{{{S}}}r")):
        formatting = child.find(f"{{{S}}}rPr")
        style = "" if formatting is None else ET.tostring(formatting, "unicode")
        style = style if len(formatting if formatting is not None else ()) else ""
        text = "".join(one.text or "" for one in child.findall(f"{{{S}}}t"))
        out += [(character, style) for character in text if not character.isspace()]
    return out


def strings_of(raw: bytes) -> list[list[tuple[str, str]]]:
    return [stream(one) for one in ET.fromstring(raw).iter() if one.tag in STRINGS]


@GENERATED
@given(st.lists(strings(), max_size=5), st.lists(strings(), max_size=3))
def test_generated_documents_keep_everything(shared: list[str], inline: list[str]) -> None:
    cells = "".join(f'<c t="inlineStr"><is>{one}</is></c><c><v>1</v></c>' for one in inline)
    content = document("".join(f"<si>{one}</si>" for one in shared), cells)
    found = xlsx.read(content)
    assert found.write(found.texts) == content
    before, after = unzipped(content), unzipped(translated(found))
    assert list(before) == list(after)
    count = 0
    for name in before:
        if name not in list(NAMES)[:2]:
            assert before[name] == after[name]
            continue
        old, new = (strings_of(raw[name]) for raw in (before, after))
        kept = [[one for one in items if one[0] not in (OPEN, CLOSE)] for items in new]
        assert [one for one in kept if one] == [one for one in old if one]
        for items in new:
            shown = "".join(character for character, _ in items)
            count += shown.count(OPEN)
            assert shown.startswith(OPEN) == shown.endswith(CLOSE) == any(map(str.isalpha, shown))
    assert count == len(found.texts)


def test_the_formatting_inside_a_cell_survives() -> None:
    rich = f"<si>{run('This is ')}{run('very', STYLES[2])}{run(' cheap')}</si>"
    assert texts(rich) == [MarkedText("This is very cheap", (Span(8, 12, STYLES[2]),))]
    assert changed(rich) == f"<si>{run('«This is ')}{run('very', STYLES[2])}{run(' cheap»')}</si>"
    assert changed("<si><t>Pear</t></si>") == '<si><t xml:space="preserve">«Pear»</t></si>'


def test_numbers_formulas_and_headers_of_tables_are_kept() -> None:
    cells = (
        '<c t="str"><f>A1&amp;"x"</f><v>yes</v></c><c t="s"><v>0</v></c><c><v>2</v></c>'
        '<c t="inlineStr"><is><t>Unit\nprice</t></is></c>'
    )
    assert texts("<si><t>Fruit</t></si><si><t>12</t></si><si><t>A fruit</t></si>", cells) == [
        MarkedText("A fruit")
    ]


def test_the_pronunciation_of_a_changed_text_is_left_out() -> None:
    string = '<si><t>東京</t><rPh sb="0" eb="2"><t>とうきょう</t></rPh></si>'
    assert changed(string) == '<si><t xml:space="preserve">«東京»</t></si>'
