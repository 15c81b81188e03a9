"""Text in a script that the source language does not use gives one warning, other text none."""

import warnings
from pathlib import Path

import pytest

from outrider.errors import ScriptWarning
from outrider.runtime.options import source_languages
from outrider.text.language import ENOUGH, scripts_of, watched


def warned(lines: list[str], *languages: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert list(watched(lines, languages)) == lines
    assert all(one.category is ScriptWarning for one in caught)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("text", "language", "script"),
    [
        ("你好", "en", "Chinese"),
        ("请问最近的地铁站在哪里？", "eng_Latn", "Chinese"),
        ("我的 iPhone 坏了，怎么办？", "en_XX", "Chinese"),
        ("駅はどこですか", "de", "Hiragana"),
        ("駅はどこですか", "zh", "Hiragana"),
        ("역이 어디에 있습니까?", "en", "Hangul"),
        ("Где находится вокзал?", "en", "Cyrillic"),
        ("Где находится вокзал?", "srp_Latn", "Cyrillic"),
        ("أين المحطة؟", "fr", "Arabic"),
        ("स्टेशन कहाँ है?", "en", "Devanagari"),
        ("Where is the station?", "zh", "Latin"),
        ("where is the station", "ru", "Latin"),
    ],
)
def test_another_script_gives_one_warning(text: str, language: str, script: str) -> None:
    expected = f"the text is in {script} script, but the model reads {language}; "
    assert [one.startswith(expected) for one in warned([text] * 1000, language)] == [True]
    assert [one.startswith(expected) for one in warned([text], language)] == [True]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where is the station?", "en"),
        ("12:30, 3.14 + 5 = 8.14 %", "zh"),
        ("https://example.com/some/long/path/of/words someone@example.com", "zh"),
        ("😀 👍🏽 🎉", "en"),
        ("α + β = γ, µm, Ω", "en"),
        ("The poet Li Bai (李白) lived in Chang'an.", "en"),
        ("Fyodor Dostoevsky (Фёдор Достоевский) was a Russian novelist and essayist.", "en"),
        ("PyTorch", "zh"),
        ("NVIDIA GeForce RTX", "ja"),
        ("我用 PyTorch 和 machine learning 来做 natural language processing。", "zh"),
        ("pip install outrider 就可以了", "zh"),
        ("漢字だけでなく", "ja"),
        ("東京都", "ja"),
        ("韓國語 漢字", "ko"),
        ("Живела Србија", "sr"),
        ("Dobar dan svima", "sr"),
        ("请问", "xx"),
        ("请问", ""),
        ("", "en"),
    ],
)
def test_no_false_alarm(text: str, language: str) -> None:
    assert warned([text], language) == []


def test_without_a_language_there_is_no_warning() -> None:
    assert warned(["请问最近的地铁站在哪里？"]) == []
    assert warned(["请问最近的地铁站在哪里？"], "zh", "en") == []
    assert len(warned(["请问最近的地铁站在哪里？"], "de", "en")) == 1


def test_one_line_of_another_script_in_a_long_text_gives_no_warning() -> None:
    text = ["Where is the nearest underground station?"] * (ENOUGH // 10)
    assert warned([*text, *["请问最近的地铁站在哪里？"] * 99], "en") == []


def test_codes_of_scripts_and_languages() -> None:
    assert scripts_of(["eng_Latn"]) == scripts_of(["en_XX"]) == scripts_of(["__en__"]) == {"LATIN"}
    assert scripts_of(["zho_Hans"]) == scripts_of(["zh-CN"]) == {"CJK"}
    assert scripts_of(["zh", "en"]) == {"CJK", "LATIN"}
    assert scripts_of(["en", "xx"]) == set(), "one that is unknown may use any script"


@pytest.mark.parametrize(
    ("file", "content", "languages"),
    [
        ("metadata.json", '{"from_code": "zh", "to_code": "en"}', ("zh",)),
        ("tokenizer_config.json", '{"source_lang": "fr", "target_lang": "en"}', ("fr",)),
        ("model.enpt.intgemm.alphas.bin", "", ("en",)),
        ("run.yaml", "data:\n  clean:\n    source_language: de\n", ("de",)),
        ("run.yaml", "data:\n  clean:\n    source_language: null\n", ()),
        ("README.md", "---\nlanguage: [zh, en]\n---\n", ("zh", "en")),
        ("README.md", "---\nlicense: mit\nlanguage:\n- de\n- en\ntags:\n- it\n---\n", ("de", "en")),
        ("README.md", "---\nlicense: mit\n---\nlanguage: en\n", ()),
        ("README.md", "---\nlanguage: multilingual\n---\n", ()),
        ("metadata.json", "damaged", ()),
    ],
)
def test_languages_are_read_from_the_folder(
    tmp_path: Path, file: str, content: str, languages: tuple[str, ...]
) -> None:
    (tmp_path / file).write_text(content)
    assert source_languages(tmp_path) == languages
