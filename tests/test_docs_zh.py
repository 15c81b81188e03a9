"""The Chinese pages have the headings, commands, figures, names and links of the English ones."""

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from markdown.extensions.toc import slugify

from outrider import yaml12
from tests.helpers.docs_part import DOCS, docs_part

ROOT = DOCS.parent
PAGES = [ROOT / "README.zh.md", *sorted(DOCS.rglob("*.zh.md"))]
FENCE = re.compile(r"^```(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#{1,6}) (.+?)(?: \{ #([\w-]+) \})?$", re.MULTILINE)
SENTENCE = re.compile(r'"[^"\n]*(?:\w \w|[^\x00-\x7f])[^"\n]*"')
COMMENT = re.compile(r"(?:^|\s+)# .*$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def english_of(page: Path) -> Path:
    return page.with_name(page.name.replace(".zh.md", ".md"))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def headings(text: str) -> list[tuple[int, str, str]]:
    """Return level, text and identifier of every heading outside code blocks."""
    return [
        (len(marks), words, name) for marks, words, name in HEADING.findall(FENCE.sub("", text))
    ]


def commands(text: str) -> list[str]:
    """Return every code block, without comments and quoted text."""
    blocks = (SENTENCE.sub('"…"', block) for block in FENCE.findall(text))
    return [COMMENT.sub("", block).replace(".zh.md", ".md") for block in blocks]


def sections(text: str) -> list[str]:
    """Return the text before the first heading and below each, without code blocks."""
    return re.split(r"^#{1,6} .*$", FENCE.sub("", text), flags=re.MULTILINE)


def said(section: str) -> dict[str, Counter[str]]:
    """Return what a translation must keep: figures in prose, names in code and link targets."""
    links = Counter(link.replace(".zh.md", ".md") for link in LINK.findall(section))
    links -= Counter({"README.md": links["README.md"]})  # the link to the other language
    prose = LINK.sub("]", CODE.sub("", section))
    figures = Counter(NUMBER.findall(re.sub(r"^ *\d+\. |<!--.*?-->|<img.*?>", "", prose)))
    return {"figures": figures, "code": Counter(set(CODE.findall(section))), "links": links}


def differences(english: str, chinese: str) -> list[str]:
    """Return the differences between a translation and its original."""
    ours, theirs = headings(english), headings(chinese)
    if [level for level, *_ in ours] != [level for level, *_ in theirs]:
        return [
            f"headings: {[words for _, words, _ in theirs]} for {[words for _, words, _ in ours]}"
        ]
    found = []
    blocks = commands(english), commands(chinese)
    if len(blocks[0]) != len(blocks[1]):
        found.append(f"{len(blocks[1])} blocks of code for {len(blocks[0])}")
    found += [f"code:\n{b}\nfor:\n{a}" for a, b in zip(*blocks, strict=False) if a != b]
    names = ["top", *(words for _, words, _ in ours)]
    for name, one, other in zip(names, sections(english), sections(chinese), strict=True):
        for what, wanted in said(one).items():
            got = said(other)[what]
            if got != wanted:
                found.append(f"{name}: {what} too many {got - wanted}, missing {wanted - got}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_translation_matches_its_original(page: Path) -> None:
    assert differences(read(english_of(page)), read(page)) == []


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_headings_are_linked_alike_in_both_languages(page: Path) -> None:
    wanted = [slugify(words, "-") for _, words, _ in headings(read(english_of(page)))]
    assert [name for *_, name in headings(read(page))] == wanted


ENGLISH = """# A

In 3 ways: `ar`, [more](b.md).

```sh
run "Where is it?" --mode x  # so
```

## B
"""
CHINESE = """# 甲

3 种方式：`ar`，[更多](b.zh.md)。

```sh
run "在 哪里？" --mode x  # 这样
```

## 乙
"""


def test_comments_and_sentences_may_differ() -> None:
    assert differences(ENGLISH, CHINESE) == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("## 乙", "### 乙", "headings"),
        ("## 乙\n", "", "headings"),
        ("--mode x", "--mode y", "code"),
        ("```sh\n", "```bash\n", "code"),
        ("3 种", "4 种", "figures"),
        ("`ar`", "`tandem`", "code"),
        ("b.zh.md", "c.md", "links"),
    ],
)
def test_differences_are_detected(before: str, after: str, told: str) -> None:
    assert before in CHINESE
    (found, *_) = differences(ENGLISH, CHINESE.replace(before, after))
    assert told in found


def test_the_readmes_link_to_each_other_and_to_pages_in_their_language() -> None:
    assert read(ROOT / "README.md").startswith("[中文](README.zh.md)")
    chinese = read(ROOT / "README.zh.md")
    assert chinese.startswith("[English](README.md)")
    for target in LINK.findall(chinese):
        if target.startswith("https://"):
            continue
        path = ROOT / target.partition("#")[0]
        assert path.exists(), target
        if not path.name.endswith(".zh.md") and path.name != "README.md":
            assert not path.with_suffix(".zh.md").exists(), f"{target} has a translation"


def test_pages_link_by_the_english_file_name() -> None:
    for page in PAGES[1:]:
        assert not re.search(r"\]\([^)]*\.zh\.md", read(page)), page


def test_every_page_has_a_chinese_name_in_the_menu() -> None:
    site = read(ROOT / "mkdocs.yml")
    settings = yaml12.parse(site.partition("\nmarkdown_extensions:")[0])
    (i18n,) = (plugin["i18n"] for plugin in settings["plugins"] if "i18n" in plugin)
    known = set(i18n["languages"][1]["nav_translations"])
    pages = [page for page in DOCS.rglob("*.md") if not page.name.endswith(".zh.md")]
    alone = [page for page in pages if not page.with_suffix(".zh.md").exists()]
    named = {headings(read(page))[0][1] for page in alone}
    sections = set(re.findall(r"^  - (\w+):", site.partition("\nnav:\n")[2], re.MULTILINE))
    kinds = {page.stem for page in (DOCS / "attention").glob("*.md")}  # same name in Chinese
    assert (named | sections) - kinds == known


def test_generated_text_is_chinese() -> None:
    home = docs_part("home")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.zh.md"))
    shown = home.on_page_markdown(read(DOCS / "index.zh.md"), page=page)
    assert "<!--" not in shown
    for words in [home.KINDS["zh"]["accepted"], *home.FIGURE_WORDS["zh"]]:
        assert words in shown
    for ours, theirs in zip(home.figures(), home.figures("zh"), strict=True):
        assert NUMBER.findall(ours.value) == NUMBER.findall(theirs.value)
        assert NUMBER.findall(ours.machine) == NUMBER.findall(theirs.machine)
    assert home.KINDS["en"].keys() == home.KINDS["zh"].keys()


def test_english_pages_have_a_notice_on_the_chinese_site_only() -> None:
    chinese = docs_part("chinese")
    for language, name, told in (
        ("zh", "data.md", True),
        ("zh", "data.zh.md", False),
        ("en", "data.md", False),
    ):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name), meta={})
        config = SimpleNamespace(theme={"language": language})
        shown = chinese.on_page_markdown("# Data\n\nText.", page=page, config=config)
        assert (chinese.NOTE in shown) == told
        assert ("search" in page.meta) == told, "searches would find it twice"
