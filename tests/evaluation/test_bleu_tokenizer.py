"""The BLEU tokenizer follows the script of the references unless it is given."""

from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU
from typer.testing import CliRunner

from outrider.cli.main import build_app
from outrider.config import build_config
from outrider.errors import ConfigError, UnsupportedError
from outrider.evaluation import metrics as bleu_tokenizer
from outrider.evaluation.metrics import (
    TOKENIZERS,
    check_installed,
    score_translations,
    tokenizer_for,
)
from outrider.run_config import EvaluateConfig

TEXTS = {
    "en": ("The cat sits on the mat.", "13a"),
    "de": ("Die Straße über Köln ist gesperrt.", "13a"),
    "ru": ("Кошка сидит на коврике.", "13a"),
    "ar": ("القطة تجلس على السجادة", "13a"),
    "hi": ("बिल्ली चटाई पर बैठी है।", "13a"),
    "zh": ("我昨天在北京的 Starbucks 喝了一杯咖啡。", "zh"),
    "zh with a little kana": ("他很喜欢那部叫の的漫画，因为里面的故事真的很有意思也很感人。", "zh"),
    "ja": ("猫がマットの上に座っています。", "char"),
    "ko": ("고양이가 매트 위에 앉아 있습니다.", "char"),
    "th": ("แมวนั่งอยู่บนเสื่อ", "char"),
    "my": ("ကြောင်သည် ဖျာပေါ်တွင် ထိုင်နေသည်။", "char"),
    "empty": ("", "13a"),
    "numbers": ("12 345 - 6", "13a"),
}


@pytest.mark.parametrize("language", TEXTS)
def test_the_tokenizer_follows_the_script(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bleu_tokenizer, "find_spec", lambda _: None)
    text, wanted = TEXTS[language]
    assert tokenizer_for([text] * 3) == wanted


@pytest.mark.parametrize(("language", "wanted"), [("ja", "ja-mecab"), ("ko", "ko-mecab")])
def test_a_dictionary_is_used_if_installed(
    language: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bleu_tokenizer, "find_spec", lambda _: object())
    assert tokenizer_for([TEXTS[language][0]]) == wanted


def test_a_few_words_of_another_script_are_ignored() -> None:
    assert tokenizer_for(["Peking (北京) is the capital of China, they say."] * 9) == "13a"


def test_chinese_is_scored_by_character() -> None:
    references = ["我昨天在北京喝了一杯咖啡。", "他们明天要去上海看朋友。"]
    hypotheses = ["我昨天在北京喝了一杯茶。", "他们明天要去上海看朋友。"]
    score = score_translations(hypotheses, references)
    assert score.bleu > 70
    assert "tok:zh" in score.bleu_signature
    assert score_translations(hypotheses, references, tokenize="13a").bleu < score.bleu - 20


def test_the_names_equal_those_of_sacrebleu() -> None:
    assert set(TOKENIZERS) == {"auto", *BLEU.TOKENIZERS}


def test_a_misspelt_name_is_refused_when_read(tmp_path: Path) -> None:
    values = {"source": "a", "reference": "b", "tokenize": "zhh"}
    message = r"tokenize: got 'zhh' \(did you mean 'zh'\?\), expected one of auto, 13a"
    with pytest.raises(ConfigError, match=f"evaluate.{message}"):
        build_config(EvaluateConfig, values, prefix="evaluate.")
    options = ["--source", "a", "--reference", "b", "--tokenize", "zhh"]
    result = CliRunner().invoke(build_app(), ["evaluate", str(tmp_path), *options])
    assert isinstance(result.exception, ConfigError)
    assert "--tokenize: got 'zhh'" in str(result.exception)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bleu_tokenizer, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=r"ja-mecab needs MeCab.*sacrebleu\[ja\]"):
        check_installed("ja-mecab")
