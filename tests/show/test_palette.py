"""Pages use the colours of the palette, and no other module defines the ink colour."""

import re
from pathlib import Path
from typing import get_args

import outrider
from outrider.show.page import html_page, read_asset
from outrider.show.palette import INK, TOKENS, css_variables, rgb
from outrider.show.tandem_trace import Kind


def test_a_colour_is_read() -> None:
    assert rgb("#ff0033") == (1.0, 0.0, 0.2)


def test_every_kind_of_token_has_its_colours() -> None:
    assert set(TOKENS) == set(get_args(Kind))


def test_every_variable_of_a_page_is_defined_in_light_and_dark() -> None:
    light, dark = css_variables().split("@media")
    for asset in ("page.css", "attention_page.css", "tandem_page.css"):
        for name in re.findall(r"var\((--[a-z-]+)\)", read_asset(asset)):
            assert f"{name}: #" in light, (asset, name)
            assert f"{name}: #" in dark, (asset, name)
    for name in re.findall(r'"(--[a-z-]+)"', read_asset("attention_page.js")):
        assert f"{name}: #" in light


def test_a_title_is_text() -> None:
    page = html_page("a < b", "<main></main>", style="tandem_page.css")
    assert "<title>a &lt; b</title>" in page


def test_the_ink_is_defined_once() -> None:
    package = Path(outrider.__file__).parent
    files = [path for path in package.rglob("*") if path.suffix in (".py", ".css", ".js")]
    found = [path.name for path in files if INK in path.read_text(encoding="utf-8")]
    assert found == ["palette.py"]
