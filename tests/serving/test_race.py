"""The page `/race` in headless Chromium: typing, the two lanes, changing γ."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import outrider
from outrider.runtime import Translator
from outrider.serving.engine import Engine
from outrider.serving.keys import Keyring, add_key
from outrider.serving.registry import read_spec
from tests.helpers import drafted, families
from tests.helpers.browser import Browser
from tests.helpers.page import DESK, PHONE, faults, visit
from tests.helpers.served import serving

ROOT = Path(__file__).resolve().parents[2]
TEXT = "Do you think that she will come to the party tonight?"
DONE = "document.querySelector('#race').dataset.verdict"
LANE = "document.querySelector('#{} .text').textContent"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(demo: Translator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The demo and a model without a drafter."""
    bare = drafted.save_translator(tmp_path_factory.mktemp("page") / "bare", drafter=False)
    specs = [read_spec(f"en-de={ROOT / 'demo' / 'en-de'}"), read_spec(f"en-fr={bare}")]
    with serving(Engine(specs, load_options={"backend": "native", "threads": 1})) as url:
        yield url


@pytest.fixture
def browser(address: str) -> Iterator[Browser]:
    with visit(f"{address}/race", "document.querySelector('#model').options.length === 2") as one:
        yield one


def write(browser: Browser, text: str) -> None:
    browser.evaluate("document.querySelector('#text').select()")
    browser.type(text)


def finish(browser: Browser, *, patient: bool = False) -> str:
    """Wait for the end, or skip to it, and return the final message."""
    if not patient:
        browser.wait("!document.querySelector('#again').hidden")
        browser.evaluate("document.querySelector('#again').click()")
    browser.wait(f"document.querySelector('#again').textContent === 'Replay' && {DONE}")
    verdict: str = browser.evaluate("document.querySelector('#verdict').textContent")
    return verdict


def words(browser: Browser, mode: str) -> str:
    text: str = browser.evaluate(LANE.format(mode))
    return text.removesuffix("end").strip()


def test_both_lanes_reach_the_same_text(browser, demo) -> None:
    write(browser, TEXT)
    browser.press("Enter", 13, modifiers=2)
    browser.wait("document.querySelector('#tandem .round.drafted')")  # a draft is in progress
    browser.wait("document.querySelector('#ar .text .token')")
    early = words(browser, "ar")
    assert finish(browser, patient=True) == "The same text in 4 rounds instead of 13"
    translated = demo.translate(TEXT, mode="ar")
    assert words(browser, "ar") == words(browser, "tandem") == translated
    assert early != translated, "all at once is nothing to watch"
    counted = browser.evaluate(
        "[...document.querySelectorAll('#tandem .counts dd')].map((cell) => cell.textContent)"
    )
    assert counted[0] == "4"
    assert counted[1].endswith("\u00a0ms")
    kinds = browser.evaluate(
        "[...document.querySelectorAll('#tandem .ledger .token')].map((one) => one.classList[1])"
    )
    assert {"accepted", "refused", "correction"} <= set(kinds)
    assert browser.evaluate("document.querySelectorAll('.row.ar i.through').length") == 13
    assert browser.evaluate("document.querySelectorAll('.row.tandem i.through').length") == 4
    spoken = browser.evaluate("document.querySelector('#spoken').textContent")
    assert translated in spoken


def test_gamma_and_the_block_are_changed_by_keys(browser, demo) -> None:
    write(browser, TEXT)
    browser.evaluate("document.querySelector('[value=real]').click()")
    browser.point("#go", click=True)
    finish(browser, patient=True)
    browser.evaluate("document.querySelector('#gamma').focus()")
    browser.evaluate(f"{DONE}; delete document.querySelector('#race').dataset.verdict")
    browser.press("End", 35)
    verdict = finish(browser, patient=True)
    trusting = demo.translate(TEXT, gamma=1.0, draft_tokens=4)
    assert words(browser, "tandem") == trusting != words(browser, "ar")
    assert verdict.startswith("Another text")
    same = browser.evaluate(
        "[...document.querySelectorAll('#tandem .text .token:not(.other)')]"
        ".map((one) => one.textContent)"
    )
    alone = iter(
        browser.evaluate(
            "[...document.querySelectorAll('#ar .text .token')].map((one) => one.textContent)"
        )
    )
    assert all(word in alone for word in same), "marked are those that the model does not say"
    assert browser.evaluate("document.querySelectorAll('#tandem .text .other').length") > 0
    assert browser.evaluate("document.querySelector('#gamma-value').textContent") == "1"
    browser.evaluate("delete document.querySelector('#race').dataset.verdict")
    browser.press("Home", 36)
    assert finish(browser, patient=True).startswith("The same text")
    browser.evaluate("document.querySelector('#draft').focus()")
    browser.evaluate("delete document.querySelector('#race').dataset.verdict")
    browser.press("Home", 36)
    finish(browser, patient=True)
    longest = browser.evaluate(
        "Math.max(...[...document.querySelectorAll('#tandem .ledger li')]"
        ".map((one) => one.querySelectorAll('.token').length))"
    )
    assert longest <= 2, "one drafted, one of the model's own"


def test_attention_by_pointer_and_by_keys(browser) -> None:
    write(browser, TEXT)
    browser.point("#go", click=True)
    finish(browser)
    find_party = (
        "[...document.querySelectorAll('#tandem .text .token')]"
        ".find((one) => one.textContent === 'Party').id = 'party'"
    )
    browser.evaluate(find_party)
    browser.point("#party")
    browser.wait("document.querySelector('#source .seen')")
    told = browser.evaluate("document.querySelector('#inspector').textContent")
    assert told.startswith("Party")
    assert "looks at party" in told
    heaviest = (
        "[...document.querySelectorAll('#source .token')].reduce((a, b) => "
        "+a.style.getPropertyValue('--weight') > +b.style.getPropertyValue('--weight') ? a : b)"
        ".textContent"
    )
    assert browser.evaluate(heaviest) == "party"
    browser.evaluate("document.querySelector('#source-tokens').focus()")
    for _ in range(9):
        browser.press("ArrowRight", 39)
    chosen = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
    assert browser.evaluate(f"{chosen}.textContent") == "party"
    told = browser.evaluate("document.querySelector('#inspector').textContent")
    assert told.startswith("party is looked at by Party")


def test_several_sentences_are_decoded_together(browser, demo) -> None:
    text = "Where is the station? I have to go now. Thank you."
    write(browser, text)
    browser.point("#go", click=True)
    finish(browser)
    assert words(browser, "ar").replace("end", "") == words(browser, "tandem").replace("end", "")
    shown = words(browser, "tandem").replace("end", "")
    assert shown == demo.translate(text)
    numbers = browser.evaluate("[...document.querySelectorAll('#ar li')].map((one) => one.value)")
    assert numbers == sorted(numbers)
    assert numbers[-1] <= len(numbers) / 2, "rounds are those of all sentences together"
    counted = browser.evaluate("document.querySelector('#ar .counts dd').textContent")
    assert int(counted) == numbers[-1]


def test_a_model_without_a_drafter_uses_one_lane(browser) -> None:
    browser.evaluate(
        "document.querySelector('#model').value = 'en-fr';"
        "document.querySelector('#model').dispatchEvent(new Event('change'))"
    )
    write(browser, "two men")
    browser.point("#go", click=True)
    assert "one for each token" in finish(browser)
    assert browser.evaluate("document.querySelector('#gamma').disabled")
    assert "no drafter" in browser.evaluate("document.querySelector('#tandem .about').textContent")


def test_languages_are_selected_for_a_multilingual_model(tmp_path) -> None:
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    folder = families.save(
        families.make("m2m_100"), tmp_path / "many", before="eng_Latn", after="</s>", languages=True
    )
    engine = Engine([read_spec(str(folder))], load_options={"backend": "native"})
    ready = "!document.querySelector('#languages').hidden"
    with serving(engine) as address, visit(f"{address}/race", ready) as browser:
        for side, code in (("source", "deu_Latn"), ("target", "fra_Latn")):
            browser.evaluate(f"document.querySelector('#{side}-language').value = '{code}'")
        write(browser, "abc")
        browser.point("#go", click=True)
        finish(browser)
        loaded = outrider.load(folder, backend="native")
        assert isinstance(loaded, Translator)
        said = loaded.between("deu_Latn", "fra_Latn").translate("abc")
        assert words(browser, "ar").replace(" ", "") == said.replace(" ", "")


def test_errors_are_shown(browser) -> None:
    browser.evaluate("document.querySelector('#model').options[0].value = 'nobody'")
    write(browser, "Where?")
    browser.point("#go", click=True)
    browser.wait("!document.querySelector('#trouble').hidden")
    assert "nobody" in browser.evaluate("document.querySelector('#trouble').textContent")
    browser.events = [one for one in browser.events if one["method"] != "Log.entryAdded"]  # a 404


def test_an_api_key_is_requested_and_accepted(translator, tmp_path) -> None:
    secret = add_key(tmp_path / "keys.json", "alice", rate=None, priority="normal")
    engine = Engine([read_spec(f"en-de={translator}")])
    ready = "!document.querySelector('#key-field').hidden"
    with (
        serving(engine, keyring=Keyring(tmp_path / "keys.json")) as address,
        visit(f"{address}/race", ready, refusals=True) as browser,
    ):
        write(browser, "two men")
        browser.point("#go", click=True)
        browser.wait("document.querySelector('#trouble').textContent.includes('API key')")
        browser.wait("document.activeElement.id === 'key'")
        browser.type(secret)
        browser.press("Tab", 9)
        browser.wait("document.querySelector('#model').value === 'en-de'")
        browser.point("#go", click=True)
        assert finish(browser).startswith("The same text")


def test_chinese_and_dark_mode_are_stored(browser, address) -> None:
    browser.point("#language", click=True)
    assert browser.evaluate("document.documentElement.lang") == "zh-Hans"
    assert browser.evaluate("document.querySelector('#ar-title').textContent") == "自回归"
    assert browser.evaluate("document.querySelector('#language').textContent") == "English"
    ground = "getComputedStyle(document.body).backgroundColor"
    light = browser.evaluate(ground)
    browser.point("#theme", click=True)
    dark = browser.evaluate(ground)
    assert dark != light
    browser.open(f"{address}/race")
    browser.wait("document.querySelector('#ar-title').textContent === '自回归'")
    assert browser.evaluate(ground) == dark
    left = "[...document.querySelectorAll('[data-say]')].filter((one) => !one.textContent).length"
    assert browser.evaluate(left) == 0


def test_reduced_motion_shows_the_result_at_once(browser) -> None:
    browser.look(*DESK, still=True)
    write(browser, TEXT)
    browser.point("#go", click=True)
    browser.wait(DONE, seconds=5)
    assert words(browser, "ar") == words(browser, "tandem")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_axe_finds_no_violation(browser, size: tuple[int, int], dark: bool) -> None:
    browser.look(*size, dark=dark, still=True)
    write(browser, TEXT)
    browser.point("#go", click=True)
    browser.wait(DONE)
    wide = browser.evaluate("document.documentElement.scrollWidth")
    assert wide <= size[0], "the page is wider than the window"
    for state in ("", "document.querySelector('#tandem .text').focus()"):
        if state:  # focused tokens have other colours
            browser.evaluate(state)
        assert faults(browser) == []
