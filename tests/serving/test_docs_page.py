"""The page of all routes."""

import re

import httpx


def test_the_page_lists_every_route_and_field_without_scripts(url) -> None:
    answer = httpx.get(f"{url}/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    text = answer.text
    assert re.findall(r"<script|style=|\son\w+=|https?://", text) == []
    schema = httpx.get(f"{url}/openapi.json").json()
    for path, operations in schema["paths"].items():
        for method in operations:
            assert f"<b>{method.upper()}</b> <code>{path}</code>" in text
    assert "<code>split_sentences</code></td><td>0 or 1 or nonewlines</td>" in text
    links = re.findall(r'(?:href|src)="([^"#]+)"', text)
    assert len(links) == 3
    for link in links:
        assert httpx.get(f"{url}/{link}").status_code == 200, (
            "relative, so that a proxy may add a path"
        )


def test_the_page_needs_no_key(locked_with_key) -> None:
    assert httpx.get(f"{locked_with_key[0]}/docs").status_code == 200
