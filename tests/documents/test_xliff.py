"""XLIFF 1.2 and 2: sources without a translation, inline elements, and attacks."""

import re
import time
from collections import Counter
from random import Random
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

from outrider.documents.marked import MarkedText
from outrider.documents.translate import translate_marked
from outrider.documents.xliff import read
from outrider.errors import InputError
from tests.helpers.generated_texts import DOCUMENTS, marking, mirroring, sentence
from tests.helpers.pseudo import upper

ONE = (
    '<?xml version="1.0"?>\n<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">'
    '<file source-language="en" target-language="de"><body>\n{}\n</body></file></xliff>'
)
TWO = (
    '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de">'
    '<file id="f">{}</file></xliff>'
)


def capitals(units: str, frame: str = ONE) -> str:
    content = frame.replace("{}", units)
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    written = document.write(translate_marked(document.texts, upper)).decode()
    before, after = frame.split("{}")
    assert written.startswith(before)
    assert written.endswith(after)
    return written[len(before) : -len(after)]


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("<source>a</source>", "<source>a</source><target>A</target>"),
        ("\n  <source>a</source>\n", "\n  <source>a</source>\n  <target>A</target>\n"),
        ("<source>a</source><target/>", "<source>a</source><target>A</target>"),
        (
            '<source>a</source><target state="new"></target>',
            '<source>a</source><target state="new">A</target>',
        ),
        ("<source>a</source><target>b</target>", "<source>a</source><target>b</target>"),
        (
            '<source>a</source><target state="new">a</target>',
            '<source>a</source><target state="new">A</target>',
        ),
        (
            "<source>a &lt; &amp; b</source>",
            "<source>a &lt; &amp; b</source><target>A &lt; &amp; B</target>",
        ),
        (
            '<source>a <g id="1">b</g> <x id="2"/>c</source>',
            '<source>a <g id="1">b</g> <x id="2"/>c</source>'
            '<target>A <g id="1">B</g> <x id="2"/>C</target>',
        ),
        (
            '<source>a<ph id="1">&lt;br&gt;</ph> c</source>',
            '<source>a<ph id="1">&lt;br&gt;</ph> c</source>'
            '<target>A<ph id="1">&lt;br&gt;</ph> C</target>',
        ),
        (
            '<source>a <mrk mtype="protected">b</mrk> c</source>',
            '<source>a <mrk mtype="protected">b</mrk> c</source>'
            '<target>A <mrk mtype="protected">b</mrk> C</target>',
        ),
        ("<source>1</source>", "<source>1</source>"),
        (
            "<source>a</source><note>b</note><alt-trans><source>c</source></alt-trans>",
            "<source>a</source><target>A</target><note>b</note><alt-trans><source>c</source></alt-trans>",
        ),
    ],
)
def test_version_one(unit: str, expected: str) -> None:
    frame = '<trans-unit id="1">{}</trans-unit>'
    assert capitals(frame.format(unit)) == frame.format(expected)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (
            "<segment><source>a</source></segment><ignorable><source>b</source></ignorable>",
            "<segment><source>a</source><target>A</target></segment><ignorable><source>b</source></ignorable>",
        ),
        (
            '<segment><source>a <pc id="1">b</pc><ph id="2"/></source><target></target></segment>',
            '<segment><source>a <pc id="1">b</pc><ph id="2"/></source>'
            '<target>A <pc id="1">B</pc><ph id="2"/></target></segment>',
        ),
        (
            '<segment><source><sc id="1"/>a<ec startRef="1"/></source></segment>',
            '<segment><source><sc id="1"/>a<ec startRef="1"/></source>'
            '<target><sc id="1"/>A<ec startRef="1"/></target></segment>',
        ),
    ],
)
def test_version_two(unit: str, expected: str) -> None:
    frame = '<unit id="1">{}</unit>'
    assert capitals(frame.format(unit), TWO) == frame.format(expected)


def test_units_that_are_not_to_be_translated() -> None:
    units = (
        '<group translate="no"><trans-unit id="1"><source>a</source></trans-unit>'
        '<trans-unit id="2" translate="yes"><source>b</source></trans-unit></group>'
        '<trans-unit id="3" translate="no"><source>c</source></trans-unit>'
    )
    assert capitals(units).count("<target>") == 1
    assert "<target>B</target>" in capitals(units)


def test_the_target_language_is_named() -> None:
    one = ONE.replace(' target-language="de"', "").replace(
        "{}", "<trans-unit><source>a</source></trans-unit>"
    )
    document = read(one.encode(), "fr")
    assert document.write(document.texts) == one.encode()
    assert b'<file source-language="en" target-language="fr">' in document.write([MarkedText("b")])
    two = TWO.replace(' trgLang="de"', "").replace(
        "{}", "<unit><segment><source>a</source></segment></unit>"
    )
    assert b'srcLang="en" trgLang="fr">' in read(two.encode(), "fr").write([MarkedText("b")])


def test_prefixes_and_encodings() -> None:
    content = (
        '<?xml version="1.0" encoding="ISO-8859-1"?><x:xliff version="1.2" '
        'xmlns:x="urn:oasis:names:tc:xliff:document:1.2"><x:file><x:body><x:trans-unit>'
        "<x:source>é</x:source></x:trans-unit></x:body></x:file></x:xliff>"
    ).encode("latin-1")
    document = read(content)
    assert document.write(document.texts) == content
    written = document.write([MarkedText("è 茶")])
    assert "<x:target>è &#33590;</x:target>".encode("latin-1") in written


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('<!DOCTYPE x [<!ENTITY a "b">]><xliff>&a;</xliff>', "the entity 'a'"),
        ('<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><xliff>&b;</xliff>', "entity"),
        ('<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><xliff>&a;</xliff>', "entity"),
        ("<xliff>" + "<group>" * 10_000, "nested deeper"),
        ("<xliff><file>", "not well-formed"),
        ("<tmx/>", "no element xliff"),
        ("a\0", "not well-formed"),
        ("", "not well-formed"),
    ],
)
def test_attacks_and_damaged_files_are_refused(content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(content.encode())


@pytest.mark.parametrize(
    "unit", ["a " * 200_000, "<x/>" * 20_000 + "a", "<g>a</g>" * 10_000, "&lt;" * 100_000 + "a"]
)
def test_giant_units_take_linear_time(unit: str) -> None:
    content = ONE.replace("{}", f"<trans-unit><source>{unit}</source></trans-unit>")
    start = time.process_time()
    document = read(content.encode())
    document.write([MarkedText(text.text + "!", text.spans) for text in document.texts])
    assert time.process_time() - start < 8


def text(random: Random, two: bool) -> str:
    words = [escape(word) for word in sentence(random).split(" ")]
    for _ in range(random.randint(0, 3)):
        at = random.randrange(len(words))
        end = random.randrange(at, len(words))
        name = random.choice(["pc", "mrk"] if two else ["g", "mrk"])
        number = random.getrandbits(30)
        if random.random() < 0.5:
            words[at : end + 1] = [
                f'<{name} id="{number}">{" ".join(words[at : end + 1])}</{name}>'
            ]
        else:
            words[at] += f'<{"ph" if two else "x"} id="{number}"/>'
    return " ".join(words)


def file(random: Random) -> str:
    two = random.random() < 0.5
    units = []
    for number in range(random.randint(1, 8)):
        target = random.choice(["", "", "<target/>", "<target>kept</target>"])
        unit = f"\n<source>{text(random, two)}</source>\n{target}"
        unit = f"<segment>{unit}</segment>" if two else unit
        name = "unit" if two else "trans-unit"
        no = ' translate="no"' if random.random() < 0.1 else ""
        units.append(f'<{name} id="{number}"{no}>{unit}<!-- note --></{name}>')
    return (TWO if two else ONE).replace("{}", "\n".join(units))


def check(seed: int) -> None:
    content = file(Random(seed))
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    for change in (marking, mirroring):
        new = [change(one) for one in document.texts]
        written = document.write(new).decode()
        assert re.sub(r"\s*<target>.*?</target>|\s*<target/>", "", written) == (
            re.sub(r"\s*<target>.*?</target>|\s*<target/>", "", content)
        )
        root = ElementTree.fromstring(written)
        assert written.count("<target>kept</target>") == content.count("<target>kept</target>")
        translated = 0
        for holder in root.iter():
            children = {child.tag.rpartition("}")[2]: child for child in holder}
            if "source" not in children or "target" not in children:
                continue
            source, target = children["source"], children["target"]
            if target.text == "kept" or not (len(target) or target.text):
                continue
            tags = [
                Counter((one.tag, one.get("id")) for one in each.iter())
                - Counter([(each.tag, None)])
                for each in (source, target)
            ]
            assert tags[0] == tags[1]
            words = ["".join("".join(each.itertext()).split()) for each in (source, target)]
            assert Counter(words[0]) == Counter(words[1].replace("ʹ", ""))
            translated += 1
        assert translated == len(new)


def test_generated_files() -> None:
    for seed in range(DOCUMENTS):
        try:
            check(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
