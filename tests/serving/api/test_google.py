"""Version 2 of Google's API, through its published client and raw requests."""

import httpx
import pytest

REASON = "needs google-cloud-translate, of outrider[dev]"
translate_v2 = pytest.importorskip("google.cloud.translate_v2", reason=REASON)
api_key = pytest.importorskip("google.auth.api_key", reason=REASON)
exceptions = pytest.importorskip("google.api_core.exceptions", reason=REASON)

PATH = "/language/translate/v2"


def client(url: str, key: str = "none"):
    return translate_v2.Client(
        credentials=api_key.Credentials(key), client_options={"api_endpoint": url}
    )


def test_the_published_client(url, offline) -> None:
    found = client(url).translate("two men", target_language="de")
    assert found == {
        "translatedText": offline.translate("two men"),
        "detectedSourceLanguage": "en",
        "input": "two men",
    }
    several = client(url).translate(
        ["two men", "play"], target_language="de", source_language="en", format_="text"
    )
    assert [one["translatedText"] for one in several] == offline.translate(["two men", "play"])
    assert all("detectedSourceLanguage" not in one for one in several)


def test_the_published_client_detects_and_lists(url) -> None:
    found = client(url).detect_language("Where is the station? It is late, and we go home.")
    assert found["language"] == "en"
    assert 0.5 < found["confidence"] <= 1
    assert client(url).get_languages() == [
        {"language": "de", "name": "German"},
        {"language": "en", "name": "English"},
    ]
    answer = httpx.get(f"{url}{PATH}/languages").json()
    assert answer == {"data": {"languages": [{"language": "de"}, {"language": "en"}]}}


def test_queries_and_forms(url, offline) -> None:
    wanted = offline.translate(["two men", "play"])
    fields = {"q": ["two men", "play"], "target": "de", "format": "text", "key": "any"}
    for answer in (
        httpx.get(f"{url}{PATH}", params=fields),
        httpx.post(f"{url}{PATH}", params=fields),
        httpx.post(f"{url}{PATH}", data=fields),
        httpx.post(f"{url}{PATH}?key=any", json=fields),
    ):
        found = answer.json()["data"]["translations"]
        assert [one["translatedText"] for one in found] == wanted
    for answer in (
        httpx.get(f"{url}{PATH}/detect", params={"q": ["two men", ""]}),
        httpx.post(f"{url}{PATH}/detect", json={"q": ["two men", ""]}),
    ):
        (_,), (none,) = answer.json()["data"]["detections"]
        assert none == {"language": "und", "confidence": 0.0, "isReliable": False}


def test_html_is_the_default(url, offline) -> None:
    page = "<p>two men</p>"
    body = {"q": page, "target": "de"}
    (found,) = httpx.post(f"{url}{PATH}", json=body).json()["data"]["translations"]
    assert found["translatedText"] == f"<p>{offline.translate('two men')}</p>"
    body["format"] = "text"
    (found,) = httpx.post(f"{url}{PATH}", json=body).json()["data"]["translations"]
    assert found["translatedText"] == f"<p>{offline.translate('two men')}</p>"
    (found,) = httpx.post(f"{url}{PATH}", json=body | {"q": "2 < 3 & 4"}).json()["data"][
        "translations"
    ]
    assert found["translatedText"] == offline.translate("2 < 3 & 4")


@pytest.mark.parametrize(
    ("fields", "message"), [({"target": "ja"}, "Invalid Value: "), ({}, "target: ")]
)
def test_errors_have_the_format_of_google(url, fields, message) -> None:
    answer = httpx.post(f"{url}{PATH}", json={"q": "two men"} | fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith(message)
    assert error | {"message": ""} == {
        "code": 400,
        "message": "",
        "errors": [
            {"message": error["message"], "domain": "global", "reason": "badRequest"},
        ],
        "status": "INVALID_ARGUMENT",
    }


def test_errors_raised_by_the_client(url) -> None:
    with pytest.raises(exceptions.BadRequest, match="Invalid Value"):
        client(url).translate("two men", target_language="ja")


def test_api_keys(locked_with_key, offline) -> None:
    url, key = locked_with_key
    found = client(url, key).translate("two men", target_language="de")
    assert found["translatedText"] == offline.translate("two men")
    with pytest.raises(exceptions.BadRequest, match="the API key is not known"):
        client(url, "wrong").translate("two men", target_language="de")
    query = {"q": "two men", "target": "de", "key": key}
    assert httpx.get(f"{url}{PATH}", params=query).status_code == 200
    assert httpx.get(f"{url}{PATH}", params=query | {"key": "wrong"}).status_code == 400
