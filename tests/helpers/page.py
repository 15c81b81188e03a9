"""Visits of the server's pages, and their accessibility by axe-core.

`npm install --no-save axe-core` installs it; OUTRIDER_AXE names another `axe.min.js`.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.helpers.browser import Browser, find

ROOT = Path(__file__).resolve().parents[2]
AXE = Path(os.environ.get("OUTRIDER_AXE", ROOT / "node_modules" / "axe-core" / "axe.min.js"))
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
DESK, PHONE = (1280, 800), (400, 800)


def chromium() -> str:
    program = find()
    if program is None:
        pytest.skip("no Chromium here: apt install chromium")
    return program


@contextmanager
def visit(address: str, ready: str, *, refusals: bool = False) -> Iterator[Browser]:
    """Open a page and wait for `ready`; it causes no error and sends requests to its server only.

    Args:
        address: The page.
        ready: Script that becomes true.
        refusals: Whether the browser's messages about refused requests are expected.
    """
    with Browser(chromium()) as browser:
        browser.look(*DESK)
        browser.open(address)
        browser.wait(ready)
        yield browser
        if refusals:
            browser.events = [one for one in browser.events if one["method"] != "Log.entryAdded"]
        assert browser.complaints == []
        hosts = {urlsplit(url).netloc for url in browser.requests if not url.startswith("data:")}
        assert hosts == {urlsplit(address).netloc}, "a request left the machine"


def faults(browser: Browser) -> list[str]:
    """Return the violations that axe-core finds on the page as it is."""
    if not AXE.is_file():
        pytest.skip("no axe-core here: npm install --no-save axe-core")
    browser.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[str] = browser.evaluate(
        f"axe.run({{runOnly: {json.dumps(TAGS)}}}).then(({{violations}}) => violations.map("
        "({id, nodes}) => `${id}: ${nodes.map((one) => one.html).join(' ').slice(0, 400)}`))"
    )
    return found
