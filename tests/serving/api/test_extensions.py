"""The custom APIs of the browser extensions Immersive Translate and KISS Translator."""

import httpx
import pytest


def test_immersive_translate(url, offline) -> None:
    body = {"source_lang": "auto", "target_lang": "de", "text_list": ["two men", "play"]}
    wanted = offline.translate(["two men", "play"])
    answer = httpx.post(f"{url}/imme", json=body)
    assert answer.json() == {
        "translations": [{"detected_source_lang": "en", "text": text} for text in wanted]
    }
    answer = httpx.post(f"{url}/imme", json=body | {"text_list": []})
    assert answer.json() == {"translations": []}


def test_kiss_translator(url, offline) -> None:
    body = {"from": "auto", "to": "de"}
    wanted = offline.translate(["two men", "play"])
    answer = httpx.post(f"{url}/kiss", json=body | {"texts": ["two men", "play"]})
    assert answer.json() == {"translations": [{"text": text, "src": "en"} for text in wanted]}
    answer = httpx.post(f"{url}/kiss", json=body | {"from": "en", "text": "two men"})
    assert answer.json() == {"text": wanted[0], "src": "en", "from": "en", "to": "de"}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/imme", {"target_lang": "de"}, 400, "text_list: Field required"),
        ("/imme", {"target_lang": "ja", "text_list": ["a"]}, 404, "cannot translate"),
        ("/kiss", {"to": "de"}, 400, "texts: is missing"),
        ("/kiss", {"text": "a"}, 400, "to: Field required"),
    ],
)
def test_errors(url, path, body, status, message) -> None:
    answer = httpx.post(f"{url}{path}", json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_keys_are_read_from_the_query_and_the_header(locked_with_key, offline) -> None:
    url, key = locked_with_key
    wanted = offline.translate("two men")
    body = {"source_lang": "en", "target_lang": "de", "text_list": ["two men"]}
    answer = httpx.post(f"{url}/imme?token={key}", json=body).json()
    assert answer["translations"][0]["text"] == wanted
    body = {"from": "en", "to": "de", "text": "two men"}
    headers = {"Authorization": f"Bearer {key}"}
    assert httpx.post(f"{url}/kiss", json=body, headers=headers).json()["text"] == wanted
    answer = httpx.post(f"{url}/imme?token=wrong", json=body)
    assert (answer.status_code, answer.json()) == (401, {"error": "the API key is not known"})
