"""Subtitles: sentences over several cues, and what stays as it was."""

import html
import re
import time
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from outrider.documents.marked import MarkedText
from outrider.documents.subtitles import BREAK, read
from outrider.documents.text_file import TextDocument
from outrider.documents.transfer import transfer
from outrider.errors import InputError
from outrider.text.alignment import Link
from tests.helpers.generated_texts import DOCUMENTS, marking, marks, mirroring, sentence

TIMING = re.compile(r"(?:^[^\n]*\n)?^[^\n]*-->[^\n]*\n", re.M)
NOTE = re.compile(r"NOTE do not\r?\ntranslate\r?\n")
TAG = re.compile(r"</?(?:[biu]|c\.x|c|font|font color=\"red\")>|<00:01.000>")


def srt(*cues: str) -> str:
    """Write cues that follow each other without a pause."""
    times = (f"00:00:{2 * n:02},000 --> 00:00:{2 * n + 1:02},900" for n in range(len(cues)))
    return "".join(
        f"{n}\n{time}\n{cue}\n\n" for n, (time, cue) in enumerate(zip(times, cues, strict=True), 1)
    )


def texts(content: str) -> list[str]:
    """Return the texts, with `|` where a cue begins."""
    found = []
    for marked in read(content.encode()).texts:
        text = marked.text
        for span in reversed(marked.spans):
            if span.open == BREAK:
                text = f"{text[: span.start]}|{text[span.start :]}"
        found.append(text)
    return found


def translated(content: str, *translations: str) -> list[str]:
    """Write translations without alignment; return the cues."""
    document = read(content.encode())
    pairs = zip(document.texts, translations, strict=True)
    written = document.write([transfer(old, new, ()) for old, new in pairs]).decode()
    assert TIMING.findall(written) == TIMING.findall(content)
    return [cue.strip() for cue in TIMING.split(written)[1:]]


def test_a_sentence_over_several_cues_is_one_text() -> None:
    # LibreTranslate/argos-translate-files 17 and LibreTranslate 758
    content = srt(
        "Over a century ago, beings that\nprey on humans suddenly appeared.",
        "Their absolutely overwhelming strength",
        "quickly pushed humanity to\nthe brink of extinction.",
    )
    assert texts(content) == [
        "Over a century ago, beings that prey on humans suddenly appeared.",
        "Their absolutely overwhelming strength "
        "|quickly pushed humanity to the brink of extinction.",
    ]
    french = "Leur force absolument écrasante a vite poussé l'humanité au bord de l'extinction."
    document = read(content.encode())
    words = Link((0, 38), (0, 31)), Link((39, 91), (32, len(french)))
    first = transfer(
        document.texts[0],
        "Il y a plus d'un siècle, des êtres qui chassent les humains sont soudain apparus.",
        (),
    )
    written = document.write([first, transfer(document.texts[1], french, words)]).decode()
    assert TIMING.split(written)[1:] == [
        "Il y a plus d'un siècle, des êtres\nqui chassent les humains sont soudain apparus.\n\n",
        "Leur force absolument écrasante\n\n",
        "a vite poussé l'humanité\nau bord de l'extinction.\n\n",
    ]


def test_words_of_a_sentence_are_not_translated_alone() -> None:
    # lingarr 48
    content = srt("We can make a little boat out of\ncardboard and pretend it's a cruise.")
    assert texts(content) == [
        "We can make a little boat out of cardboard and pretend it's a cruise."
    ]


def test_a_sentence_that_ends_with_its_cue_stays_in_it() -> None:
    # SubtitleEdit 9394
    content = srt(
        "El pájaro azul es hermoso.\nEstoy asombrado.",
        "Khi gặp anh ấy, tôi nhận ra",
        "rằng không yêu tôi như tôi nghĩ.",
    )
    assert texts(content) == [
        "El pájaro azul es hermoso. Estoy asombrado.",
        "Khi gặp anh ấy, tôi nhận ra |rằng không yêu tôi như tôi nghĩ.",
    ]
    assert translated(
        content,
        "The blue bird is beautiful. I am amazed.",
        "When I met him, I realised that he didn't love me as I thought.",
    ) == [
        "The blue bird is beautiful. I am amazed.",
        "When I met him, I realised",
        "that he didn't love me as I thought.",
    ]


@pytest.mark.parametrize(
    ("cues", "expected"),
    [
        (["- Hi.\n- Hello, Mr.", "Smith."], ["Hi.", "Hello, Mr. |Smith."]),
        (["- Where is\n- Here."], ["Where is", "Here."]),
        (["♪ Get it out\nGet it out come on ♪"], ["Get it out Get it out come on"]),
        (["♪ Get it out", "♪ Come on"], ["Get it out", "Come on"]),
        (["[door slams]\nI know", "that."], ["door slams", "I know |that."]),
        (["I know. [sighs]", "that."], ["I know.", "sighs", "that."]),
        (["(laughing)\nNo"], ["laughing", "No"]),
        (["He said (again) no"], ["He said (again) no"]),
        (["（田中）おはよう"], ["田中", "おはよう"]),
        (["JOHN: I think", "MARY: No"], ["JOHN: I think", "MARY: No"]),
        (["It's -5 today", "-5, really"], ["It's -5 today |-5, really"]),
        (["今天天气很好，我们", "去公园吧。"], ["今天天气很好，我们|去公园吧。"]),
        (["It's... you know...", "the thing."], ["It's... you know... |the thing."]),
        (["One line\n\nand another"], ["One line |and another"]),  # lingarr 78
        (["{\\an8}Sign", "and speech"], ["Sign", "and speech"]),
        (["...", "?!", "1984"], []),
    ],
)
def test_speakers_songs_and_sounds(cues: list[str], expected: list[str]) -> None:
    content = srt(*cues)
    assert texts(content) == expected
    document = read(content.encode())
    changed = document.write([marking(text) for text in document.texts]).decode()
    assert payload(changed).replace("ʹ", "") == payload(content)


def test_a_pause_ends_a_sentence() -> None:
    content = "1\n00:00:01,000 --> 00:00:02,000\nI think\n\n2\n00:00:0{},600 --> 00:00:09,000\nso\n"
    assert texts(content.format(3)) == ["I think", "so"]
    assert texts(content.format(2)) == ["I think |so"]


def test_tags_stay_where_they_were() -> None:
    content = srt(
        "{\\an8}<i>All in italics,</i>",
        '<font color="#ff0000">a <b>bold</b> word</font>',
        "and <i>unclosed words.",
    )
    document = read(content.encode())
    (text,) = document.texts[1:]
    assert [(span.open, span.close) for span in text.spans] == [
        ("<b>", "</b>"),
        (BREAK, ""),
        ("<i>", ""),
    ]
    assert document.texts[0].text == "All in italics,"
    written = document.write([marking(text) for text in document.texts]).decode()
    assert "{\\an8}<i>Allʹ inʹ italicsʹ,</i>\n" in written
    assert '<font color="#ff0000">aʹ <b>boldʹ</b> wordʹ</font>\n' in written
    assert "andʹ <i>unclosedʹ wordsʹ.\n" in written


def test_webvtt() -> None:
    content = (
        "WEBVTT - a title\r\n\r\nSTYLE\r\n::cue { color: red }\r\n\r\nNOTE\r\nnot a text\r\n\r\n"
        "REGION\r\nid:fred\r\n\r\nintro\r\n00:01.000 --> 00:02.000 line:0 position:20%\r\n"
        "<v.loud Mary Ann>Salt &amp; <c.yellow>pepper</c> are <00:00:01.500>here\r\n\r\n"
        "NOTE 00:01\r\n\r\n00:02.100 --> 01:00:03.000 align:start\r\nand 1 &lt; 2.\r\n"
    )
    document = read(content.encode())
    (text,) = document.texts
    assert text.text == "Salt & pepper are here and 1 < 2."
    assert [span.open for span in text.spans] == ["<c.yellow>", "<00:00:01.500>", BREAK]
    assert document.write([text]) == content.encode()
    written = document.write([marking(text)]).decode()
    assert written.replace("ʹ", "") == content
    assert "<v.loud Mary Ann>Saltʹ &amp; <c.yellow>pepperʹ</c> areʹ" in written


def test_a_cut_is_not_inside_a_tag() -> None:
    content = srt("I saw the <i>Great Gatsby</i>", "with my sister yesterday evening.")
    document = read(content.encode())
    (text,) = document.texts
    new = "Yesterday evening I saw the Great Gatsby film with her."
    start = new.index("Great")
    moved = MarkedText(
        new,
        (
            replace(text.spans[0], start=start, end=start + 17),
            replace(text.spans[1], start=34, end=34),
        ),
    )
    written = document.write([moved]).decode()
    assert "Yesterday evening I saw the\n\n2\n" in written
    assert "<i>Great Gatsby film</i> with her." in written


def test_chinese_is_cut_between_words_of_other_scripts() -> None:
    content = srt("In 1984 I learnt Python", "and it was wonderful.")
    first, second = translated(content, "我在1984年学会了Python而且非常棒。")
    assert first + second == "我在1984年学会了Python而且非常棒。"
    assert "Python" in first or "Python" in second
    long = "他说" * 30 + "。"
    (cue,) = translated(srt("word"), long)
    assert len(cue.split("\n")) == 2
    assert cue.replace("\n", "") == long


def test_a_translation_shorter_than_its_cues_leaves_the_last_empty() -> None:
    assert translated(srt("a", "b", "c d"), "one two") == ["one", "two", ""]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_encodings_and_line_ends(encoding: str, newline: str) -> None:
    content = srt("Café one\ntwo three").replace("\n", newline)
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    data = mark + content.encode(encoding)
    document = read(data)
    assert document.write(document.texts) == data
    new = "uno due tre quattro cinque sei sette otto nove dieci"
    written = document.write([MarkedText(new)])
    assert written.startswith(data[:2])
    assert written[len(mark) :].decode(encoding) == content.replace(
        f"Café one{newline}two three",
        f"uno due tre quattro cinque{newline}sei sette otto nove dieci",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1\n00:00:01,000 --> 00:00:02,000\ncaf\xe9\n", "byte 35 of the file is not UTF-8.*iconv"),
        (b"1\n00:00:01,000 --> 00:00:02,000\na\0b\n", "NUL bytes"),
        (b"some text", "no subtitles"),
    ],
)
def test_refused_files(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(content)


@pytest.mark.parametrize(
    "text",
    [
        "<i>" * 25_000 + "a" + "</i>" * 25_000,
        "<i>a<b>b</i>c</b>" * 5_000,
        "<" * 50_000 + "a",
        "word " * 25_000,
        "好" * 50_000,
        "[a(" * 15_000,
        "- a\n" * 12_000,
        "{\\a" * 15_000,
        "a: " * 15_000,
        "\n\n\n" * 15_000 + "a",
    ],
)
def test_giant_cues_take_linear_time(text: str) -> None:
    content = srt(text, text)
    start = time.process_time()
    document = read(content.encode())
    assert document.write(document.texts) == content.encode()
    document.write([marking(text) if len(text.spans) < 50 else text for text in document.texts])
    assert time.process_time() - start < 6


def test_giant_files_take_linear_time() -> None:
    content = "".join(srt("word", "and", "-", "00") for _ in range(2_000))
    start = time.process_time()
    document = read(content.encode())
    document.write([MarkedText(f"a {text.text}", text.spans) for text in document.texts])
    assert time.process_time() - start < 6


def cue(random: Random, vtt: bool) -> str:
    """Write the text of a cue, with whole and broken mark-up."""
    lines = []
    for _ in range(random.choice([1, 1, 2, 2, 3])):
        line = sentence(random, 6)
        if vtt:
            line = line.replace("&", "&amp;").replace("<", "&lt;")
        words = line.split(" ")
        if random.random() < 0.4:
            name = random.choice(["i", "b", "u", "c.x" if vtt else 'font color="red"'])
            start = random.randrange(len(words))
            end = random.randrange(start, len(words))
            words[start] = f"<{name}>{words[start]}"
            if random.random() < 0.9:
                words[end] += f"</{name.split(' ')[0].split('.')[0]}>"
        if random.random() < 0.1:
            words.insert(
                random.randrange(len(words)), random.choice(["</b>", "<00:01.000>", "<i>"])
            )
        line = " ".join(words)
        kind = random.random()
        if kind < 0.1:
            line = f"- {line}"
        elif kind < 0.15:
            line = f"♪ {line} ♪"
        elif kind < 0.2:
            line = f"[{sentence(random, 2)}] {line}".replace("&", "and").replace("<", "")
        elif kind < 0.22:
            line += "\n" * (not vtt)
        lines.append(line)
    text = "\n".join(lines)
    return f"<i>{text}</i>" if random.random() < 0.1 else text


def file(random: Random) -> str:
    """Write a file with some cues."""
    vtt = random.random() < 0.5
    parts = ["WEBVTT\n\n"] if vtt else []
    at = 0
    for number in range(random.randint(1, 8)):
        if vtt and random.random() < 0.1:
            parts.append("NOTE do not\ntranslate\n\n")
        times = []
        for step in (random.choice([0, 100, 900, 2000]), 1500):
            at += step
            mark = "." if vtt else ","
            times.append(f"00:{at // 60000:02}:{at // 1000 % 60:02}{mark}{at % 1000:03}")
        settings = " line:0" if vtt and random.random() < 0.3 else ""
        parts.append(f"{number}\n{times[0]} --> {times[1]}{settings}\n{cue(random, vtt)}\n\n")
    return "".join(parts).replace("\n", random.choice(["\n", "\r\n"]))


def payload(content: str) -> str:
    """Return the texts of the cues without white space."""
    return re.sub(r"\s", "", TIMING.sub("", NOTE.sub("", content)))


def letters(content: str) -> str:
    """Return the texts of the cues without tags, notes and white space."""
    return html.unescape(payload(TAG.sub("", content)).replace("♪", ""))


def check(seed: int) -> None:
    content = file(Random(seed))
    document: TextDocument = read(content.encode())
    assert document.write(document.texts) == content.encode()
    source = document.texts

    new = [marking(text) for text in source]
    written = document.write(new).decode()
    assert TIMING.findall(written) == TIMING.findall(content)
    assert letters(written).replace("ʹ", "") == letters(content)
    assert marks(written) == sum(marks(text.text) for text in new)
    assert Counter(TAG.findall(written)) == Counter(TAG.findall(content))

    written = document.write([mirroring(text) for text in source]).decode()
    assert TIMING.findall(written) == TIMING.findall(content)
    assert NOTE.findall(written) == NOTE.findall(content)
    assert Counter(TAG.findall(written)) == Counter(TAG.findall(content))
    assert Counter(letters(written)) == Counter(letters(content))


def test_generated_files() -> None:
    for seed in range(DOCUMENTS):
        try:
            check(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
