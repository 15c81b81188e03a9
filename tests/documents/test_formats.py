"""The choice of a format by the name of a file."""

from importlib import import_module

import pytest

from outrider.documents import BILINGUAL, FORMATS, read_document
from outrider.errors import InputError

SUBTITLES = b"1\n00:00:01,000 --> 00:00:02,000\nHello.\n"


@pytest.mark.parametrize("name", ["a.srt", "A.SRT", "film.en.srt", "a.vtt"])
def test_the_suffix_selects_the_format(name: str) -> None:
    assert [marked.text for marked in read_document(SUBTITLES, name).texts] == ["Hello."]


@pytest.mark.parametrize("name", sorted({*FORMATS.values(), *BILINGUAL}))
def test_each_format_is_a_module(name: str) -> None:
    assert callable(import_module(f"outrider.documents.{name}").read)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.pdf", "^pdf files .* docx first, for example with LibreOffice or pdf2docx$"),
        ("a.doc", "save it as docx"),
        ("a.XLS", "save it as xlsx"),
        ("a.ppt", "save it as pptx"),
        ("a.srtt", "did you mean '.srt'.*the formats are .*, .vtt"),
        ("a", "a name without a suffix is no format"),
    ],
)
def test_other_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_document(SUBTITLES, name)
