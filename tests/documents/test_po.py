"""Catalogues of gettext: what is translated, and what stays as it was."""

import gettext
import io
import re
import shutil
import subprocess
import time
from pathlib import Path
from random import Random

import pytest

from outrider.documents import read_document
from outrider.documents.marked import MarkedText
from outrider.documents.po import read
from outrider.documents.translate import translate_marked
from outrider.errors import InputError
from tests.helpers.generated_texts import DOCUMENTS, marking, sentence
from tests.helpers.pseudo import upper

HEADER = (
    'msgid ""\nmsgstr ""\n"Project-Id-Version: x\\n"\n"Language: de\\n"\n'
    '"Content-Type: text/plain; charset=UTF-8\\n"\n'
    '"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
)


def texts(content: str, target: str = "") -> list[str]:
    return [marked.text for marked in read(content.encode(), target).texts]


def translated(content: str, target: str = "") -> str:
    document = read(content.encode(), target)
    assert document.write(document.texts) == content.encode()
    return document.write(translate_marked(document.texts, upper)).decode()


def filled(content: str) -> str:
    return translated(HEADER + content)[len(HEADER) :]


def compiled(content: bytes, folder: Path, *options: str) -> dict[str, str]:
    """Compile a catalogue with msgfmt and return what gettext reads."""
    if not shutil.which("msgfmt"):
        pytest.skip("msgfmt is not installed")
    po, mo = folder / "a.po", folder / "a.mo"
    po.write_bytes(content)
    command = ["msgfmt", *options, "-o", str(mo), str(po)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    catalogue = gettext.GNUTranslations(io.BytesIO(mo.read_bytes()))
    return dict(catalogue._catalog)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ('msgid "Open it"\nmsgstr ""\n', 'msgid "Open it"\nmsgstr "OPEN IT"\n'),
        ('msgid "done"\nmsgstr "fertig"\n', 'msgid "done"\nmsgstr "fertig"\n'),
        ('#, fuzzy\nmsgid "a"\nmsgstr "b"\n', '#, fuzzy\nmsgid "a"\nmsgstr "b"\n'),
        ('#~ msgid "a"\n#~ msgstr ""\n', '#~ msgid "a"\n#~ msgstr ""\n'),
        ('msgid "%d"\nmsgstr ""\n', 'msgid "%d"\nmsgstr ""\n'),
        (
            '# me\n#. you\n#: a.c:1\n#| msgid "x"\nmsgctxt "menu"\nmsgid "a"\nmsgstr ""',
            '# me\n#. you\n#: a.c:1\n#| msgid "x"\nmsgctxt "menu"\nmsgid "a"\nmsgstr "A"',
        ),
        (
            'msgid ""\n"say \\"a\\"\\n"\n"b\\n"\nmsgstr ""\n',
            'msgid ""\n"say \\"a\\"\\n"\n"b\\n"\nmsgstr ""\n"SAY \\"A\\"\\n"\n"B\\n"\n',
        ),
        (
            'msgid "\\ta\\\\ \\101\\n"\nmsgstr ""\n',
            'msgid "\\ta\\\\ \\101\\n"\nmsgstr "\\tA\\\\ A\\n"\n',
        ),
        (
            '#, c-format\nmsgid "%s and %2$d"\nmsgstr ""\n',
            '#, c-format\nmsgid "%s and %2$d"\nmsgstr "%s AND %2$d"\n',
        ),
        (
            'msgid "one"\nmsgid_plural "%d"\nmsgstr[0] ""\nmsgstr[1] ""\n',
            'msgid "one"\nmsgid_plural "%d"\nmsgstr[0] "ONE"\nmsgstr[1] "%d"\n',
        ),
        (
            'msgid "one"\nmsgid_plural "%d of"\nmsgstr[0] "x"\nmsgstr[1] ""\n',
            'msgid "one"\nmsgid_plural "%d of"\nmsgstr[0] "x"\nmsgstr[1] ""\n',
        ),
    ],
)
def test_only_empty_translations_are_written(entry: str, expected: str) -> None:
    assert filled(entry) == expected


def test_a_translation_that_equals_its_source_stays_empty() -> None:
    content = (HEADER + 'msgid "OK"\nmsgstr ""\n').encode()
    assert read(content).write([MarkedText("OK")]) == content


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("_File", "Fenster", "_Fenster"),
        ("_File", "neue Fenster", "neue _Fenster"),
        ("Save &As", "Speichern unter", "&Speichern unter"),
        ("_Open...", "打开...", "打开(_O)..."),
        ("file_name of", "Dateiname", "Dateiname"),
        ("AT&T", "T", "T"),
        ("a &amp; b", "x", "x"),
    ],
)
def test_access_keys(source: str, translation: str, expected: str) -> None:
    document = read(f'{HEADER}msgid "{source}"\nmsgstr ""\n'.encode())
    assert ("_" in document.texts[0].text) == (expected == "Dateiname")
    written = document.write([MarkedText(translation)]).decode()
    assert written.endswith(f'msgstr "{expected}"\n')


def test_an_access_key_inside_a_word_needs_others_in_the_file() -> None:
    assert texts(f'{HEADER}msgid "E_xit"\nmsgstr ""\n') == ["E_xit"]
    both = f'{HEADER}msgid "_File"\nmsgstr ""\nmsgid "E_xit"\nmsgstr ""\n'
    assert texts(both) == ["File", "Exit"]


@pytest.mark.parametrize(
    ("target", "forms"),
    [
        ("de", ["ONE FILE\\n", "%d FILES\\n"]),
        ("fr", ["%d FILES\\n"] * 2),
        ("ru", ["%d FILES\\n"] * 3),
        ("zh-CN", ["%d FILES\\n"]),
        ("ar", ["%d FILES\\n"] * 6),
    ],
)
def test_plural_forms_of_the_target_language(target: str, forms: list[str], tmp_path: Path) -> None:
    content = (
        'msgid ""\nmsgstr ""\n"Language: \\n"\n"Content-Type: text/plain; charset=CHARSET\\n"\n'
        '"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"\n\n'
        '#, c-format\nmsgid "one file\\n"\nmsgid_plural "%d files\\n"\n'
        'msgstr[0] ""\nmsgstr[1] ""\n'
    )
    written = translated(content, target)
    assert re.findall(r'^msgstr\[\d\] "(.*)"$', written, re.M) == forms
    assert f'"Language: {target.replace("-", "_")}\\n"\n' in written
    assert f"nplurals={len(forms)};" in written
    assert "INTEGER" not in written
    compiled(written.encode(), tmp_path, "--check-format", "--check-domain")


def test_a_header_without_plural_forms_gets_them() -> None:
    header = 'msgid ""\nmsgstr ""\n"Language: pl\\n"\n'
    plural = '\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    written = translated(header + plural)
    assert written.startswith(header + '"Plural-Forms: nplurals=3; plural=(n==1')
    assert 'msgstr[2] "B"\n' in written
    assert translated(header + '\nmsgid "a"\nmsgstr ""\n').startswith(header + "\n")


def test_a_translation_with_other_directives_is_fuzzy(tmp_path: Path) -> None:
    content = f'{HEADER}#, c-format\nmsgid "%d files"\nmsgstr ""\n'.encode()
    written = read(content).write([MarkedText("files")])
    assert b'#, fuzzy, c-format\nmsgid "%d files"\nmsgstr "files"\n' in written
    assert "%d files" not in compiled(written, tmp_path, "--check")


def test_the_charset_of_the_header() -> None:
    header = HEADER.replace("UTF-8", "ISO-8859-1")
    content = f'{header}msgid "café"\nmsgstr ""\n'.encode("latin-1")
    document = read(content)
    assert document.write([MarkedText("thé")]) == content[:-3] + '"thé"\n'.encode("latin-1")
    with pytest.raises(InputError, match="'茶' cannot be written in ISO-8859-1"):
        document.write([MarkedText("茶")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('msgid "a"\nmsgstr "\n', "line 2 of the file is not gettext"),
        ('"a"\n', "line 1 .* not gettext"),
        ('msgid "a"\nmsgstr[1] ""\n', r"line 2 of the file has msgstr\[1\] in a wrong place"),
        ('msgstr ""\n', "line 1 of the file has msgstr in a wrong place"),
        ('msgid ""\nmsgstr "charset=nothing\\n"\n', "the charset nothing of the header is unknown"),
        ('msgid ""\nmsgstr "charset=zip\\n"\n', "the charset zip of the header is unknown"),
        ('msgid "a\0"\nmsgstr ""\n', "NUL bytes"),
    ],
)
def test_damaged_catalogues_are_refused(content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_document(content.encode(), "a.po")


@pytest.mark.parametrize(
    "words",
    [
        '"' + "word " * 100_000 + '"',
        '"a"\n' * 50_000,
        '"' + "\\n" * 100_000 + 'a"',
        '"' + "_a " * 50_000 + '"',
        '"' + "%" * 100_000 + 'a"',
        '"' + "{" * 100_000 + 'a"',
    ],
)
def test_giant_entries_take_linear_time(words: str) -> None:
    content = f'{HEADER}#, c-format\nmsgid {words}\nmsgstr ""\n'.encode()
    start = time.process_time()
    document = read(content)
    document.write([MarkedText(text.text + "!") for text in document.texts])
    assert time.process_time() - start < 6


def quoted(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{text}"'


def file(random: Random) -> tuple[str, dict[str, bool]]:
    """Write a catalogue; return it and whether each message has a translation."""
    parts, known = [HEADER], {}
    for _ in range(random.randint(1, 12)):
        text = sentence(random) + random.choice(["", "", "\n", "\n\tmore\n", " \\ %s"])
        parts += random.choices(["# note\n", "#: a.c:1\n", "#, fuzzy\n", ""], k=2)
        if random.random() < 0.1:
            parts.append(f'#~ msgid {quoted(text)}\n#~ msgstr ""\n\n')
            continue
        words = quoted(text)
        if random.random() < 0.3:
            middle = words.find(" ")
            words = f'""\n{words[:middle]}"\n"{words[middle:]}' if middle > 0 else words
        known[text] = random.random() < 0.3 and not text.endswith("\n")
        if random.random() < 0.2:
            parts.append(f"msgctxt {quoted(sentence(random))}\n")
            known.pop(text)
        if random.random() < 0.2:
            parts.append(f"msgid {words}\nmsgid_plural {quoted('many ' + text)}\n")
            done = '"x"' if known.get(text) else '""'
            parts.append(f"msgstr[0] {done}\nmsgstr[1] {done}\n\n")
            known.pop(text, None)
        else:
            done = '"done"' if known.get(text) else '""'
            parts.append(f"msgid {words}\nmsgstr {done}\n\n")
    return "".join(parts).replace("\n", random.choice(["\n", "\r\n"])), known


SOURCES = re.compile(r'^(?:#[^\n]*|(?:msgctxt|msgid|msgid_plural)[^\n]*(?:\n"[^\n]*)*)\n', re.M)
TRANSLATIONS = re.compile(r'^msgstr(?:\[\d\])? *((?:"[^\n]*\s*)+)', re.M)


def check(seed: int, folder: Path | None) -> None:
    content, known = file(Random(seed))
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    new = [marking(text) for text in document.texts]
    output = document.write(new)
    written = output.decode()
    assert SOURCES.findall(written) == SOURCES.findall(content)
    assert read(output).texts == []
    before = TRANSLATIONS.findall(content)
    after = TRANSLATIONS.findall(written)
    assert len(before) == len(after)
    for old, changed in zip(before, after, strict=True):
        assert old == changed or re.sub(r'["\s]', "", old) == ""
    assert written.count("ʹ") == sum(text.text.count("ʹ") for text in new)
    if folder:
        found = compiled(output, folder, "--check-header", "--use-fuzzy")
        for text, done in known.items():
            assert found[text].replace("ʹ", "") == ("done" if done else text)


def test_generated_catalogues(tmp_path: Path) -> None:
    folder = tmp_path if shutil.which("msgfmt") else None
    for seed in range(DOCUMENTS):
        try:
            check(seed, folder if seed % 20 == 0 else None)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
