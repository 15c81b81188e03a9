"""DeepL's API, through its published client and raw requests."""

import httpx
import pytest

deepl = pytest.importorskip("deepl", reason="needs deepl, of outrider[dev]")

TEXT = "two men play. a small dog runs!"


def client(url: str, key: str = "none"):
    return deepl.DeepLClient(key, server_url=url)


def post(url: str, **fields: object) -> httpx.Response:
    return httpx.post(
        f"{url}/v2/translate", json={"text": ["two men"], "target_lang": "DE"} | fields
    )


def test_the_published_client(url, offline) -> None:
    found = client(url).translate_text(TEXT, target_lang="DE", context="ignored")
    assert (found.text, found.detected_source_lang) == (offline.translate(TEXT), "EN")
    assert found.billed_characters == len(TEXT)
    several = client(url).translate_text(["two men", TEXT], source_lang="EN", target_lang="de")
    assert [one.text for one in several] == offline.translate(["two men", TEXT])


def test_the_published_client_lists_languages_and_usage(url) -> None:
    (source,) = client(url).get_source_languages()
    assert (source.code, source.name) == ("EN", "English")
    (target,) = client(url).get_target_languages()
    assert (target.code.upper(), target.supports_formality) == ("DE", False)
    usage = client(url).get_usage()
    assert (usage.character.count, usage.character.limit) == (0, 10**12)
    for answer in (
        httpx.get(f"{url}/v2/languages?type=target"),
        httpx.post(f"{url}/v2/languages", data={"type": "target"}),
        httpx.post(f"{url}/v2/languages?type=target"),
    ):
        assert [one["language"] for one in answer.json()] == ["DE"]


def test_forms_are_read(url, offline) -> None:
    body = {"text": ["two men", "play"], "target_lang": "DE", "split_sentences": "1"}
    answer = httpx.post(f"{url}/v2/translate", data=body).json()
    assert [one["text"] for one in answer["translations"]] == offline.translate(["two men", "play"])


def test_html_and_sentences(url, offline) -> None:
    answer = post(url, text=["<p>two men</p>"], tag_handling="html").json()
    assert answer["translations"][0]["text"] == f"<p>{offline.translate('two men')}</p>"
    answer = post(url, text=[TEXT], split_sentences="0").json()
    assert answer["translations"][0]["text"] == offline.translate(TEXT, split=False)
    answer = post(url, text=["two\nmen"], split_sentences="nonewlines").json()
    assert answer["translations"][0]["text"] == offline.translate("two men")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"formality": "more"}, "'formality' is not supported for given 'target_lang'."),
        ({"target_lang": "JA"}, "Value for 'target_lang' not supported"),
        ({"glossary_id": "abc"}, "glossary_id: needs source_lang"),
        ({"glossary_ids": ["abc"]}, "glossary_ids: several glossaries are not offered"),
        ({"text": []}, "text"),
        ({"ignore_tags": ["x"]}, "ignore_tags: needs tag_handling"),
        ({"splitting_tags": "p"}, "splitting_tags: needs tag_handling"),
        ({"unheard": 1}, "unheard: unknown field"),
    ],
)
def test_errors_have_the_format_of_deepl(url, fields, message) -> None:
    answer = post(url, **fields)
    assert answer.status_code == 400
    assert list(answer.json()) == ["message"]
    assert message in answer.json()["message"]
    assert post(url, formality="prefer_more").status_code == 200


def test_errors_raised_by_the_client(url) -> None:
    with pytest.raises(deepl.DeepLException, match="is not supported for given"):
        client(url).translate_text("two men", target_lang="DE", formality="less")
    answer = httpx.post(f"{url}/v2/document", data={"target_lang": "DE"})
    assert answer.status_code == 400
    assert "multipart/form-data" in answer.json()["message"]


def test_api_keys(locked_with_key, offline) -> None:
    url, key = locked_with_key
    assert client(url, key).translate_text("two men", target_lang="DE").text == offline.translate(
        "two men"
    )
    with pytest.raises(deepl.AuthorizationException, match="the API key is not known"):
        client(url, "wrong").translate_text("two men", target_lang="DE")
    assert httpx.get(f"{url}/v2/usage").status_code == 403
