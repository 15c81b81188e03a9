"""The translator page in headless Chromium, at desktop and phone size."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.runtime import Translator
from outrider.serving.engine import Engine
from outrider.serving.keys import Keyring, add_key
from outrider.serving.limits import Admission, Limits
from outrider.serving.registry import read_spec
from outrider.serving.request import BusyError
from tests.helpers.browser import Browser
from tests.helpers.page import DESK, PHONE, faults, visit
from tests.helpers.served import serving

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "src" / "outrider" / "serving" / "page"
TEXT = "Do you think that she will come to the party tonight?"
READY = "document.querySelector('#target').options.length"
DONE = "document.querySelector('#translation').value && !document.querySelector('.stale')"
SAID = "document.querySelector('#trouble:not([hidden]) p')?.textContent"
SIZES = pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])

pytestmark = pytest.mark.slow


def engine(*models: str, limits: Limits | None = None) -> Engine:
    specs = [read_spec(model) for model in models]
    return Engine(specs, limits, load_options={"backend": "native", "threads": 1})


@pytest.fixture(scope="module")
def address(demo: Translator) -> Iterator[str]:
    """English to German, the same model under German to English, and Chinese to English."""
    pairs = {"en-de": "en-de", "de-en": "en-de", "zh-en": "zh-en"}
    with serving(
        engine(*(f"{pair}={ROOT / 'demo' / name}" for pair, name in pairs.items()))
    ) as url:
        yield url


@pytest.fixture
def browser(address: str) -> Iterator[Browser]:
    with visit(address, READY) as one:
        yield one


def value(browser: Browser, name: str) -> str:
    found: str = browser.evaluate(f"document.querySelector('#{name}').value")
    return found


def select(browser: Browser, **chosen: str) -> None:
    for name, code in chosen.items():
        box = f"document.querySelector('#{name}')"
        browser.evaluate(f"{box}.value = '{code}'; {box}.dispatchEvent(new Event('change'))")


def write(browser: Browser, text: str) -> str:
    """Replace the text, wait for its translation and return it."""
    browser.evaluate("document.querySelector('#text').focus()")
    browser.evaluate("document.querySelector('#text').select()")
    browser.type(text)
    browser.wait(DONE)
    return value(browser, "translation")


def bodies(browser: Browser, path: str) -> list[str]:
    """Return the bodies of the requests to a path."""
    requests = [
        event["params"]["request"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    return [one.get("postData", "") for one in requests if one["url"].endswith(path)]


@SIZES
def test_text_is_translated_while_typing(browser, demo, size) -> None:
    browser.look(*size)
    select(browser, source="en", target="de")
    assert write(browser, TEXT) == demo.translate(TEXT)
    assert browser.evaluate("document.querySelector('#translation').lang") == "de"
    count = browser.evaluate("document.querySelector('#count').textContent")
    assert count == f"{len(TEXT)} of 100,000 characters"
    browser.point("#clear", click=True)
    browser.wait("!document.querySelector('#translation').value")
    assert browser.evaluate("document.activeElement.id") == "text"
    assert browser.evaluate("document.querySelector('#copy').disabled")


def test_typing_delays_a_request_and_aborts_the_previous_one(browser, demo) -> None:
    select(browser, source="en", target="de")
    browser.evaluate("document.querySelector('#text').focus()")
    for word in TEXT.split():
        browser.type(f"{word} ")
    browser.wait(DONE)
    assert value(browser, "translation") == demo.translate(f"{TEXT} ")
    assert len(bodies(browser, "/translate")) == 1, "one request for all words"
    browser.evaluate(
        "window.aborted = 0; const plain = window.fetch; window.fetch = (path, options) => {"
        "options.signal?.addEventListener('abort', () => window.aborted++);"
        "return path === 'translate' ? new Promise((done, fail) => {"
        "setTimeout(() => plain(path, options).then(done, fail), 700)}) : plain(path, options)}"
    )
    browser.type("Where")
    browser.press("Enter", 13, modifiers=2)
    browser.wait("document.querySelector('.busy')")
    browser.type(" is the station?")
    browser.press("Enter", 13, modifiers=4)
    browser.wait(DONE)
    assert value(browser, "translation") == demo.translate(f"{TEXT} Where is the station?")
    assert browser.evaluate("window.aborted") == 1


@SIZES
def test_the_language_is_detected(browser, size) -> None:
    browser.look(*size)
    select(browser, source="auto", target="en")
    write(browser, "请问最近的地铁站在哪里？")
    shown = browser.evaluate("document.querySelector('#source').selectedOptions[0].textContent")
    assert shown == ("Detect language (Chinese)" if size == DESK else "Chinese (detected)")
    assert value(browser, "source") == "auto"
    assert browser.evaluate("document.querySelector('#text').lang") == "zh"


def test_a_text_in_the_target_language_changes_the_target(browser) -> None:
    select(browser, source="auto", target="en")
    write(browser, "The station is closed today because the workers are on strike.")
    assert value(browser, "target") == "de"
    notice = browser.evaluate("document.querySelector('#notice').textContent")
    assert notice == "The text is in English, so it is translated to German."


def test_the_languages_are_swapped_with_the_texts(browser) -> None:
    select(browser, source="en", target="de")
    german = write(browser, TEXT)
    browser.point("#swap", click=True)
    assert (value(browser, "source"), value(browser, "target")) == ("de", "en")
    assert value(browser, "text") == german
    browser.wait(DONE)
    select(browser, source="zh")
    assert value(browser, "target") == "en"
    assert browser.evaluate("document.querySelector('#swap').disabled"), "no model of en-zh"


@SIZES
def test_alternatives_replace_the_translation(browser, size) -> None:
    browser.look(*size)
    select(browser, source="en", target="de")
    best = write(browser, TEXT)
    assert len(bodies(browser, "/translate")) == 1, "alternatives cost a request"
    browser.point("#alternatives", click=True)
    browser.wait("document.querySelector('#variants button')")
    texts = "[...document.querySelectorAll('#variants button')].map((one) => one.textContent)"
    others = browser.evaluate(texts)
    assert best not in others
    assert len(set(others)) == len(others) > 1
    browser.point("#variants li:nth-child(2) button", click=True)
    assert value(browser, "translation") == others[1]
    assert set(browser.evaluate(texts)) == {best, others[0], *others[2:]}
    write(browser, "word " * 120)
    note = browser.evaluate("document.querySelector('#variants').textContent")
    assert note == "Alternatives are shown for texts of at most 500 characters."


def test_refused_alternatives_keep_the_translation(browser, demo) -> None:
    select(browser, source="en", target="de")
    browser.evaluate(
        "const plain = window.fetch; window.fetch = (path, options) =>"
        "options.body?.includes('alternatives')"
        "? Promise.resolve(Response.json({error: 'no'}, {status: 422})) : plain(path, options)"
    )
    browser.point("#alternatives", click=True)
    assert write(browser, TEXT) == demo.translate(TEXT)
    browser.wait(SAID)
    assert browser.evaluate(SAID) == "no"
    assert not browser.evaluate("document.querySelector('#copy').disabled")
    assert browser.evaluate("document.querySelector('#variants').hidden")


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
def test_the_translation_is_copied(browser, secure: bool) -> None:
    """Without TLS, pages from other machines have no `navigator.clipboard`."""
    select(browser, source="en", target="de")
    german = write(browser, TEXT)
    if secure:
        browser.evaluate(
            "navigator.clipboard.writeText = async (text) => {window.copied = text}; null"
        )
    else:
        browser.evaluate(
            "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
            "document.addEventListener('copy', () => {window.copied = "
            "document.activeElement.value.slice(document.activeElement.selectionStart, "
            "document.activeElement.selectionEnd)}); null"
        )
    browser.point("#copy", click=True)
    browser.wait("document.querySelector('#state').textContent === 'Copied'")
    assert browser.evaluate("window.copied") == german


def test_every_control_is_reached_by_keyboard(browser, demo) -> None:
    """Every control is reached by Tab in the order of the page, and has a visible focus."""
    select(browser, source="auto", target="de")
    browser.evaluate("document.querySelector('#text').focus()")
    browser.type(TEXT)
    browser.press("Enter", 13, modifiers=2)
    browser.wait(DONE)
    for name in ("clear", "choose-file", "translation", "copy", "alternatives"):
        browser.press("Tab", 9)
        assert browser.evaluate("document.activeElement.id") == name
        ring = browser.evaluate(
            "getComputedStyle(document.activeElement).outlineStyle !== 'none' || getComputedStyle("
            "document.activeElement.parentElement, '::after').borderStyle === 'solid'"
        )
        assert ring, name
    browser.press(" ", 32)
    browser.wait("document.querySelector('#variants button')")
    browser.press("Tab", 9)
    browser.press(" ", 32)
    assert browser.evaluate("document.activeElement.id") == "translation"
    assert value(browser, "translation") != demo.translate(TEXT)
    for name in ("choose-file", "clear", "text", "target", "swap", "source", "theme", "language"):
        browser.press("Tab", 9, modifiers=8)
        assert browser.evaluate("document.activeElement.id") == name


def test_a_long_text_is_refused_by_the_page(demo) -> None:
    limited = engine(f"en-de={ROOT / 'demo' / 'en-de'}", limits=Limits(characters=20))
    with serving(limited) as address, visit(address, READY) as browser:
        browser.evaluate("document.querySelector('#text').focus()")
        browser.type("Where is the station? 🚉")
        browser.wait(SAID)
        assert browser.evaluate(SAID).startswith("The text has 23 characters; at most 20 are")
        assert bodies(browser, "/translate") == []
        assert "over" in browser.evaluate("document.querySelector('#count').className")
        assert write(browser, "Where is it?") == demo.translate("Where is it?")
        assert not browser.evaluate(SAID)


@SIZES
def test_a_busy_server_offers_a_retry(address, demo, monkeypatch, size) -> None:
    plain = Admission.overload
    monkeypatch.setattr(Admission, "overload", lambda self: BusyError("too much", retry_after=7))
    with visit(address, READY, refusals=True) as browser:
        browser.look(*size)
        select(browser, source="en", target="de")
        browser.evaluate("document.querySelector('#text').focus()")
        browser.type(TEXT)
        browser.wait(SAID)
        assert browser.evaluate(SAID) == "The server is busy. Try again in 7 s."
        browser.point("#language", click=True)
        assert browser.evaluate(SAID) == "服务器繁忙，请在 7 秒后重试。"
        assert faults(browser) == []
        monkeypatch.setattr(Admission, "overload", plain)
        browser.point("#retry", click=True)
        browser.wait(DONE)
        assert not browser.evaluate(SAID)
        assert value(browser, "translation") == demo.translate(TEXT)


def test_an_unreachable_server_is_reported(demo) -> None:
    pair = f"en-de={ROOT / 'demo' / 'en-de'}"
    with serving(engine(pair)) as address, visit(address, READY, refusals=True) as browser:
        browser.evaluate("window.fetch = () => Promise.reject(new TypeError('offline')); null")
        browser.evaluate("document.querySelector('#text').focus()")
        browser.type(TEXT)
        browser.wait(SAID)
        assert browser.evaluate(SAID) == "The server does not answer."


def test_a_key_is_kept_by_the_tab_only(demo, tmp_path) -> None:
    keys = tmp_path / "keys.json"
    secret = add_key(keys, "alice", rate=3, priority="normal")
    keyed = serving(engine(f"en-de={ROOT / 'demo' / 'en-de'}"), keyring=Keyring(keys))
    with keyed as address, visit(address, READY, refusals=True) as browser:
        browser.wait("document.activeElement.id === 'key'")
        assert faults(browser) == []
        browser.type("wrong")
        browser.press("Tab", 9)
        browser.press(" ", 32)
        browser.wait("document.activeElement.id === 'text'")
        browser.type(TEXT)
        browser.wait(SAID)
        assert browser.evaluate(SAID) == "The server does not accept this API key."
        browser.wait("document.activeElement.id === 'key'")
        browser.type(secret)
        browser.press("Tab", 9)
        browser.press(" ", 32)
        browser.wait(DONE)
        assert value(browser, "translation") == demo.translate(TEXT)
        assert secret in browser.evaluate("Object.values(sessionStorage)")
        assert secret not in browser.evaluate("Object.values(localStorage)")
        browser.open(address)
        browser.wait(READY)
        assert browser.evaluate("document.querySelector('#key-form').hidden")
        for text in ("one", "two", "three"):
            browser.evaluate("document.querySelector('#text').focus()")
            browser.type(f"{text} ")
            browser.press("Enter", 13, modifiers=2)
            browser.wait(f"{DONE} || {SAID}")
        browser.wait(SAID)
        said = r"This key has sent too many requests. Try again in \d+ s."
        assert re.fullmatch(said, browser.evaluate(SAID))


def test_a_model_with_unknown_languages(demo) -> None:
    one = engine(str(ROOT / "demo" / "en-de"))
    with serving(one) as address, visit(address, READY) as browser:
        assert browser.evaluate("document.querySelector('#source').disabled")
        assert browser.evaluate("document.querySelector('#swap').disabled")
        assert write(browser, TEXT) == demo.translate(TEXT)
        shown = browser.evaluate("document.querySelector('#target').selectedOptions[0].textContent")
        assert shown == "Language of the model"


def test_a_server_without_translation_models(writer) -> None:
    with serving(Engine([read_spec(str(writer))])) as address, visit(address, SAID) as browser:
        assert browser.evaluate(SAID) == "This server has no translation model."


def test_names_of_languages(browser) -> None:
    """The browser names codes of several standards, the server all other codes."""
    script = """import('/page/pairs.js').then(({ Pairs }) => {
        const codes = ['de', 'deu_Latn', 'zh', 'zho_Hant', 'pt-BR', 'nb', 'xx-1'];
        const pairs = new Pairs(codes.map((code) => ({ code, name: `${code}!`, targets: [] })));
        return [codes.map((code) => pairs.name(code)), pairs.named(['deu_Latn', 'de', 'zh'])];
    })"""
    names, named = browser.evaluate(script)
    assert names == [
        *("German", "German", "Chinese", "Traditional Chinese", "Brazilian Portuguese"),
        *("Norwegian Bokmål", "xx-1!"),
    ]
    assert named == [["zh", "Chinese"], ["de", "German (de)"], ["deu_Latn", "German (deu_Latn)"]]


def test_chinese_and_dark_mode_are_stored(browser, address) -> None:
    select(browser, source="zh")
    browser.point("#language", click=True)
    assert browser.evaluate("document.documentElement.lang") == "zh-Hans"
    options = "[...document.querySelectorAll('option')].map((one) => one.textContent).join(' ')"
    assert browser.evaluate(options) == "检测语言 德语 英语 中文 德语 英语"
    ground = "getComputedStyle(document.body).backgroundColor"
    light = browser.evaluate(ground)
    browser.point("#theme", click=True)
    dark = browser.evaluate(ground)
    assert dark != light
    for path in ("", "/race"):
        browser.open(f"{address}{path}")
        browser.wait("document.documentElement.lang === 'zh-Hans'")
        assert browser.evaluate(ground) == dark
        browser.wait("document.querySelector('[aria-current]').textContent.length > 1")
        left = "[...document.querySelectorAll('[data-say]')].filter((one) => !one.textContent)"
        assert browser.evaluate(f"{left}.length") == 0
    browser.open(address)
    browser.wait(READY)
    assert value(browser, "source") == "zh"


def test_both_interface_languages_have_the_same_texts(browser) -> None:
    names = browser.evaluate(
        "import('/page/words.js').then(({ WORDS }) => Object.values(WORDS).map(Object.keys))"
    )
    assert len(names) == 2
    assert names[0] == names[1]
    files = "\n".join(path.read_text(encoding="utf-8") for path in PAGE.iterdir())
    unused = [name for name in names[0] if not re.search(rf"[\"'.]{name}\b|\b{name}:.*\n", files)]
    assert unused == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@SIZES
def test_axe_finds_no_violation(browser, size: tuple[int, int], dark: bool) -> None:
    browser.look(*size, dark=dark, still=True)
    assert faults(browser) == []
    select(browser, source="auto", target="de")
    write(browser, TEXT)
    browser.point("#alternatives", click=True)
    browser.wait("document.querySelector('#variants button')")
    assert browser.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert faults(browser) == []


DROP = """
(() => {{
  const data = new DataTransfer();
  data.items.add(new File([{content}], {name}));
  for (const kind of ["dragover", "drop"])
    document.querySelector("#translator").dispatchEvent(
      new DragEvent(kind, {{ dataTransfer: data, bubbles: true, cancelable: true }}));
}})()
"""
FILM = "1\n00:00:01,000 --> 00:00:02,000\nWhere is the <i>station</i>?\n"


def drop(browser: Browser, name: str, content: str) -> None:
    browser.evaluate(DROP.format(content=json.dumps(content), name=json.dumps(name)))


@SIZES
def test_a_dropped_document_is_translated(
    browser: Browser, demo: Translator, size: tuple[int, int], tmp_path: Path
) -> None:
    browser.look(*size)
    select(browser, source="en", target="de")
    browser.evaluate(
        "const made = URL.createObjectURL; URL.createObjectURL = (one) => made(window.blob = one)"
    )
    drop(browser, "film.srt", FILM)
    browser.wait("document.querySelector('#files a')", 60)
    link = "document.querySelector('#files a')"
    assert browser.evaluate(f"{link}.download") == "film.de.srt"
    found = browser.evaluate("blob.text()")
    assert found.startswith("1\n00:00:01,000 --> 00:00:02,000\nWo ist der <i>Bahnhof</i>?")
    assert browser.evaluate("document.querySelector('#spoken').textContent") == (
        "film.de.srt is ready."
    )
    browser.picture(tmp_path / "files.png")
    browser.evaluate("document.querySelector('#files button').click()")
    assert browser.evaluate("document.querySelector('#files').hidden")


@SIZES
def test_the_list_of_documents_is_accessible(browser: Browser, size: tuple[int, int]) -> None:
    browser.look(*size)
    drop(browser, "film.srt", FILM)
    browser.wait("document.querySelector('#files a')", 60)
    assert faults(browser) == []


def test_a_document_that_cannot_be_translated_is_explained(address: str) -> None:
    with visit(address, READY, refusals=True) as browser:
        drop(browser, "paper.pdf", "%PDF")
        state = "document.querySelector('#files .over')?.textContent"
        browser.wait(state)
        assert "convert it to docx first" in browser.evaluate(state)
