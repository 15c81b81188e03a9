"""LibreTranslate's API, through its published client and raw requests."""

import html
import re

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI


def test_the_published_client(url, offline) -> None:
    client = LibreTranslateAPI(url)
    text = "a small dog runs. two men play!"
    assert client.translate(text, "en", "de") == offline.translate(text)
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]
    found = client.detect("Where is the station? It is late, and we want to go home.")
    assert found[0]["language"] == "en"
    assert 50 < found[0]["confidence"] <= 100


def test_html_keeps_its_tags(url, offline) -> None:
    page = '<p class="a">two men <b>play</b><script>x = "a";</script></p>'
    body = {"q": page, "source": "en", "target": "de", "format": "html"}
    answer = httpx.post(f"{url}/translate", json=body).json()["translatedText"]
    assert re.findall("<[^>]*>", answer) == re.findall("<[^>]*>", page)
    assert answer.startswith('<p class="a">')
    assert answer.endswith('<script>x = "a";</script></p>')
    whole = html.unescape(re.sub("<script.*?/script>|<[^>]*>", "", answer))
    assert whole == offline.translate("two men play")


def test_alternatives_are_those_of_beam_search(url, offline) -> None:
    body = {"q": "two men", "source": "en", "target": "de", "alternatives": 2}
    answer = httpx.post(f"{url}/translate", json=body).json()
    best, *others = offline.results(["two men"], beams=4, n_best=3)[0]
    assert answer == {
        "translatedText": best.text,
        "alternatives": [one.text for one in others],
    }
    answer = httpx.post(f"{url}/translate", json=body | {"q": ["two men", "play"]}).json()
    assert [len(one) for one in answer["alternatives"]] == [2, 2]


def test_the_only_language_needs_no_detection(url, offline) -> None:
    body = {"q": "two men", "source": "auto", "target": "de"}
    assert httpx.post(f"{url}/translate", json=body).json() == {
        "translatedText": offline.translate("two men"),
        "detectedLanguage": {"language": "en", "confidence": 100.0},
    }


def test_a_language_is_detected_from_the_text(serve, translator, tmp_path, offline) -> None:
    twin = tmp_path / "twin"
    twin.symlink_to(translator)
    url = serve(f"en-de={translator}", f"zh-de={twin}", load=False)
    body = {"source": "auto", "target": "de"}
    for text, language in (("where is the station? it is late.", "en"), ("我们去公园吧。", "zh")):
        answer = httpx.post(f"{url}/translate", json=body | {"q": text}).json()
        assert answer["detectedLanguage"]["language"] == language
        assert answer["translatedText"] == offline.translate(text)


def test_detection_is_restricted_to_the_served_languages(serve, translator, tmp_path) -> None:
    twin = tmp_path / "twin"
    twin.symlink_to(translator)
    url = serve(f"en-de={translator}", f"zh-en={twin}", load=False)
    for text in ("Où est la gare ? Il est tard.", "我们去公园吧。", "Das ist ein Haus."):
        found = httpx.post(f"{url}/detect", json={"q": text}, timeout=60).json()
        assert {one["language"] for one in found} <= {"en", "de", "zh"}
        assert all(0 <= one["confidence"] <= 100 for one in found)


def test_a_text_in_the_target_language_is_returned_unchanged(serve, translator, tmp_path) -> None:
    twin = tmp_path / "twin"
    twin.symlink_to(translator)
    url = serve(f"en-de={translator}", f"zh-de={twin}", load=False)
    text = "Wo ist der Bahnhof? Es ist spät, und wir wollen nach Hause."
    answer = httpx.post(f"{url}/translate", json={"q": text, "target": "de"}, timeout=60).json()
    assert answer["translatedText"] == text
    assert answer["detectedLanguage"]["language"] == "de"
    for source in ("de", "DE", "deu_Latn"):
        body = {"q": [text, ""], "source": source, "target": "de"}
        assert httpx.post(f"{url}/translate", json=body).json() == {"translatedText": [text, ""]}


@pytest.mark.parametrize("body", [{}, {"q": "a", "s": "b", "source": "en", "target": "de"}])
def test_suggestions_are_refused(url, body) -> None:
    answer = httpx.post(f"{url}/suggest", json=body)
    assert answer.status_code == 403
    assert answer.json() == {"error": "this server stores no texts and takes no suggestions"}


def test_a_model_with_unknown_languages(serve, translator, offline) -> None:
    url = serve(translator)
    said = {"translatedText": offline.translate("two men")}
    for languages in (
        {},
        {"source": "auto"},
        {"target": "auto"},
        {"source": "auto", "target": "auto"},
    ):
        for form in ("json", "data"):
            answer = httpx.post(f"{url}/translate", **{form: {"q": "two men"} | languages})
            assert answer.json() == said
    assert httpx.get(f"{url}/languages").json() == [
        {"code": "auto", "name": "Unknown", "targets": ["auto"]}
    ]
    client = LibreTranslateAPI(url)
    assert client.translate("two men", "auto", "auto") == offline.translate("two men")
    told = httpx.get(f"{url}/frontend/settings").json()["language"]
    assert told["source"] == told["target"] == {"code": "auto", "name": "Unknown"}
    for languages in ({"source": "en"}, {"target": "de"}, {"source": "en", "target": "de"}):
        answer = httpx.post(f"{url}/translate", json={"q": "two men"} | languages)
        assert answer.status_code == 400
        assert "for tiny, leave out source and target, or start" in answer.json()["error"]
    (model,) = httpx.get(f"{url}/v1/models").json()["data"]
    assert (model["id"], model["task"], model["languages"]) == ("tiny", "translate", [])
    body = {"model": "tiny", "prompt": "two men"}
    (choice,) = httpx.post(f"{url}/v1/completions", json=body).json()["choices"]
    assert choice["text"] == offline.translate("two men")
    answer = httpx.post(f"{url}/v1/completions", json=body | {"target": "fr"})
    assert answer.status_code == 400
    assert "one language only, which it does not name; leave it (--to) out" in answer.text
    assert "done" in httpx.post(f"{url}/watch", json={"text": "two men"}, timeout=60).text


def test_the_target_may_be_omitted_if_only_one_exists(serve, translator, tmp_path, offline) -> None:
    twin = tmp_path / "twin"
    twin.symlink_to(translator)
    url = serve(f"en-de={translator}", f"de-fr={twin}", load=False)
    said = offline.translate("two men")
    answer = httpx.post(f"{url}/translate", json={"q": "two men", "source": "en"})
    assert answer.json() == {"translatedText": said}
    answer = httpx.post(f"{url}/translate", json={"q": "two men"})
    assert answer.status_code == 400
    assert answer.json()["error"] == (
        "target: name the target language; available: en to de, de to fr"
    )
    both = serve(f"en-de={translator}", twin, load=False)
    answer = httpx.post(f"{both}/translate", json={"q": "two men"})
    assert answer.json() == {"translatedText": said}, "the other is asked for by its languages"
    one = serve(f"en-de={translator}", load=False)
    assert httpx.post(f"{one}/translate", json={"q": "two men"}).json() == {
        "translatedText": said,
        "detectedLanguage": {"language": "en", "confidence": 100.0},
    }


def test_frontend_settings(url) -> None:
    told = httpx.get(f"{url}/frontend/settings").json()
    assert told["charLimit"] == 20_000
    assert told["keyRequired"] is False
    assert told["language"]["source"] == {"code": "en", "name": "English"}
    assert told["language"]["target"] == {"code": "de", "name": "German"}


@pytest.mark.parametrize("text", ["", " \n", "\0"])
def test_no_language_is_detected_in_blank_text(url, text) -> None:
    assert httpx.post(f"{url}/detect", json={"q": text}).json() == []


def test_deep_translator(locked_with_key, offline) -> None:
    url, key = locked_with_key
    clients = pytest.importorskip("deep_translator", reason="needs deep-translator")
    translator = clients.LibreTranslator("en", "de", api_key=key, custom_url=f"{url}/")
    assert translator.translate("two men") == offline.translate("two men")
