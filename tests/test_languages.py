"""Codes of languages: one normal form for every spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.catalog import Pair
from outrider.languages import AUTO, language_name, match_codes, normalise_code

LANGUAGES = st.sampled_from(["de", "en", "pt", "sr", "zh", "nb", "ceb", "xq"])
SCRIPTS = st.sampled_from(["", "Latn", "Cyrl", "Hans", "Hant"])
REGIONS = st.sampled_from(["", "BR", "CN", "TW", "DE", "419"])
CODES = st.tuples(LANGUAGES, SCRIPTS, REGIONS).map(lambda parts: "-".join(filter(None, parts)))


@pytest.mark.parametrize(
    ("codes", "normal"),
    [
        (["zh", "ZH", "zh-Hans", "zh-CN", "zh_CN", "zh-SG", "zho_Hans", "cmn", " zh "], "zh"),
        (["zh-Hant", "zh-TW", "zh_HK", "zho_Hant", "zt", "ZH-hant-tw"], "zh-Hant"),
        (["nb", "no", "NO", "nob_Latn", "nor"], "nb"),
        (["pt-BR", "pt_BR", "PT-br", "pb", "por-BR"], "pt-BR"),
        (["de", "deu", "DEU_Latn", "__de__", "de_XX"], "de"),
        (["he", "iw", "heb_Hebr"], "he"),
        (["sr", "sr-Cyrl", "srp_Cyrl"], "sr"),
        (["sr-Latn", "srp_Latn"], "sr-Latn"),
        (["Auto", "AUTO"], AUTO),
    ],
)
def test_one_language_has_one_code(codes: list[str], normal: str) -> None:
    assert {normalise_code(code) for code in codes} == {normal}


@given(st.text(max_size=12) | CODES)
def test_a_normal_code_is_its_own_normal_form(code: str) -> None:
    normal = normalise_code(code)
    assert normalise_code(normal) == normal


@given(CODES, st.data())
def test_case_and_separator_have_no_effect(code: str, data: st.DataObject) -> None:
    changed = data.draw(st.sampled_from([code.upper(), code.lower(), code.title()]))
    changed = changed.replace("-", data.draw(st.sampled_from("-_")))
    assert normalise_code(changed) == normalise_code(code)


@given(CODES, st.sets(CODES))
def test_matches_are_known_and_of_one_language_and_script(code: str, codes: set[str]) -> None:
    known = {normalise_code(one) for one in codes}
    normal, found = normalise_code(code), match_codes(code, known)
    assert len(set(found)) == len(found)
    assert set(found) <= known
    if normal in known:
        assert found[0] == normal
    language, _, rest = normal.partition("-")
    script = next((part for part in rest.split("-") if part.istitle()), "")
    for one in found:
        assert one.split("-")[0] == language
        assert next((part for part in one.split("-")[1:] if part.istitle()), "") == script


@given(LANGUAGES, LANGUAGES)
def test_a_pair_has_normal_codes(source: str, target: str) -> None:
    pair = Pair.parse(f"{source.upper()}-{target}")
    assert pair == (normalise_code(source), normalise_code(target))
    assert Pair.parse(str(pair)) == pair


def test_names() -> None:
    assert [language_name(code) for code in ("de", "zh-Hant", "nb", "xq")] == [
        *("German", "Chinese (traditional)", "Norwegian Bokmål", "xq")
    ]
