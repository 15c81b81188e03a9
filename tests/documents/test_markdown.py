"""Markdown: what is translated, what stays, and what a parser reads in the result."""

import re
import time
from collections import Counter
from random import Random

import pytest
from markdown_it import MarkdownIt

from outrider.documents.markdown import read
from outrider.documents.marked import MarkedText, Span
from outrider.documents.translate import translate_marked
from tests.helpers.generated_texts import DOCUMENTS, marking, mirroring, sentence
from tests.helpers.pseudo import turned, upper

PLAIN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def texts(content: str) -> list[str]:
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    return [marked.text for marked in document.texts]


def capitals(content: str) -> str:
    document = read(content.encode())
    return document.write(translate_marked(document.texts, upper)).decode()


def rewritten(content: str, *new: str) -> str:
    """Write translations of texts without mark-up."""
    return read(content.encode()).write([MarkedText(text) for text in new]).decode()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("# A title #\n\ntext\n", "# A TITLE #\n\nTEXT\n"),
        ("A title\n=======\n", "A TITLE\n=======\n"),
        ("# Title {#id .c}\n", "# TITLE {#id .c}\n"),
        ("two\nlines\n", "TWO LINES\n"),
        ("> quoted\n> text\nlazy\n", "> QUOTED TEXT LAZY\n"),
        ("1. one\n2. two\n   lines\n", "1. ONE\n2. TWO LINES\n"),
        ("- [ ] a task\n- [x] done\n", "- [ ] A TASK\n- [x] DONE\n"),
        ("a **b** _c_ ~~d~~ `e` f\n", "A **B** _C_ ~~D~~ `e` F\n"),
        ("hard  \nbreak\\\nthree\n", "HARD   \nBREAK \\\nTHREE\n"),
        ("> hard  \n> break\n", "> HARD   \n> BREAK\n"),
        ('[a](/b "t") [c][d] [d]\n\n[d]: /e "f"\n', '[A](/b "T") [C][d] [D][d]\n\n[d]: /e "f"\n'),
        ('![a *b*](/c)![d](e "f")\n', '![a *b*](/c)![D](e "F")\n'),
        ('[![a](/b "c")](/d) **![e](/f)**\n', '[![A](/b "C")](/d) **![E](/f)**\n'),
        ("![d]\n\n[d]: /e\n", "![D][d]\n\n[d]: /e\n"),
        ("see <http://a.b/c> now\n", "SEE <http://a.b/c> NOW\n"),
        ("a <b>c</b> <br/> d\n", "A <b>C</b><br/>  D\n"),
        ("```\ncode\n```\n\n    code\n\n~~~\ncode\n", "```\ncode\n```\n\n    code\n\n~~~\ncode\n"),
        ("<div>\nhtml\n</div>\n", "<div>\nhtml\n</div>\n"),
        ("---\ntitle: a\n---\ntext\n", "---\ntitle: a\n---\nTEXT\n"),
        ("+++\na = 1\n+++\n", "+++\na = 1\n+++\n"),
        ("so $a_1 * b_2$ is\n", "SO $a_1 * b_2$ IS\n"),
        ("$$\na = b\n$$\n", "$$\na = b\n$$\n"),
        ("a note[^1]\n\n[^1]: the\n  note\n[^2]: b\n", "A NOTE[^1]\n\n[^1]: THE NOTE\n[^2]: B\n"),
        ("> [!NOTE]\n> text\n", "> [!NOTE]\n> TEXT\n"),
        ('!!! note "T"\n    text\n', '!!! note "T"\n    text\n'),
        ("::: tip\ntext\n:::\n", "::: tip\nTEXT\n:::\n"),
        ("term\n:   definition\n", "term\n:   definition\n"),
        ("{{ page.url }} of {% if a %}\n", "{{ page.url }} OF {% if a %}\n"),
        (
            "| a | b\\|c |\n|---|---|\n| `x\\|y` d | 2 |\n",
            "| A | B\\|C |\n|---|---|\n| `x\\|y` D | 2 |\n",
        ),
        ("a | b\n--|--\nc | d\n", "A | B\n--|--\nC | D\n"),
        ("a \\* b &amp; c\n", "A * B & C\n"),
        ("***\n- - -\n", "***\n- - -\n"),
        ("a\r\nb\r\n\r\n> c  \r\n> d\r\n", "A B\r\n\r\n> C   \r\n> D\r\n"),
        ("今天\n天气 a `c`\n", "今天天气 A `c`\n"),
    ],
)
def test_texts_are_translated_in_place(content: str, expected: str) -> None:
    texts(content)
    assert capitals(content) == expected


@pytest.mark.parametrize(
    ("content", "new", "expected"),
    [
        ("word\n", "1. word", "1\\. word\n"),
        ("word\n", "# word", "\\# word\n"),
        ("word\n", "- word", "\\- word\n"),
        ("word\n", "> word", "\\> word\n"),
        ("# word\n", "- word", "# - word\n"),
        ("word\n", "2 * 3 * 4", "2 * 3 * 4\n"),
        ("word\n", "snake_case", "snake_case\n"),
        ("word\n", "a *b* c", "a \\*b\\* c\n"),
        ("word\n", "a <b> c", "a \\<b\\> c\n"),
        ("word\n", "a &amp; c", "a \\&amp; c\n"),
        ("word\n", "a\\_c", "a\\\\\\_c\n"),
        ("word\n", "    code", "code\n"),
        ("| word |\n|---|\n", "a | b", "| a \\| b |\n|---|\n"),
        ("word\n\n[a]: b\n", "see [a]", "see \\[a\\]\n\n[a]: b\n"),
        ("word\n", "one\n\ntwo", "one  two\n"),
        ("word\n", "::: x", "\\::: x\n"),
    ],
)
def test_characters_that_would_be_markup_are_escaped(content: str, new: str, expected: str) -> None:
    assert rewritten(content, new) == expected


def test_titles_and_descriptions_are_escaped() -> None:
    document = read(b'![alt](a "title")\n')
    new = [document.texts[0], MarkedText("a [b] *c*"), MarkedText('say "d"')]
    assert document.write(new).decode() == '![a \\[b\\] \\*c\\*](a "say \\"d\\"")\n'


def test_emphasis_that_a_parser_would_not_read_is_html() -> None:
    document = read(b"Press the **button** now\n")
    text = "请按“确定”按钮"
    moved = MarkedText(text, (Span(2, 6, "**", "**"),))
    assert document.write([moved]).decode() == "请按<strong>“确定”</strong>按钮\n"
    spaced = MarkedText("a b  c", (Span(1, 4, "**", "**"),))
    assert document.write([spaced]).decode() == "a **b**  c\n"


@pytest.mark.parametrize(
    "content",
    [
        "> " * 10_000 + "a",
        "- " * 10_000 + "a",
        "*a " * 20_000,
        "[" * 20_000 + "a",
        "![a](b " * 5_000,
        "`" * 20_000 + "a" + "`" * 19_999,
        "<b>" * 20_000 + "a",
        "$a " * 20_000,
        "word " * 50_000,
        "a | " * 5_000 + "\n" + "--|" * 5_000,
        "a\n\n" * 3_000,
        "[a]: b\n" * 5_000 + "\n[a] " * 2_000,
        "{{" * 20_000,
        "**a" * 5_000 + "**" * 5_000,
    ],
)
def test_giant_files_take_linear_time(content: str) -> None:
    start = time.process_time()
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    document.write([MarkedText(text.text + "!", text.spans) for text in document.texts])
    assert time.process_time() - start < 20


def inline(random: Random) -> str:
    words = sentence(random, 6).split(" ")
    for _ in range(random.randint(0, 3)):
        at = random.randrange(len(words))
        end = random.randrange(at, len(words))
        part = " ".join(words[at : end + 1])
        kind = random.choice(
            [
                "*{}*",
                "**{}**",
                "_{}_",
                "~~{}~~",
                "`{}`",
                "[{}](/u?a=b)",
                "<b>{}</b>",
                '[{}](</a b> "a title")',
                "![{}](/i.png)",
                "[{}][ref]",
                "$x_1$ {}",
                "{}[^1]",
                "<http://e.org/a_b> {}",
                "{} &copy;",
                "\\*{}",
                "[ref] {}",
            ]
        )
        words[at : end + 1] = [kind.format(part)]
    return " ".join(words)


def block(random: Random, depth: int = 0) -> str:
    kind = random.randrange(11 if depth < 2 else 7)
    if kind < 3:
        lines = [inline(random) for _ in range(random.randint(1, 3))]
        return random.choice(["\n", "\n", "  \n", "\\\n"]).join(lines)
    if kind == 3:
        return f"{'#' * random.randint(1, 6)} {inline(random)}"
    if kind == 4:
        return f"```\n{sentence(random)}\n*code*\n```"
    if kind == 5:
        cells = [inline(random).replace("|", "").replace("`", "") for _ in range(4)]
        return "| {} | {} |\n|---|---|\n| {} | {} |".format(*cells)
    if kind == 6:
        return f"<div>\n*{sentence(random)}*\n</div>"
    inner = "\n\n".join(block(random, depth + 1) for _ in range(random.randint(1, 2)))
    if kind < 9:
        return "\n".join(
            f"> {line}".rstrip() if not line.endswith("  ") else f"> {line}"
            for line in inner.split("\n")
        )
    mark = random.choice(["- ", "1. ", "* "])
    return mark + inner.replace("\n", "\n" + " " * len(mark))


def file(random: Random) -> str:
    front = random.choice(["", "", "---\ntitle: front\n---\n"])
    blocks = [block(random) for _ in range(random.randint(1, 6))]
    blocks.append('[ref]: /target "kept title"')
    return (front + "\n\n".join(blocks) + "\n").replace("\n", random.choice(["\n", "\n", "\r\n"]))


def structure(content: str, breaks: bool = True) -> list[object]:
    """Return what a parser reads: blocks, and the mark-up and code of each text."""
    found: list[object] = []
    for token in PLAIN.parse(re.sub(r"\A---\r?\n.*?\n---\r?\n", "", content, flags=re.DOTALL)):
        found.append(token.type)
        if token.type in ("fence", "html_block", "code_block"):
            found.append(token.content)
        marks: Counter[object] = Counter()
        for child in token.children or ():
            name = re.sub(r"[<>/]", "", child.content) if child.type == "html_inline" else ""
            kind = {"em": "em", "strong": "strong", "del": "s"}.get(name, "")
            if kind:
                marks[f"{kind}_{'close' if '/' in child.content else 'open'}"] += 1
            elif child.type not in ("text", "softbreak") and (breaks or child.type != "hardbreak"):
                code = child.content if child.type in ("code_inline", "html_inline") else ""
                marks[child.type, code, child.attrGet("href"), child.attrGet("src")] += 1
        found.append(
            {
                key
                if isinstance(key, str) or key[0].split("_")[0] not in ("em", "strong", "s")
                else key[0]: count
                for key, count in marks.items()
            }
        )
    return found


def words(content: str) -> str:
    """Return the words that a parser reads, without white space."""
    found = []
    for token in PLAIN.parse(content):
        for child in token.children or ():
            if child.type == "image":
                found += [part.content for part in child.children or ()]
                found.append(str(child.attrGet("title") or ""))
            elif child.type == "link_open":
                found.append(str(child.attrGet("title") or ""))
            elif child.type != "html_inline":
                found.append(child.content)
    return "".join("".join(found).split())


def check(seed: int) -> None:
    content = file(Random(seed))
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    expected = structure(content)
    written = document.write([marking(text) for text in document.texts]).decode()
    assert structure(written) == expected
    assert Counter(words(written).replace("ʹ", "")) == Counter(words(content))
    for text in re.findall(r"unique\d+word", content):
        assert written.replace("ʹ", "").count(text) == content.count(text)
    written = document.write([mirroring(text) for text in document.texts]).decode()
    assert structure(written) == expected
    assert Counter(words(written)) == Counter(words(content))
    new = translate_marked(document.texts, turned)
    # The transfer writes a span that is closed at a point as two spans.
    counts = [
        [sum(bool(span.close) for span in text.spans) for text in texts]
        for texts in (new, document.texts)
    ]
    whole = all(span.start < span.end for text in new for span in text.spans if span.close)
    if whole and counts[0] == counts[1]:
        assert structure(document.write(new).decode(), breaks=False) == structure(
            content, breaks=False
        )


def test_generated_files() -> None:
    for seed in range(DOCUMENTS):
        try:
            check(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
