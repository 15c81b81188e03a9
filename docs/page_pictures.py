"""Draw the pictures of the page anew, with the demo and a Chromium: `python docs/page_pictures.py`.

They show what the machine's own fonts look like, and what was measured while they were drawn.
"""

import sys
from pathlib import Path

from PIL import Image

from outrider.serving.engine import Engine
from outrider.serving.registry import read_spec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from tests.helpers.browser import Browser, find  # noqa: E402  (what the tests use)
from tests.helpers.served import serving  # noqa: E402

IMAGES = ROOT / "docs" / "images"
TEXT = "Do you think that she will come to the party tonight?"
COLOURS = 128
"""Of a picture, so that it stays small."""
SHOTS = {
    "page-desk": (1180, False, "en", "Party"),
    "page-dark": (1180, True, "zh", "kommen"),
    "page-phone": (390, False, "en", "kommen"),
}
"""Width, light or dark, language, and the word that is looked at."""


def main() -> None:
    """Serve the demo on a free port, watch one sentence, and take pictures."""
    program = find()
    if program is None:
        sys.exit("no Chromium here: apt install chromium")
    engine = Engine(
        [read_spec(f"en-de={ROOT / 'demo' / 'en-de'}")], load_options={"backend": "native"}
    )
    with serving(engine) as address, Browser(program) as browser:
        for name, shot in SHOTS.items():
            _take(browser, address, IMAGES / f"{name}.png", *shot)


def _take(
    browser: Browser, address: str, path: Path, width: int, dark: bool, language: str, word: str
) -> None:
    browser.look(width, 844, dark=dark, still=True)
    browser.open(address)
    browser.evaluate(f"localStorage.setItem('outrider.language', '{language}')")
    browser.open(address)
    browser.wait("document.querySelector('#model').value")
    browser.evaluate("document.querySelector('#text').select()")
    browser.type(TEXT)
    browser.evaluate("document.querySelector('#go').click()")
    browser.wait("document.querySelector('#race').dataset.verdict")
    browser.evaluate(
        "[...document.querySelectorAll('#tandem .text .token')]"
        f".find((one) => one.textContent === '{word}').id = 'chosen'"
    )
    browser.evaluate("document.activeElement.blur()")
    browser.point("#chosen")
    browser.picture(path)
    image = Image.open(path).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
