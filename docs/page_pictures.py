"""Draw the pictures of the pages with the demo models and a Chromium.

`python docs/page_pictures.py` writes them, with the fonts of the machine and times measured while
drawing.
"""

import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from outrider.serving.engine import Engine  # noqa: E402
from outrider.serving.registry import read_spec  # noqa: E402
from tests.helpers.browser import Browser, find  # noqa: E402
from tests.helpers.served import serving  # noqa: E402

IMAGES = ROOT / "docs" / "images"
MODELS = {"zh-en": "zh-en", "en-de": "en-de"}
CHINESE = (
    "今天早上，市政府宣布将在明年春天开放新的地铁线路。乘客可以用手机购票，也可以在车站付现金。"
)
ENGLISH = "Do you think that she will come to the party tonight?"
COLOURS = 256
"""Colours of a picture, which keep the file small."""
PAGES = {
    "page-desk": (1180, False, "en", True),
    "page-dark": (1180, True, "zh", True),
    "page-phone": (390, False, "en", False),
}
"""Width, dark mode, language, and whether alternatives are shown."""


def main() -> None:
    """Serve the demo models on a free port and take the pictures."""
    program = find()
    if program is None:
        sys.exit("no Chromium here: apt install chromium")
    specs = [read_spec(f"{pair}={ROOT / 'demo' / name}") for pair, name in MODELS.items()]
    engine = Engine(specs, load_options={"backend": "native"})
    with serving(engine) as address, Browser(program) as browser:
        for name, page in PAGES.items():
            _translate(browser, address, *page)
            _save(browser, IMAGES / f"{name}.png")
        _race(browser, address)
        _save(browser, IMAGES / "page-race.png")


def _open(browser: Browser, address: str, width: int, dark: bool, language: str) -> None:
    browser.look(width, 760, dark=dark, still=True)
    browser.open(address)
    browser.evaluate(f"localStorage.setItem('outrider.language', '{language}')")
    browser.open(address)


def _translate(
    browser: Browser, address: str, width: int, dark: bool, language: str, alternatives: bool
) -> None:
    _open(browser, address, width, dark, language)
    browser.wait("document.querySelector('#target').options.length")
    browser.evaluate(
        "const target = document.querySelector('#target'); target.value = 'en';"
        "target.dispatchEvent(new Event('change')); document.querySelector('#text').focus()"
    )
    browser.type(CHINESE)
    browser.wait(
        "document.querySelector('#translation').value && !document.querySelector('.stale')"
    )
    opened = f"document.querySelector('#alternatives[aria-expanded={str(alternatives).lower()}]')"
    browser.evaluate(f"{opened} || document.querySelector('#alternatives').click()")
    if alternatives:
        browser.wait("document.querySelector('#variants button')")
    browser.evaluate("document.activeElement.blur()")


def _race(browser: Browser, address: str) -> None:
    _open(browser, f"{address}/race", 1180, dark=False, language="en")
    browser.wait("document.querySelector('#model').options.length")
    browser.evaluate(
        "const model = document.querySelector('#model'); model.value = 'en-de';"
        "model.dispatchEvent(new Event('change')); document.querySelector('#text').select()"
    )
    browser.type(ENGLISH)
    browser.evaluate("document.querySelector('#go').click()")
    browser.wait("document.querySelector('#race').dataset.verdict")
    browser.evaluate(
        "[...document.querySelectorAll('#tandem .text .token')]"
        ".find((one) => one.textContent === 'Party').id = 'chosen'"
    )
    browser.evaluate("document.activeElement.blur()")
    browser.point("#chosen")


def _save(browser: Browser, path: Path) -> None:
    browser.picture(path)
    image = Image.open(path).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
