"""Documents through LibreTranslate's and DeepL's APIs, with their published clients."""

import io
import time
from pathlib import Path

import httpx
import pytest

from outrider.documents import read_document
from outrider.documents.marked import MarkedText
from outrider.documents.translate import translate_marked
from outrider.serving import documents
from outrider.serving.api.fields import read_upload
from outrider.serving.request import RefusalError

SUBTITLES = """1
00:00:01,000 --> 00:00:02,000
Two <i>men</i> play.

2
00:00:03,000 --> 00:00:04,000
A small dog runs!
"""


def send(url: str, name: str = "a.srt", content: str = SUBTITLES, **fields: str) -> httpx.Response:
    files = {"file": (name, content.encode())}
    data = {"source": "en", "target": "de"} | fields
    return httpx.post(f"{url}/translate_file", data=data, files=files, timeout=120)


@pytest.fixture(scope="module")
def expected(offline) -> str:
    """The translation by the library."""
    document = read_document(SUBTITLES.encode(), "a.srt")

    def translate(texts: list[str]):
        return [best for best, *_ in offline.results(texts, alignment=True)]

    return document.write(translate_marked(document.texts, translate)).decode()


def test_libretranslate_returns_the_address_of_the_translation(url, expected) -> None:
    answer = send(url).json()["translatedFileUrl"]
    assert answer.startswith(f"{url}/download_file/")
    found = httpx.get(answer)
    assert found.text == expected
    assert "a.de.srt" in found.headers["content-disposition"]
    assert found.text.count("-->") == 2
    assert "<i>" in found.text


def test_the_published_client_of_deepl(url, expected, tmp_path) -> None:
    deepl = pytest.importorskip("deepl", reason="needs deepl, of outrider[dev]")
    source, target = tmp_path / "film.srt", tmp_path / "film.de.srt"
    source.write_text(SUBTITLES)
    client = deepl.DeepLClient("none", server_url=url)
    status = client.translate_document_from_filepath(source, target, target_lang="DE")
    assert status.done
    assert status.billed_characters == len("Two men play.A small dog runs!")
    assert target.read_text() == expected
    written = io.BytesIO()
    with pytest.raises(deepl.DeepLException, match="is no format of documents"):
        client.translate_document(b"x", written, filename="a.xyz", target_lang="DE")


def test_deepl_reports_progress_and_forgets_the_result(url, expected) -> None:
    answer = httpx.post(
        f"{url}/v2/document",
        data={"target_lang": "DE", "source_lang": "EN"},
        files={"file": ("a.srt", SUBTITLES.encode())},
    ).json()
    place = f"{url}/v2/document/{answer['document_id']}"
    wrong = httpx.post(place, json={"document_key": "x" * 43})
    assert wrong.status_code == 404
    key = {"document_key": answer["document_key"]}
    while (status := httpx.post(place, json=key).json())["status"] != "done":
        assert status["status"] in ("queued", "translating")
        assert status["seconds_remaining"] > 0
        time.sleep(0.05)
    assert httpx.post(f"{place}/result", json=key).text == expected
    assert httpx.post(f"{place}/result", json=key).status_code == 404


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "a.pdf"}, "pdf files cannot be translated: convert it to docx first"),
        ({"name": "a.exe"}, ".exe is no format of documents"),
        ({"target": ""}, "target: name the language"),
        ({"target": "fr"}, "fr"),
        ({"content": "1\n00:00:01,000 --> 00:00:02,000\n" + "word " * 900_000}, "characters"),
    ],
)
def test_what_cannot_be_translated_is_refused(url, fields, message) -> None:
    answer = send(url, **fields)
    assert 400 <= answer.status_code < 500
    assert message in answer.json()["error"]


def test_a_document_needs_the_key_of_the_server(locked_with_key) -> None:
    url, key = locked_with_key
    assert send(url).status_code in (401, 403)
    answer = send(url, api_key=key)
    assert answer.status_code == 200
    assert httpx.get(answer.json()["translatedFileUrl"]).status_code == 200
    other = answer.json()["translatedFileUrl"][:-1]
    assert httpx.get(other).status_code == 404


def test_a_document_is_translated_in_parts(monkeypatch) -> None:
    monkeypatch.setattr(documents, "WINDOW_CHARACTERS", 10)
    texts = [MarkedText("a" * 7)] * 3 + [MarkedText("b" * 20)]
    assert documents._window(texts) == texts[:1]
    assert documents._window(texts[3:]) == texts[3:]


@pytest.mark.parametrize(
    "body",
    [
        b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n--b--",
        b'--b\r\nContent-Disposition: form-data; name=file; filename="x"\r\n\r\nx',
        b"",
    ],
)
def test_a_form_without_one_whole_file_is_refused(body) -> None:
    with pytest.raises(RefusalError):
        read_upload(b"multipart/form-data; boundary=b", body)


def test_folders_of_a_file_name_are_dropped() -> None:
    head = b'Content-Disposition: form-data; name=file; filename="..\\..\\a/b.srt"'
    body = b"--b\r\n" + head + b"\r\n\r\n1\r\n--b--"
    upload = read_upload(b"multipart/form-data; boundary=b", body)
    assert (upload.name, upload.content, upload.fields) == ("b.srt", b"1", {})
    assert Path(upload.name).name == upload.name
