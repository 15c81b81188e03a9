"""Which of sacreBLEU's tokenizers cuts a text into what BLEU counts.

BLEU compares words, and 13a finds them between spaces. A script that writes none looks like one
long word a sentence to it, and a translation that is right but for a character scores 0.
"""

import re
from collections.abc import Sequence
from importlib.util import find_spec

from outrider.errors import UnsupportedError, nearest

__all__ = ["TOKENIZERS", "check_installed", "check_tokenizer", "tokenizer_for"]

TOKENIZERS = (
    *("auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"),
    *("spm", "flores101", "flores200", "spBLEU-1K"),
)
"""Accepted names: sacreBLEU's, and `auto`, which looks at the script of the references."""

_PACKAGES = {"ja-mecab": ("MeCab", "sacrebleu[ja]"), "ko-mecab": ("mecab_ko", "sacrebleu[ko]")}
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_KANA = re.compile("[\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]")
_UNSPACED = re.compile("[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff]")
"""Thai, Lao, Tibetan, Burmese and Khmer."""
_WORD = re.compile(
    r"[^\W\d_\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u31ff\u3400-\u9fff"
    r"\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)
"""A word of any other script."""


def check_tokenizer(name: str) -> str:
    """Return an accepted name; raise a ValueError that lists them for another."""
    if name not in TOKENIZERS:
        hint = nearest(name, TOKENIZERS)
        raise ValueError(f"got {name!r}{hint}, expected one of {', '.join(TOKENIZERS)}")
    return name


def check_installed(name: str) -> None:
    """Refuse a tokenizer whose package is missing, before hours are spent on what it scores."""
    package, extra = _PACKAGES.get(name, ("sacrebleu", ""))
    if find_spec(package) is None:
        raise UnsupportedError(
            f"the BLEU tokenizer {name} needs {package}, which is not installed: "
            f"pip install '{extra}', or take char"
        )


def tokenizer_for(references: Sequence[str]) -> str:
    """Choose by the script that most of the references are written in."""
    text = "\n".join(references)
    han, kana, hangul, unspaced, words = (
        len(script.findall(text)) for script in (_HAN, _KANA, _HANGUL, _UNSPACED, _WORD)
    )
    if max(han + kana, hangul, unspaced) <= words:
        return "13a"
    if hangul >= max(han + kana, unspaced):
        return _if_installed("ko-mecab")
    if unspaced >= han + kana:
        return "char"
    # Chinese quotes a Japanese word now and then; no Japanese sentence does without kana.
    return _if_installed("ja-mecab") if 20 * kana > han else "zh"


def _if_installed(name: str) -> str:
    return name if find_spec(_PACKAGES[name][0]) is not None else "char"
