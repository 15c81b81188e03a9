"""`/translate` and `/languages` over a real socket."""

import json
import socket
import time
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.serving.api.fields import form_to_json

TEXT = "a small dog runs. two men play! where is the station?"


def test_a_text_and_a_list(url, offline) -> None:
    body = {"q": TEXT, "source": "en", "target": "de"}
    answer = httpx.post(f"{url}/translate", json=body)
    assert answer.status_code == 200
    assert answer.json() == {"translatedText": offline.translate(TEXT)}
    many = [TEXT, "", "it is late.\n\nwe go home!"]
    answer = httpx.post(f"{url}/translate", json=body | {"q": many})
    assert answer.json() == {"translatedText": offline.translate(many)}


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "ar"},
        {"mode": "tandem"},
        {"mode": "parallel"},
        {"beams": 3},
        {"temperature": 0.7, "seed": 5},
        {"gamma": 0.3, "draft_tokens": 3},
        {"max_new_tokens": 4},
        {"temperature": 0.9, "candidates": 3},
    ],
    ids=str,
)
def test_options_give_the_same_text_as_in_the_library(url, offline, options) -> None:
    body = {"q": [TEXT, "two men"], "source": "en", "target": "de", "options": options}
    answer = httpx.post(f"{url}/translate", json=body)
    assert answer.json() == {"translatedText": offline.translate(body["q"], **options)}


def test_a_form_of_libretranslates_clients(url, offline) -> None:
    form = {"q": "two men play", "source": "en", "target": "de"}
    answer = httpx.post(f"{url}/translate", data=form)
    assert answer.json() == {"translatedText": offline.translate("two men play")}


def test_a_multipart_form_equals_an_urlencoded_one(url, offline) -> None:
    for text in ("two men play", "", "where is\r\n--the\nstation? é 我们 --", "a&b=c\r\n\r\nd"):
        form = {"q": text, "source": "en", "target": "de", "alternatives": "1"}
        answers = [
            httpx.post(f"{url}/translate", data=form),
            httpx.post(f"{url}/translate", files={key: (None, one) for key, one in form.items()}),
        ]
        assert [one.status_code for one in answers] == [200, 200], answers[1].text
        assert answers[0].json() == answers[1].json()
    parts = [("q", (None, "two men")), ("q", (None, "play"))]
    parts += [("source", (None, "en")), ("target", (None, "de"))]
    answer = httpx.post(f"{url}/translate", files=parts)
    assert answer.json() == {"translatedText": offline.translate(["two men", "play"])}


def test_detect_names_an_unknown_field(url) -> None:
    for body in ({"json": {"q": "a", "text": "b"}}, {"data": {"q": "a", "text": "b"}}):
        answer = httpx.post(f"{url}/detect", **body)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("text: unknown field")


MULTIPART = "multipart/form-data; boundary=b"
PART = b'--b\r\nContent-Disposition: form-data; name="q"\r\n\r\na\r\n'


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (MULTIPART, PART * 1001 + b"--b--", "more than 1,000 fields"),
        ("application/x-www-form-urlencoded", b"q=a&" * 1001, "more than 1,000 fields"),
        (MULTIPART, PART, "does not end with its boundary"),
        (MULTIPART, b"", "does not end with its boundary"),
        ("multipart/form-data", PART + b"--b--", "no boundary"),
        (MULTIPART, PART.replace(b"name", b"nome") + b"--b--", "has no name"),
        (MULTIPART, PART.replace(b"\r\n\r\n", b"\r\n") + b"--b--", "has no name"),
        (MULTIPART, PART.replace(b"form-data", b"form-data;" + b" " * 5000) + b"--b--", "no name"),
        (MULTIPART, PART.replace(b'"q"', b'"q"; filename="x"') + b"--b--", "q: file uploads"),
        (MULTIPART, PART.replace(b"a\r\n", b"\xff\r\n") + b"--b--", "not UTF-8"),
        (MULTIPART, PART.replace(b'"q"', b'"source"') + b"--b--", "q: Field required"),
        (MULTIPART, b"a" * (2 << 20) + PART + b"--b--", "the body has more than 2,097,152 bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_errors_of_a_form_are_named(url, kind, body, said) -> None:
    answer = httpx.post(f"{url}/translate", content=body, headers={"Content-Type": kind})
    assert answer.status_code == (413 if "bytes" in said else 400)
    assert said in answer.json()["error"]


@given(st.lists(st.tuples(st.sampled_from(["q", "a b", "é"]), st.text()), min_size=1, max_size=8))
def test_both_kinds_of_form_are_parsed_alike(pairs: list[tuple[str, str]]) -> None:
    sent = httpx.Request("POST", "http://x", files=[(key, (None, one)) for key, one in pairs])
    multipart = form_to_json(sent.headers["content-type"].encode(), sent.read())
    kind = b"application/x-www-form-urlencoded; charset=utf-8"
    assert multipart == form_to_json(kind, urlencode(pairs).encode())


def test_languages(url) -> None:
    (one,) = httpx.get(f"{url}/languages").json()
    assert one == {"code": "en", "name": "English", "targets": ["de"]}


def test_unknown_language_pairs(url) -> None:
    answer = httpx.post(f"{url}/translate", json={"q": "a", "source": "fr", "target": "de"})
    assert answer.status_code == 400
    assert "available: en to de" in answer.json()["error"]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"q": 5}, 400, "q"),
        ({"source": ""}, 400, "source"),
        ({"options": {"beams": -1}}, 400, "options.beams"),
        ({"options": {"beams": 99}}, 400, "beams: got 99; this server allows at most 16"),
        ({"options": {"nothing": 1}}, 400, "options.nothing: unknown field"),
        ({"glosary": 1}, 400, "glosary: unknown field; /openapi.json lists those of this route"),
        ({"options": {"beams": 2, "mode": "tandem"}}, 400, "beams"),
        ({"deadline": -1}, 400, "deadline"),
        ({"q": "a" * 30_000}, 413, "send at most 20,000 characters"),
        ({"q": ["a"] * 3000}, 413, "3000 texts; send at most 2048"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_errors_are_named(url, change, status, said) -> None:
    body = {"q": "a", "source": "en", "target": "de"} | change
    answer = httpx.post(f"{url}/translate", json=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_health_and_readiness(url) -> None:
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{url}/ready").json() == {"ready": True, "models": ["en-de"]}


def test_an_answer_does_not_wait_for_the_clients_acknowledgement(url) -> None:
    with httpx.Client(base_url=url) as client:
        client.get("/health")
        waited = []
        for _ in range(20):
            began = time.perf_counter()
            client.get("/health")
            waited.append(time.perf_counter() - began)
    assert min(waited) < 0.03


def test_other_origins_need_permission(serve, translator, url) -> None:
    other = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    assert (
        "access-control-allow-origin"
        not in httpx.options(f"{url}/translate", headers=other).headers
    )
    open_to_one = serve(f"en-de={translator}", load=False, origins=["https://example.org"])
    answer = httpx.options(f"{open_to_one}/translate", headers=other)
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    stranger = other | {"Origin": "https://example.com"}
    answer = httpx.options(f"{open_to_one}/translate", headers=stranger)
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["/translate", "/v1/completions"])
def test_a_disconnected_client_is_cancelled(serve, translator, path) -> None:
    url = serve(f"en-de={translator}")
    long = " ".join([TEXT] * 20)
    asked = {"q": long, "source": "en", "target": "de"}
    if path == "/v1/completions":
        asked = {"model": "en-de", "prompt": long, "stream": True}
    body = json.dumps(asked).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    host, port = url.removeprefix("http://").split(":")
    with httpx.Client(base_url=url) as client, socket.create_connection((host, int(port))) as one:
        one.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_for(client, 'outrider_queue_requests{model="en-de"} 1.0')
        one.close()
        wait_for(client, 'outrider_cancelled_total{model="en-de"} 1.0')
        wait_for(client, 'outrider_queue_requests{model="en-de"} 0.0')


def wait_for(client: httpx.Client, figure: str) -> None:
    until = time.monotonic() + 20
    while figure not in client.get("/metrics").text:
        assert time.monotonic() < until, figure
