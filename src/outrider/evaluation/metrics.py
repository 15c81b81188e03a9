"""Scores of texts against references, by name: for translations, summaries, answers and labels.

    bleu, chrf       sacreBLEU's, with their signatures
    rouge            ROUGE-1, ROUGE-2 and ROUGE-Lsum F of summaries, by the package rouge-score
    accuracy         share of texts that are the reference, letter for letter
    macro_f1         the same for labels: F1 of each label that occurs in the references, their mean
    exact_match      share that is the reference but for case, punctuation, articles and spaces
    token_f1         words shared with the reference, likewise: both as SQuAD scores answers
                     (Rajpurkar et al., 2016)

All are percentages.

Which of sacreBLEU's tokenizers cuts a text into what BLEU counts.

BLEU compares words, and 13a finds them between spaces. A script that writes none looks like one
long word a sentence to it, and a translation that is right but for a character scores 0.

Where parallel decoders fail: words said twice, and texts too short or too long.

repetition rate = words equal to the word before them / all words
length ratio    = words of the translations / words of the references
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import pairwise
from statistics import fmean
from typing import Any

from outrider.errors import ConfigError, InputError, MissingExtraError, UnsupportedError, nearest

__all__ = [
    "METRICS",
    "TOKENIZERS",
    "TranslationScore",
    "check_installed",
    "check_metrics",
    "check_tokenizer",
    "length_ratio",
    "repetition_rate",
    "score",
    "score_translations",
    "tokenizer_for",
]

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


Texts = Sequence[str]


@dataclass(frozen=True)
class TranslationScore:
    """Corpus scores, with the signatures that say exactly how they were computed."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int


def check_metrics(names: Sequence[str], *, key: str = "metrics") -> None:
    """Refuse what is no metric, or is not installed, before hours are spent."""
    if not names:
        raise ConfigError(key, f"names no metric; expected some of {', '.join(METRICS)}")
    for name in names:
        if name not in METRICS:
            expected = f"expected some of {', '.join(METRICS)}"
            raise ConfigError(key, f"unknown {name!r}{nearest(name, METRICS)}; {expected}")
    if "rouge" in names:
        _rouge_scorer()


def score(
    names: Sequence[str], found: Texts, references: Texts, *, tokenize: str = "auto"
) -> dict[str, Any]:
    """Score texts by several metrics; `tokenize` is for BLEU."""
    if len(found) != len(references):
        raise InputError(f"{len(found)} texts against {len(references)} references")
    scores: dict[str, Any] = {}
    if "bleu" in names or "chrf" in names:
        all_scores = asdict(score_translations(found, references, tokenize=tokenize))
        left_out = [name for name in ("bleu", "chrf") if name not in names]
        scores |= {k: v for k, v in all_scores.items() if not k.startswith(tuple(left_out))}
    for name in names:
        if (measure := METRICS[name]) is not None:
            scores |= measure(found, references)
    return scores | {"sentences": len(found)}


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "auto"
) -> TranslationScore:
    """SacreBLEU and chrF of a corpus against one reference per sentence.

    `auto` takes the tokenizer that fits the script of the references; the signature names it.
    """
    if len(hypotheses) != len(references):
        raise InputError(
            f"{len(hypotheses)} translations against {len(references)} references; "
            "source and reference must have the same number of lines"
        )
    from sacrebleu.metrics import BLEU, CHRF

    if tokenize == "auto":
        tokenize = tokenizer_for(references)
    check_installed(tokenize)
    bleu, chrf = BLEU(tokenize=tokenize), CHRF()
    return TranslationScore(
        bleu=bleu.corpus_score(list(hypotheses), [list(references)]).score,
        chrf=chrf.corpus_score(list(hypotheses), [list(references)]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(hypotheses),
    )


def _accuracy(found: Texts, references: Texts) -> dict[str, float]:
    same = [a.strip() == b.strip() for a, b in zip(found, references, strict=True)]
    return {"accuracy": 100 * fmean(same)}


def _macro_f1(found: Texts, references: Texts) -> dict[str, float]:
    said, right = [text.strip() for text in found], [text.strip() for text in references]
    both = Counter(a for a, b in zip(said, right, strict=True) if a == b)
    of_said, of_right = Counter(said), Counter(right)
    return {
        "macro_f1": 100
        * fmean(2 * both[label] / (of_said[label] + of_right[label]) for label in of_right)
    }


def _exact_match(found: Texts, references: Texts) -> dict[str, float]:
    pairs = zip(found, references, strict=True)
    return {"exact_match": 100 * fmean(_words(a) == _words(b) for a, b in pairs)}


def _token_f1(found: Texts, references: Texts) -> dict[str, float]:
    pairs = zip(found, references, strict=True)
    return {"token_f1": 100 * fmean(_overlap(_words(a), _words(b)) for a, b in pairs)}


def _overlap(said: list[str], right: list[str]) -> float:
    """F1 of two bags of words; two that are empty agree."""
    if not said or not right:
        return float(said == right)
    shared = sum((Counter(said) & Counter(right)).values())
    return 2 * shared / (len(said) + len(right))


def _words(text: str) -> list[str]:
    """Lower the case, leave out punctuation and articles."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _rouge(found: Texts, references: Texts) -> dict[str, float]:
    scorer = _rouge_scorer()
    rows = [scorer.score(b, a) for a, b in zip(found, references, strict=True)]
    return {name: 100 * fmean(row[name].fmeasure for row in rows) for name in rows[0]}


def _rouge_scorer() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise MissingExtraError("rouge-score", "rouge", "the metric rouge") from None
    return RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)


METRICS: dict[str, Callable[[Texts, Texts], dict[str, float]] | None] = {
    "bleu": None,  # these two are scored together
    "chrf": None,
    "rouge": _rouge,
    "accuracy": _accuracy,
    "macro_f1": _macro_f1,
    "exact_match": _exact_match,
    "token_f1": _token_f1,
}
"""Every metric by name."""


def repetition_rate(texts: Sequence[str]) -> float:
    """Return the share of words that repeat the word before them; 0 where there are no words."""
    lines = [text.split() for text in texts]
    words = sum(map(len, lines))
    repeated = sum(a == b for line in lines for a, b in pairwise(line))
    return repeated / words if words else 0.0


def length_ratio(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return how many words the translations have for each word of the references."""
    if len(hypotheses) != len(references):
        raise InputError(
            f"{len(hypotheses)} translations against {len(references)} references; "
            "source and reference must have the same number of lines"
        )
    said, wanted = (sum(len(text.split()) for text in texts) for texts in (hypotheses, references))
    if not wanted:
        raise InputError("the references hold no word; there is no length to compare with")
    return said / wanted
