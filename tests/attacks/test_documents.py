"""Documents that mean harm, or are damaged, are refused in one sentence."""

import random
from pathlib import Path

import pytest

from outrider.documents import read_document
from outrider.errors import InputError
from tests.documents import test_docx, test_epub, test_odt, test_pptx, test_xlsx
from tests.helpers.marking import translated, unzipped, zipped

PARAGRAPH = "<w:p>" + test_docx.run("a ") + test_docx.complex_field("REF", "") + "</w:p>"
FILES = {
    "a.docx": (test_docx.document(PARAGRAPH), "word/document.xml"),
    "a.odt": (test_odt.document(f"<text:p>a{test_odt.NOTE}</text:p>"), "content.xml"),
    "a.pptx": (test_pptx.document(f"<a:p>{test_pptx.run('a')}</a:p>"), "ppt/slides/slide1.xml"),
    "a.xlsx": (test_xlsx.document(f"<si>{test_xlsx.run('a')}</si>"), "xl/sharedStrings.xml"),
    "a.epub": (zipped(test_epub.book()), "OEBPS/toc.ncx"),
}
ENTITIES = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
ATTACKS = {
    "bomb": f'<!DOCTYPE a [<!ENTITY l0 "lol">{ENTITIES}]><a>&l9;</a>'.encode(),
    "external": b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
    "parameter": b'<!DOCTYPE a [<!ENTITY % x SYSTEM "http://[::1]/x">%x;]><a/>',
    "deep": b"<a>" * 100_000 + b"</a>" * 100_000,
    "large": b"<a>" + bytes(64 << 20) + b"</a>",
    "cut": b"<a><b>",
    "encoding": b'<?xml version="1.0" encoding="punycode"?><a/>',
}


def refusal(content: bytes, name: str) -> str:
    with pytest.raises(InputError) as refused:
        read_document(content, name)
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < 300
    return message


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", FILES)
def test_unsafe_members_are_refused(name: str, attack: str) -> None:
    content, member = FILES[name]
    assert member in refusal(zipped(unzipped(content) | {member: ATTACKS[attack]}), name)


@pytest.mark.parametrize("name", FILES)
def test_other_files_are_refused(name: str) -> None:
    content, _ = FILES[name]
    for other in (content[:-40], content[: len(content) // 2], b"", b"PK\3\4", bytes(1000)):
        assert "zip archive" in refusal(other, name)
    assert "PDF" in refusal(b"%PDF-1.4\n", name)
    assert "password" in refusal(b"\xd0\xcf\x11\xe0" + bytes(2000), name)
    assert "outside of it" in refusal(zipped(unzipped(content) | {"../../x": b"a"}), name)


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_read_or_refused(name: str) -> None:
    content, member = FILES[name]
    changes = random.Random(name)
    members = unzipped(content)
    for _ in range(300):
        damaged = bytearray(content if changes.random() < 0.3 else members[member])
        for _ in range(changes.choice((1, 1, 2, 5))):
            start = changes.randrange(len(damaged))
            piece = changes.choice(
                (b"", b"<", b">", b"/", b"&", b"\xff", b"\0", b'"', damaged[:20])
            )
            damaged[start : start + changes.choice((0, 1, 9))] = piece
        whole = damaged[:2] == b"PK"
        try:
            document = read_document(
                bytes(damaged) if whole else zipped(members | {member: bytes(damaged)}), name
            )
            assert document.write(document.texts)
            translated(document)
        except InputError:
            continue


def test_names_of_files_on_this_machine_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    raw = f'<!DOCTYPE a SYSTEM "{secret.as_uri()}"><a>&secret;</a>'.encode()
    content, member = FILES["a.docx"]
    message = refusal(zipped(unzipped(content) | {member: raw}), "a.docx")
    assert "entity 'secret'" in message
