"""Elements and texts have the bytes of the file; unsafe files are refused."""

import pytest

from outrider.documents.xml import Element, Text, elements, escape, source
from outrider.errors import InputError

SPACES = {"urn:w": "w"}
FILE = """<?xml version="1.0"?>
<!-- é --><x:d xmlns:x="urn:w"><x:p a="1>0" b='"'>é &amp; b<x:r/>t<![CDATA[<q>]]>u<!-- k -->v</x:p>
<p xmlns="urn:w"/><x:z><x:p>1\r\n2</x:p ></x:z></x:d>"""


def shown(element: Element, raw: bytes) -> list[object]:
    """Return an element with the bytes of its tags and texts."""
    inside: list[object] = [
        (child.text, raw[child.start : child.end].decode())
        if isinstance(child, Text)
        else shown(child, raw)
        for child in element.children
    ]
    tags = raw[element.start : element.inner], raw[element.close : element.end]
    return [element.name, tags[0].decode(), *inside, tags[1].decode()]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_elements_have_their_bytes(encoding: str) -> None:
    raw = FILE.encode(encoding)
    file = source("a.xml", raw)
    assert file.encoded(file.content) == raw
    assert [shown(one, file.content) for one in elements(file, ("w:p",), SPACES)] == [
        [
            *("w:p", '<x:p a="1>0" b=\'"\'>', ("é & b", "é &amp; b"), ["w:r", "<x:r/>", ""]),
            *(("t<q>", "t<![CDATA[<q>]]>"), ("u", "u"), ("v", "v"), "</x:p>"),
        ],
        ["w:p", '<p xmlns="urn:w"/>', ""],
        ["w:p", "<x:p>", ("1\n2", "1\r\n2"), "</x:p >"],
    ]


def test_long_texts_and_files_are_read_in_pieces() -> None:
    text = "é&amp;" * 50_000
    file = source("a", f"<d>{'<p>x</p>' * 20_000}<p>{text}</p></d>".encode())
    found = list(elements(file, ("p",), {}))
    assert len(found) == 20_001
    assert found[-1].text == "é&" * 50_000
    (piece,) = found[-1].children
    assert file.content[piece.start : piece.end].decode() == text


def test_other_encodings_are_read_and_written() -> None:
    raw = '<?xml version="1.0" encoding="ISO-8859-1"?><a>é</a>'.encode("latin-1")
    file = source("a", raw)
    assert file.encoded(file.content) == raw
    assert file.encoded("<a>漢</a>".encode()) == "<a>&#28450;</a>".encode("latin-1")


ENTITIES = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (f'<!DOCTYPE a [<!ENTITY l0 "lol">{ENTITIES}]><a>&l9;</a>', "entity 'l0'"),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', "entity 'x'"),
        ('<!DOCTYPE a [<!ENTITY % x SYSTEM "http://[::1]/">%x;]><a/>', "entity 'x'"),
        ('<!DOCTYPE a SYSTEM "http://[::1]/a.dtd"><a>&x;</a>', "entity 'x'"),
        ("<a>&x;</a>", "undefined entity"),
        ("<a>" * 300 + "</a>" * 300, "deeper than 250"),
        ("<a>" * 100_000, "deeper than 250"),
        ("<a><b></a>", "mismatched tag"),
        ("<a", "not well-formed"),
        ("", "no element"),
        ("<a>\0</a>", "not well-formed"),
        ('<?xml version="1.0" encoding="punycode"?><a/>', "save it as UTF-8"),
        ('<?xml version="1.0" encoding="shift_jisx"?><a/>', "save it as UTF-8"),
    ],
)
def test_unsafe_and_damaged_files_are_refused(raw: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        list(elements(source("word/a.xml", raw.encode()), ("a",), {}))
    assert str(refused.value).startswith("word/a.xml ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("raw", [b"<a>\xff</a>", b"\xff\xfea"])
def test_bytes_of_no_encoding_are_refused(raw: bytes) -> None:
    with pytest.raises(InputError, match="save it as UTF-8"):
        source("a", raw)


def test_a_document_type_without_entities_is_accepted() -> None:
    file = source("a", b'<!DOCTYPE a PUBLIC "-//x" "http://[::1]/a.dtd"><a>b</a>')
    assert [one.text for one in elements(file, ("a",), {})] == ["b"]


def test_characters_that_xml_cannot_hold_are_left_out() -> None:
    assert escape('a\0\x0b\ud800\uffff<b> & "\r😀') == "a&lt;b&gt; &amp; &quot;&#13;😀"
