"""Glossaries: files are read or refused in one sentence, and terms are found as documented."""

from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import DataError
from outrider.text import glossary as module
from outrider.text.glossary import Entry, Glossary, count, read_glossary, read_table

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US" datatype="plaintext"/><body>
<tu><tuv xml:lang="en-US"><seg>hard <bpt i="1">&lt;b&gt;</bpt>disk</seg></tuv>
<tuv xml:lang="pt-BR"><seg>disco rígido</seg></tuv></tu>
<tu><tuv xml:lang="PT-br"><seg>lixeira</seg></tuv><tuv lang="en-US"><seg>trash</seg></tuv></tu>
</body></tmx>"""
TBX = """<martif type="TBX" xml:lang="en"><text><body>
<termEntry><langSet xml:lang="en"><tig><term>kernel</term></tig>
<tig><term>core</term></tig></langSet>
<langSet xml:lang="de"><ntig><termGrp><term>Kern</term></termGrp></ntig></langSet>
<langSet xml:lang="fr"><tig><term>noyau</term></tig></langSet></termEntry></body></text></martif>"""
TBX3 = """<tbx xmlns="urn:iso:std:iso:30042:ed-2" xml:lang="en"><text><body><conceptEntry>
<langSec xml:lang="en"><termSec><term>kernel</term></termSec></langSec>
<langSec xml:lang="de"><termSec><term>Kern</term></termSec></langSec>
</conceptEntry></body></text></tbx>"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_tsv_has_two_or_three_columns_and_comments(tmp_path: Path) -> None:
    text = "\ufeff# comment\nhard disk\tdisco rígido\n\n dog \tcão\tinflect\r\ndog\tcão\tinflect\n"
    found = read_glossary(write(tmp_path, "terms.tsv", text))
    assert found.entries == (Entry("hard disk", "disco rígido"), Entry("dog", "cão", True))
    found = read_glossary(write(tmp_path, "terms.csv", 'a,"b, c"\n"d ""e""",f\n'))
    assert found.entries == (Entry("a", "b, c"), Entry('d "e"', "f"))


def test_tmx_and_tbx(tmp_path: Path) -> None:
    tmx = write(tmp_path, "terms.tmx", TMX)
    expected = (Entry("hard disk", "disco rígido"), Entry("trash", "lixeira"))
    assert read_glossary(tmx).entries == expected
    assert read_glossary(tmx, source="en", target="pt").entries == expected
    assert read_glossary(tmx, source="pt", target="en").entries[1] == Entry("lixeira", "trash")
    tbx = write(tmp_path, "terms.tbx", TBX)
    pair = {"source": "en", "target": "de"}
    assert read_glossary(tbx, **pair).entries == (Entry("kernel", "Kern"), Entry("core", "Kern"))
    assert read_glossary(tbx, source="fr", target="en").entries == (Entry("noyau", "kernel"),)
    found = read_glossary(write(tmp_path, "new.tbx", TBX3), **pair)
    assert found.entries == (Entry("kernel", "Kern"),)


BOMB = '<!DOCTYPE tmx [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><tmx><seg>&b;</seg></tmx>'
OUTSIDE = '<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]><tmx><seg>&a;</seg></tmx>'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "a\tb\nc", "line 2: expected source, tab, target"),
        ("a.tsv", "a\t", "line 1: expected source, tab, target"),
        ("a.tsv", "a\tb\tinfect", "'infect' in the third column, expected inflect"),
        ("a.tsv", "a\tb\na\tc", "line 2: 'a' has two translations; keep one"),
        ("a.tsv", "a\t" + "b" * 1025, "more than 1024 characters"),
        ("a.csv", 'a,"b', "is not CSV"),
        ("a.tmx", BOMB, "declares entities or a DTD"),
        ("a.tmx", OUTSIDE, "declares entities or a DTD"),
        ("a.tmx", "<tmx><seg>", "is not valid XML"),
        ("a.tmx", "<a>" * 65 + "</a>" * 65, "more than 64 elements inside each other"),
        ("a.tmx", "<tmx/>", "has no terms"),
        ("a.tbx", TBX, "has the languages en, de, fr; name two with --from and --to"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path: Path, name, text, message) -> None:
    with pytest.raises(DataError, match=message):
        read_glossary(write(tmp_path, name, text))


def test_size_encoding_and_missing_files(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(DataError, match="is not UTF-8"):
        read_table(b"a\t\xff", "x")
    with pytest.raises(DataError, match="no such file"):
        read_glossary(tmp_path / "none.tsv")
    with pytest.raises(DataError, match="no terms in pt, only in en, de, fr"):
        read_glossary(write(tmp_path, "a.tbx", TBX), source="en", target="pt")
    monkeypatch.setattr(module, "LARGEST", 10)
    with pytest.raises(DataError, match="more than 10 bytes"):
        read_glossary(write(tmp_path, "big.tsv", "a\tb\n" * 9))


GLOSSARY = Glossary(
    [
        Entry("hard disk", "x"),
        Entry("disk", "x"),
        Entry("Apple", "x"),
        Entry("dog", "x", True),
        Entry("box", "x", True),
        Entry("C++", "x"),
        Entry("操作系统", "x"),
        Entry("系统", "x"),
        Entry("État", "x"),
    ]
)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The hard disk and the Disk.", ["hard disk", "Disk"]),
        ("Hard disks, diskette, my-disk", ["disk"]),
        ("an apple and Apple and APPLE", ["Apple"]),
        ("Dogs, dog's dogma, boxes", ["Dogs", "dog", "boxes"]),
        ("C++ and C+ and C++11", ["C++", "C++"]),
        ("操作系统和系统软件", ["操作系统", "系统"]),
        ("l'État, l'état", ["État"]),
        ("İdisk disk", ["disk"]),
        ("", []),
    ],
)
def test_terms_are_whole_words_the_longest_first(text, terms) -> None:
    matches = GLOSSARY.find(text)
    assert [text[match.start : match.end] for match in matches] == terms


@given(st.text(alphabet="dDogsiskh ard+C操作系统 İ", max_size=40))
def test_matches_are_apart_and_in_order(text: str) -> None:
    end = 0
    for match in GLOSSARY.find(text):
        assert end <= match.start < match.end <= len(text)
        end = match.end


@pytest.mark.parametrize(
    ("entry", "text", "times"),
    [
        (Entry("a", "comissão"), "A comissão. Comissão e comissões", 2),
        (Entry("a", "comissão", True), "A comissão e comissões, comício", 2),
        (Entry("a", "IBM"), "ibm IBM", 1),
        (Entry("a", "disco rígido", True), "discos rígidos, disco", 1),
        (Entry("a", "系统"), "操作系统系统", 2),
        (Entry("a", "cão", True), "cão cães", 1),
    ],
)
def test_translations_are_counted(entry, text, times) -> None:
    assert count(entry, text) == times


def test_many_terms_are_searched_in_linear_time() -> None:
    glossary = Glossary([Entry(f"word{number} one", "x") for number in range(20_000)])
    text = "word7 two word9 one " * 2_000
    glossary.find("")
    began = perf_counter()
    assert len(glossary.find(text)) == 2_000
    assert perf_counter() - began < 5
