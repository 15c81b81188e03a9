"""HTML: tags are kept, texts are replaced, and hostile pages are parsed quickly."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.documents.html import Page, read
from outrider.documents.html_elements import Rules
from outrider.documents.marked import MarkedText
from outrider.documents.translate import translate_marked
from outrider.errors import InputError
from tests.helpers.pseudo import turned, upper


def shout(text: str, rules: Rules | None = None) -> str:
    page = Page(text, rules)
    return page.write_text(translate_marked(page.texts, upper))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("hello", "HELLO"),
        ("<p>one <b>two</b>\n three</p>", "<p>ONE <b>TWO</b> THREE</p>"),
        ('<a title="a > b" href=x>go</a>', '<a title="A > B" href=x>GO</a>'),
        ("<!-- no <b>this</b> --> yes", "<!-- no <b>this</b> --> YES"),
        ("a &lt; b &amp; c", "A &lt; B &amp; C"),
        ("1 < 2 and 3 > 2", "1 &lt; 2 AND 3 &gt; 2"),
        ("<script>if (a<b) x = '</p>'</script>go", "<script>if (a<b) x = '</p>'</script>GO"),
        ("<title>a <b> c</title>d", "<title>A &lt;b&gt; C</title>D"),
        ("see <code>ls -l</code> there", "SEE <code>ls -l</code> THERE"),
        ("<pre>a<br>b</pre> c", "<pre>a<br>b</pre> C"),
        (
            '<div translate="no">a<div>b</div>c</div>d',
            '<div translate="no">a<div>b</div>c</div>D',
        ),
        ("<br/>a<img alt='x'>b", "<br/>A<img alt='X'>B"),
        ("<p>12.5 %</p>", "<p>12.5 %</p>"),
        ("<!DOCTYPE html><p>a", "<!DOCTYPE html><p>A"),
        ("a <", "A &lt;"),
        ("<p", "&lt;P"),
        ('<p class="x>a</p>', '<p class="x>A</p>'),
        ("<script>never closed", "<script>never closed"),
        ("a <!-- b <b>c</b>", "A <!-- b <b>c</b>"),
        ("<!-->a <!--->b <!--c--!>d", "<!-->A <!--->B <!--c--!>D"),
        ("<!x '>a' </ x '>b", "<!x '>A' </ x '>B"),
        ("a<?php b('c')", "A<?php b('c')"),
        ("&nbsp;a&nbsp;b&#160; ", "&nbsp;A\xa0B&#160; "),
        ("&nbspa &nbsp", "&nbspA &nbsp"),
        ("&amp;nbsp;a", "&amp;nbsp;A"),
        ("&#97;&#0000000098;&#x0000000063;", "ABC"),
        ("a <é> b", "A &lt;É&gt; B"),
    ],
)
def test_texts_change_and_tags_do_not(before: str, after: str) -> None:
    assert shout(before) == after


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
        before += lead + word.replace("&", "&amp;") + tail + comment + "<p>"
        after += lead + word.upper().replace("&", "&amp;") + tail + comment + "<p>"
    rest = data.draw(OPEN)
    assert shout(before + rest) == after + rest


@given(st.text(alphabet="<>/!-?[]ACDT ab'\"&;nsp#0160x\n"))
def test_unchanged_texts_give_an_unchanged_page(text: str) -> None:
    page = Page(text)
    assert page.write_text(page.texts) == text
    content = text.encode()
    assert read(content).write(read(content).texts) == content


@given(st.binary(max_size=200))
def test_unchanged_bytes(content: bytes) -> None:
    try:
        page = read(content)
    except InputError:
        return
    assert page.write(page.texts) == content


def test_entities_of_many_digits() -> None:
    for digits in ("1" * 5000, "0" * 5000 + "97", "x" + "f" * 5000):
        assert Page(f"a&#{digits};b").texts[0].text in ("a\ufffdb", "aab")


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
    Page(piece * (200_000 // len(piece)))
    assert time.process_time() - began < 3


NESTED = """<a href="#" target="_blank" rel="noopener">
  <em>
    <span style="text-decoration: underline; color: #ff0000;">
     View the complete range of
    </span>
  </em>
  <em>
    <span style="text-decoration: underline; color: #ff0000;">
      drawer systems here!
    </span>
  </em>
</a>"""
"""Issue 806 of LibreTranslate: both parts are one sentence."""


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        (NESTED, ["View the complete range of drawer systems here!"]),
        ("<ul><li>one <a>two</a><li>three</ul>", ["one two", "three"]),
        ("<p>one<br>two<br> <br>three</p>", ["one two", "three"]),
        ("a <code>ls</code> b <pre>c</pre> d", ["a ls b", "d"]),
        ("a <svg><text>b</text></svg> <!-- c --><script>d</script>e", ["a e"]),
        ("a <i translate=no>b</i> <i class='x notranslate'>c</i> d", ["a b c d"]),
        ("<div class=notranslate>a</div><p translate='no'>b</p>c", ["c"]),
        ('<img alt="a cat" title="x"><input placeholder=Name>', ["a cat", "x", "Name"]),
        ('<p>a <img alt="cat"> b <img alt="cat"></p>', ["cat", "a b"]),
        ("<b0>a</b0> <x-y>b</x-y>", ["a b"]),
        ("<p>12</p><b></b> <textarea>a</textarea>", []),
        ("<b> a</b> &nbsp;b ", ["a \xa0b"]),
    ],
)
def test_a_sentence_is_one_text(page: str, texts: list[str]) -> None:
    assert [one.text for one in Page(page).texts] == texts
    assert Page(page).write_text(Page(page).texts) == page


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("the <a href=x>red <b>door</b></a>", "<a href=x><b>DOOR</b> RED</a> THE"),
        ("<b>all of it</b>", "<b>IT OF ALL</b>"),
        ("see <code>ls  &lt;b&gt;</code> there", "THERE <code>ls  &lt;b&gt;</code> SEE"),
        ("a <i translate=no>B <u>&eacute;</u></i> c", "C <i translate=no>B <u>&eacute;</u></i> A"),
        ("one <b>two <i>three</b> four</i>", "FOUR <b><i>THREE TWO</b> ONE</i>"),
        ("</b>one<i>", "</b>ONE<i>"),
        ("<p>one<br>two</p>", "<p><br>TWO ONE</p>"),
        ("<b>a<br/></b> c", "C <b>A<br/></b>"),
        ('<img alt="a &quot;b">', '<img alt="&quot;B A">'),
        ("<img alt=cat>", '<img alt="CAT">'),
        ("a {x} <b>c &lt;i&gt;</b>", "<b>&lt;i&gt; C</b> {x} A"),
    ],
)
def test_tags_follow_their_words(before: str, after: str) -> None:
    page = Page(before)
    assert page.write_text(translate_marked(page.texts, turned)) == after


@pytest.mark.parametrize(
    ("content", "after"),
    [
        ("<p>é</p>a".encode(), "<p>É</p>A".encode()),
        ("<meta charset=latin1><p>ok é".encode("latin1"), b"<meta charset=latin1><p>OK \xc9"),
        (b"<meta charset='windows-1251'>\xe0 ok", b"<meta charset='windows-1251'>\xc0 OK"),
        ("\ufeffok é".encode("utf-16"), "\ufeffOK É".encode("utf-16")),
        (
            b"<?xml version='1.0' encoding='gb2312'?>ok",
            b"<?xml version='1.0' encoding='gb2312'?>OK",
        ),
        (b"<meta charset=rot13>ok", b"<meta charset=rot13>OK"),
        (b"<p>ok</p>\xff\x80", b"<p>OK</p>\xff\x80"),
    ],
)
def test_encodings(content: bytes, after: bytes) -> None:
    page = read(content)
    assert page.write(page.texts) == content
    assert page.write(translate_marked(page.texts, upper)) == after


def test_characters_outside_the_encoding_become_references() -> None:
    page = read(b"<meta charset=latin1>ok")
    assert page.write([MarkedText("好")]) == b"<meta charset=latin1>&#22909;"


def test_a_wrong_declaration_is_refused() -> None:
    with pytest.raises(InputError, match="the page is not in utf-16-le, which it declares"):
        read(b"\xff\xfea")


@pytest.mark.parametrize(
    ("rules", "texts"),
    [
        (Rules(xml=True), ["One Two boldNot this"]),
        (Rules(xml=True, by_structure=True), ["One", "Two bold", "Not this"]),
        (Rules(xml=True, blocks=("p",), kept=("x",)), ["One Two bold", "Not this"]),
        (Rules(xml=True, by_structure=True, inline=("t",)), ["One Two bold", "Not this"]),
    ],
)
def test_xml(rules: Rules, texts: list[str]) -> None:
    text = "<d><t>One</t> <t>Two <B>bold</B></t><p>Not this</p></d>"
    page = Page(text, rules)
    assert [one.text for one in page.texts] == texts
    assert page.write_text(page.texts) == text
    kept = Page("<d>a <x>b</x> c</d>", Rules(xml=True, kept=("x",)))
    assert kept.write_text(translate_marked(kept.texts, upper)) == "<d>A <x>b</x> C</d>"
