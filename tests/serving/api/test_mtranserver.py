"""MTranServer's API, including the path that it shares with LibreTranslate's."""

import httpx

BODY = {"from": "en", "to": "de"}


def test_one_text_on_the_shared_path(url, offline) -> None:
    for text in ("two men", "q", '"q"'):
        answer = httpx.post(f"{url}/translate", json=BODY | {"text": text})
        assert answer.json() == {"result": offline.translate(text)}
    answer = httpx.post(f"{url}/translate", data=BODY | {"text": "two men"})
    assert answer.json() == {"result": offline.translate("two men")}
    page = {"text": "<p>two men</p>", "html": True, "from": "auto"}
    answer = httpx.post(f"{url}/translate", json=BODY | page)
    assert answer.json() == {"result": f"<p>{offline.translate('two men')}</p>"}


def test_a_libretranslate_body_on_the_shared_path(url, offline) -> None:
    body = {"q": '{"from": "en", "to": "de"}', "source": "en", "target": "de"}
    answer = httpx.post(f"{url}/translate", json=body)
    assert answer.json() == {"translatedText": offline.translate(body["q"])}
    for wrong in (BODY | {"q": "two men"}, {"text": "two men", "from": "en"}):
        answer = httpx.post(f"{url}/translate", json=wrong)
        assert answer.status_code == 400
        assert "unknown field" in answer.json()["error"] or "q:" in answer.json()["error"]


def test_several_texts(url, offline) -> None:
    answer = httpx.post(f"{url}/translate/batch", json=BODY | {"texts": ["two men", "play"]})
    assert answer.json() == {"results": offline.translate(["two men", "play"])}
    answer = httpx.post(f"{url}/translate/batch", json=BODY)
    assert (answer.status_code, answer.json()) == (400, {"error": "texts: Field required"})
    answer = httpx.post(f"{url}/translate", json=BODY)
    assert (answer.status_code, answer.json()) == (400, {"error": "text: Field required"})


def test_api_keys(locked_with_key, offline) -> None:
    url, key = locked_with_key
    body = BODY | {"text": "two men"}
    for given in (
        {"headers": {"Authorization": f"Bearer {key}"}},
        {"headers": {"X-API-Token": key}},
        {"params": {"token": key}},
        {"params": {"api_token": key}},
    ):
        answer = httpx.post(f"{url}/translate", json=body, **given)
        assert answer.json() == {"result": offline.translate("two men")}
    assert httpx.post(f"{url}/translate", json=body).status_code == 401
