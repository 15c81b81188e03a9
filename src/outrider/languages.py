"""Codes of languages in one form, and their names.

Clients, models and lists of models write one language in many ways: `zh`, `zh-Hans`, `zh-CN`,
`zho_Hans`, `ZH`.
The normal form is that of BCP 47 with the shortest language code, without the usual script of the
language: `zh`, `zh-Hant`, `pt-BR`, `nb`.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

AUTO = "auto"
"""A language to detect, the only target language, or an unknown language."""

_TABLE = """
Latn
af afr Afrikaans, az azj,aze Azerbaijani, bs bos Bosnian, ca cat Catalan, ceb ceb Cebuano,
cs ces Czech, cy cym Welsh, da dan Danish, de deu German, en eng English, eo epo Esperanto,
es spa Spanish, et est,ekk Estonian, eu eus Basque, fi fin Finnish, fo fao Faroese, fr fra French,
fy fry Western Frisian, ga gle Irish, gd gla Scottish Gaelic, gl glg Galician, ha hau Hausa,
hr hrv Croatian, ht hat Haitian Creole, hu hun Hungarian, id ind Indonesian, ig ibo Igbo,
is isl Icelandic, it ita Italian, jv jav Javanese, ku kmr,kur Kurdish, la lat Latin,
lb ltz Luxembourgish, lg lug Ganda, ln lin Lingala, lt lit Lithuanian, lv lvs,lav Latvian,
mg plt,mlg Malagasy, mi mri Maori, ms zsm,msa Malay, mt mlt Maltese, nb nob,nor Norwegian Bokmål,
nl nld Dutch, nn nno Norwegian Nynorsk, oc oci Occitan, om gaz,orm Oromo, pl pol Polish,
pt por Portuguese, qu quy,que Quechua, ro ron Romanian, rw kin Kinyarwanda, sk slk Slovak,
sl slv Slovenian, sn sna Shona, so som Somali, sq als,sqi Albanian, su sun Sundanese,
sv swe Swedish, sw swh,swa Swahili, tk tuk Turkmen, tl tgl,fil Tagalog, tn tsn Tswana,
tr tur Turkish, uz uzn,uzb Uzbek, vi vie Vietnamese, wo wol Wolof, xh xho Xhosa, yo yor Yoruba,
zu zul Zulu;
Cyrl
ba bak Bashkir, be bel Belarusian, bg bul Bulgarian, kk kaz Kazakh, ky kir Kyrgyz,
mk mkd Macedonian, mn khk,mon Mongolian, ru rus Russian, sr srp Serbian, tg tgk Tajik,
tt tat Tatar, uk ukr Ukrainian;
Arab
ar arb,ara Arabic, ckb ckb Central Kurdish, fa pes,fas Persian, ps pbt,pus Pashto, sd snd Sindhi,
ug uig Uyghur, ur urd Urdu;
Deva
hi hin Hindi, mr mar Marathi, ne npi,nep Nepali, sa san Sanskrit;
Beng
as asm Assamese, bn ben Bengali;
Hebr
he heb Hebrew, yi ydd,yid Yiddish;
Grek
el ell Greek;
Armn
hy hye Armenian;
Geor
ka kat Georgian;
Ethi
am amh Amharic, ti tir Tigrinya;
Guru
pa pan Punjabi;
Gujr
gu guj Gujarati;
Orya
or ory,ori Odia;
Taml
ta tam Tamil;
Telu
te tel Telugu;
Knda
kn kan Kannada;
Mlym
ml mal Malayalam;
Sinh
si sin Sinhala;
Thai
th tha Thai;
Laoo
lo lao Lao;
Khmr
km khm Khmer;
Mymr
my mya Burmese;
Tibt
bo bod Tibetan;
Jpan
ja jpn Japanese;
Kore
ko kor Korean;
Hans
zh zho,cmn Chinese;
Hant
yue yue Cantonese
"""
"""Usual script, then code, codes of ISO 639-3 and name of each language."""


def _read_table() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return names, short codes and usual scripts."""
    names: dict[str, str] = {}
    codes: dict[str, str] = {}
    scripts: dict[str, str] = {}
    for group in _TABLE.split(";"):
        script, rows = group.split(maxsplit=1)
        for row in re.split(r",\s", rows):
            code, longer, name = row.split(maxsplit=2)
            names[code], scripts[code] = " ".join(name.split()), script
            codes |= dict.fromkeys(longer.split(","), code)
    return names, codes, scripts


_NAMES, _SHORT, _SCRIPTS = _read_table()
_NAMES |= {
    "zh-Hant": "Chinese (traditional)",
    "pt-BR": "Portuguese (Brazil)",
    "sr-Latn": "Serbian (Latin)",
    AUTO: "Unknown",
}
_SHORT |= {"iw": "he", "in": "id", "ji": "yi", "jw": "jv", "no": "nb", "mo": "ro"}
_WHOLE = {"zt": "zh-Hant", "pb": "pt-BR"}
"""Codes of LibreTranslate and Argos."""
_TRADITIONAL = {"TW", "HK", "MO"}
"""Regions that write Chinese in the traditional script."""
_CODE = re.compile(
    "(?P<language>[a-z]{2,3})(?:-(?P<script>[a-z]{4}))?(?:-(?P<region>[a-z]{2}|[0-9]{3}))?",
    re.IGNORECASE,
)


class _Parts(NamedTuple):
    language: str
    script: str
    region: str


@lru_cache(maxsize=1024)
def _parts(code: str) -> _Parts | None:
    """Divide a code; None if it has another form."""
    code = code.strip().strip("_").replace("_", "-")
    match = _CODE.fullmatch(_WHOLE.get(code.lower(), code))
    if match is None:
        return None
    language = match["language"].lower()
    language = _SHORT.get(language, language)
    script, region = (match["script"] or "").title(), (match["region"] or "").upper()
    if language == "zh" and not script and region in _TRADITIONAL:
        script = "Hant"
    if script == _SCRIPTS.get(language):
        script = ""
    # mBART writes XX for no region. Chinese is divided by script instead.
    return _Parts(language, script, "" if region == "XX" or language == "zh" else region)


def normalise_code(code: str) -> str:
    """Return the normal form of a language code, such as `zh`, `zh-Hant`, `pt-BR` or `nb`.

    A text that is no language code is returned in lower case.
    """
    parts = _parts(code)
    return code.strip().lower() if parts is None else _write(parts)


def _write(parts: _Parts) -> str:
    return "-".join(filter(None, parts))


def match_codes(code: str, known: Collection[str]) -> list[str]:
    """Return the known languages that a code in any form may mean, the closest first.

    `pt-PT` means `pt-PT` or `pt`, `pt` means `pt` or one of a region, such as `pt-BR`. Scripts are
    not exchanged. The known codes have their normal form.
    """
    wanted, parts = normalise_code(code), _parts(code)
    if parts is None:
        return [wanted] if wanted in known else []
    forms = [wanted, _write(parts._replace(region=""))]
    if not parts.region:
        forms += sorted(one for one in known if one.startswith(f"{wanted}-") and _same(one, parts))
    return [form for form in dict.fromkeys(forms) if form in known]


def _same(code: str, parts: _Parts) -> bool:
    """Whether a code has the same language and script."""
    other = _parts(code)
    return other is not None and other[:2] == parts[:2]


def language_name(code: str) -> str:
    """Return the English name of a language by its normal code, or the code."""
    return _NAMES.get(code, code)
