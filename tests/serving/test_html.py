"""HTML: tags are kept, texts are replaced, and hostile pages are parsed quickly."""

import html
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.serving.html import read_page


def shout(text: str) -> str:
    page = read_page(text)
    return page.write([one.upper() for one in page.texts])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("hello", "HELLO"),
        ("<p>one <b>two</b>\n three</p>", "<p>ONE <b>TWO</b>\n THREE</p>"),
        ('<a title="a > b" href=x>go</a>', '<a title="a > b" href=x>GO</a>'),
        ("<!-- no <b>this</b> --> yes", "<!-- no <b>this</b> --> YES"),
        ("a &lt; b &amp; c", "A &lt; B &amp; C"),
        ("1 < 2 and 3 > 2", "1 &lt; 2 AND 3 &gt; 2"),
        ("<script>if (a<b) x = '</p>'</script>go", "<script>if (a<b) x = '</p>'</script>GO"),
        ("<title>a <b> c</title>d", "<title>A &lt;B&gt; C</title>D"),
        ("see <code>ls -l</code> there", "SEE <code>ls -l</code> THERE"),
        ("<pre>a<br>b</pre> c", "<pre>a<br>b</pre> C"),
        (
            '<div translate="no">a<div>b</div>c</div>d',
            '<div translate="no">a<div>b</div>c</div>D',
        ),
        ("<br/>a<img alt='x'>b", "<br/>A<img alt='x'>B"),
        ("<p>12.5 %</p>", "<p>12.5 %</p>"),
        ("<!DOCTYPE html><p>a", "<!DOCTYPE html><p>A"),
        ("a <", "A &lt;"),
        ("<p", "&lt;P"),
        ('<p class="x>a</p>', '<p class="x>A</p>'),
        ("<script>never closed", "<script>never closed"),
        ("a <!-- b <b>c</b>", "A <!-- b <b>c</b>"),
        ("<!-->a<!--->b<!--c--!>d", "<!-->A<!--->B<!--c--!>D"),
        ("<!x '>a' </ x '>b", "<!x '>A' </ x '>B"),
        ("a<?php b('c')", "A<?php b('c')"),
        ("&nbsp;a&nbsp;b&#160; ", "&nbsp;A\xa0B&#160; "),
        ("&nbspa &nbsp", "&nbspA &nbsp"),
        ("&amp;nbsp;a", "&amp;NBSP;A"),
        ("&#97;&#0000000098;&#x0000000063;", "ABC"),
        ("a <é> b", "A &lt;É&gt; B"),
    ],
)
def test_texts_change_and_tags_do_not(before: str, after: str) -> None:
    assert shout(before) == after


@given(st.text(alphabet="<>/!-\"'ab &;=codep \n"))
def test_all_characters_outside_texts_are_kept(text: str) -> None:
    page = read_page(text)
    parts = list(page.parts)
    assert len(page.texts) == len(page.places)
    for place in page.places:
        assert parts[place].strip() == parts[place]
        parts[place] = "\0"
    for part in parts:
        assert part == "\0" or part in text


BLANK = st.sampled_from(
    [
        *(" ", "\n", "\xa0", "\u3000", "\u200b", "&nbsp;", "&nbsp", "&#160;", "&#xA0;", "&#x00a0"),
        *("&ensp;", "&#8195;", "&thinsp;", "&NewLine;", "&Tab;", "&#32;", "&zwnj;", "&shy;"),
    ]
)
INSIDE = st.text(alphabet="ab <>'\"&;![]?/").map(lambda text: text.replace(">", "}") + " z")
"""Text in comments, without the sign that ends some of them."""
COMMENT = st.one_of(
    INSIDE.map("<!--{}-->".format),
    INSIDE.map("<!--{}--!>".format),
    INSIDE.map("<!-- <b>{}</b> -->".format),
    INSIDE.map("<!x{}>".format),
    INSIDE.map("<?x{}>".format),
    INSIDE.map("</ {}>".format),
    INSIDE.map("<![CDATA[ x > {} ]]>".format),
    st.sampled_from(["<!-->", "<!--->", "<!>", "<?>", "</>"]),
)
OPEN = st.one_of(
    st.just(""),
    INSIDE.map("<!-- <b>{}</b>".format),
    *(
        INSIDE.map(f"{opening}{{}}".format)
        for opening in ("<!--", "<!x", "<?x", "</ ", "<![CDATA[")
    ),
)


@given(
    st.lists(st.tuples(st.lists(BLANK), st.sampled_from(["one", "two & x", ""]), st.lists(BLANK))),
    st.data(),
)
def test_blanks_and_comments_are_kept(texts: list[tuple[list[str], str, list[str]]], data) -> None:
    before = after = ""
    for lead, word, tail in texts:
        comment = data.draw(COMMENT)
        lead, tail = "".join(lead), "".join(tail)
        before += lead + word.replace("&", "&amp;") + tail + comment
        after += lead + word.upper().replace("&", "&amp;") + tail + comment
    rest = data.draw(OPEN)
    assert shout(before + rest) == after + rest


@given(st.text(alphabet="<>/!-?[]ACDT ab'\"&;nsp#0160x"))
def test_unchanged_texts_give_an_unchanged_page(text: str) -> None:
    """Only the spelling of entities may change."""
    page = read_page(text)
    assert html.unescape(page.write(page.texts)) == html.unescape(text)


def test_entities_of_many_digits() -> None:
    for digits in ("1" * 5000, "0" * 5000 + "97", "x" + "f" * 5000):
        assert read_page(f"a&#{digits};b").texts in (["a\ufffdb"], ["aab"])


@pytest.mark.parametrize(
    "piece",
    [
        *("<", "<a", "<a '>'", "<a ''", '<a "', "<!--", "<a '\"", "<script>", "</", "<![CDATA["),
        *("<!", "<?", "</ ", "<!-- --", "&nbsp", "&nbsp;a", "&#0", "a \n", "&#x0", "&#160;"),
        *("<title>", "&", "&#", "<b translate=no>", "<div><div>", "<a\"'>'\""),
    ],
)
def test_hostile_pages_are_parsed_quickly(piece: str) -> None:
    began = time.process_time()
    read_page(piece * (200_000 // len(piece)))
    assert time.process_time() - began < 3
