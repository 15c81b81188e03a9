"""Files that are not plain text are refused by their content."""

import io
import random
import zipfile

import pytest

from outrider.data.lines import check_plain_text
from outrider.errors import DataError


def docx() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("word/document.xml", "<w:t>Where is the station?</w:t>")
    return file.getvalue()


CUES = "1\n00:00:01,000 --> 00:00:02,500\nWhere is the station?\n\n2\n"
REFUSED = {
    "docx": (docx(), "is a zip archive (docx, odt, epub, ...)"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", "is a PDF document"),
    "rtf": (rb"{\rtf1\ansi Where is the station?}", "is an RTF document"),
    "doc": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 99, "is an Office document"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is a binary file"),
    "noise without NUL": (
        bytes(random.Random(0).choices(range(1, 256), k=4096)),
        "is not UTF-8 text",
    ),
    "Latin-1": ("Wo ist der n\xe4chste Bahnhof?\n".encode("latin-1"), "is not UTF-8 text"),
    "GBK": ("请问最近的地铁站在哪里？".encode("gbk"), "is not UTF-8 text"),
    "UTF-16 without a mark": ("Where is the station?".encode("utf-16-le"), "is a binary file"),
    "srt": (CUES.encode(), "is a subtitle file (SubRip)"),
    "srt of Windows": (
        b"\xef\xbb\xbf" + CUES.replace("\n", "\r\n").encode(),
        "is a subtitle file (SubRip)",
    ),
    "vtt": (b"WEBVTT\n\n00:01.000 --> 00:02.000\nHello", "is a subtitle file (WebVTT)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_formats_are_refused_by_content(name: str) -> None:
    head, fault = REFUSED[name]
    with pytest.raises(DataError) as error:
        check_plain_text(head, "in.txt")
    assert str(error.value).startswith(f"in.txt: {fault}")
    assert str(error.value).endswith("; give plain text in UTF-8, one text per line")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "Where is the station?\n",
        "1\nWhere is the station?\n",
        "12:30:00 --> leave the house\n",
        "The cue 00:00:01,000 --> 00:00:02,500 is the first.\n",
        "请问最近的地铁站在哪里？\n😀\n",
        "a character that was lost before: \ufffd\ufffd\ufffd\n",
        "PK is short for Peking.\n",
    ],
)
def test_text_is_not_refused(text: str) -> None:
    check_plain_text(text.encode(), "in.txt")


def test_a_bad_byte_in_a_long_text_and_a_character_cut_at_the_end_are_not_refused() -> None:
    check_plain_text(b"Where is the station?\n" * 9 + b"\xff\n", "in.txt")
    check_plain_text("哪里".encode()[:-1], "in.txt")
