"""Metrics of texts against references: translations, summaries, answers and labels.

    bleu, chrf       of sacreBLEU, with their signatures
    rouge            ROUGE-1, ROUGE-2 and ROUGE-Lsum F1 of summaries, by the package rouge-score
    accuracy         share of texts equal to the reference
    macro_f1         mean F1 of the labels in the references
    exact_match      share equal up to case, punctuation, articles and spaces
    token_f1         F1 of words, normalised in the same way; both as in SQuAD
                     (Rajpurkar et al., 2016)

All are percentages.

BLEU's tokenizer is selected by script. The default 13a separates words at spaces, so in a script
without spaces each sentence is one word, and one wrong character gives a score of 0.

COMET (Rei et al., 2020) is trained on human judgements of translations. `comet-score` of the
package unbabel-comet is run as a program in its own environment, because it needs older versions of
transformers (below 5) and NumPy (below 2), and because its checkpoints are pickles.
"""

import json
import os
import re
import shutil
import string
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from outrider.errors import (
    ConfigError,
    InputError,
    MissingExtraError,
    ResourceError,
    UnsupportedError,
    nearest,
)

TOKENIZERS = (
    *("auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"),
    *("spm", "flores101", "flores200", "spBLEU-1K"),
)
"""Names of sacreBLEU, and `auto`, which selects by the script of the references."""

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
    """Return the name, or raise a ValueError that lists the valid names."""
    if name not in TOKENIZERS:
        hint = nearest(name, TOKENIZERS)
        raise ValueError(f"got {name!r}{hint}, expected one of {', '.join(TOKENIZERS)}")
    return name


def check_installed(name: str) -> None:
    """Raise an error if the package of a tokenizer is missing, before translating."""
    package, extra = _PACKAGES.get(name, ("sacrebleu", ""))
    if find_spec(package) is None:
        raise UnsupportedError(
            f"the BLEU tokenizer {name} needs {package}, which is not installed: "
            f"pip install '{extra}', or use char"
        )


def tokenizer_for(references: Sequence[str]) -> str:
    """Select a tokenizer by the most frequent script of the references."""
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
    # Chinese text rarely contains kana; Japanese sentences nearly always do.
    return _if_installed("ja-mecab") if 20 * kana > han else "zh"


def _if_installed(name: str) -> str:
    return name if find_spec(_PACKAGES[name][0]) is not None else "char"


Texts = Sequence[str]


@dataclass(frozen=True)
class TranslationScore:
    """Corpus scores with sacreBLEU's signatures."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int


def check_metrics(names: Sequence[str], *, key: str = "metrics") -> None:
    """Check the names of metrics and the installed packages before translating."""
    if not names:
        raise ConfigError(key, f"is empty; expected some of {', '.join(METRICS)}")
    for name in names:
        if name not in METRICS:
            expected = f"expected some of {', '.join(METRICS)}"
            raise ConfigError(key, f"unknown {name!r}{nearest(name, METRICS)}; {expected}")
    if "rouge" in names:
        _rouge_scorer()


def score(
    names: Sequence[str], texts: Texts, references: Texts, *, tokenize: str = "auto"
) -> dict[str, Any]:
    """Score texts by several metrics; `tokenize` is the tokenizer of BLEU."""
    if len(texts) != len(references):
        raise InputError(f"{len(texts)} texts against {len(references)} references")
    scores: dict[str, Any] = {}
    if "bleu" in names or "chrf" in names:
        all_scores = asdict(score_translations(texts, references, tokenize=tokenize))
        excluded = tuple(name for name in ("bleu", "chrf") if name not in names)
        scores |= {key: value for key, value in all_scores.items() if not key.startswith(excluded)}
    for name in names:
        if (measure := METRICS[name]) is not None:
            scores |= measure(texts, references)
    return scores | {"sentences": len(texts)}


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "auto"
) -> TranslationScore:
    """SacreBLEU and chrF of a corpus against one reference per sentence.

    `auto` selects the tokenizer by the script of the references; the signature contains it.
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


def _accuracy(texts: Texts, references: Texts) -> dict[str, float]:
    same = [a.strip() == b.strip() for a, b in zip(texts, references, strict=True)]
    return {"accuracy": 100 * fmean(same)}


def _macro_f1(texts: Texts, references: Texts) -> dict[str, float]:
    predicted, expected = [text.strip() for text in texts], [text.strip() for text in references]
    correct = Counter(a for a, b in zip(predicted, expected, strict=True) if a == b)
    totals = Counter(predicted) + Counter(expected)
    return {"macro_f1": 100 * fmean(2 * correct[label] / totals[label] for label in set(expected))}


def _exact_match(texts: Texts, references: Texts) -> dict[str, float]:
    pairs = zip(texts, references, strict=True)
    return {"exact_match": 100 * fmean(_words(a) == _words(b) for a, b in pairs)}


def _token_f1(texts: Texts, references: Texts) -> dict[str, float]:
    pairs = zip(texts, references, strict=True)
    return {"token_f1": 100 * fmean(_overlap(_words(a), _words(b)) for a, b in pairs)}


def _overlap(words: list[str], expected: list[str]) -> float:
    """Return the F1 of two bags of words; 1 if both are empty."""
    if not words or not expected:
        return float(words == expected)
    shared = (Counter(words) & Counter(expected)).total()
    return 2 * shared / (len(words) + len(expected))


def _words(text: str) -> list[str]:
    """Split into lowercase words without punctuation and articles."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _rouge(texts: Texts, references: Texts) -> dict[str, float]:
    scorer = _rouge_scorer()
    rows = [scorer.score(b, a) for a, b in zip(texts, references, strict=True)]
    return {name: 100 * fmean(row[name].fmeasure for row in rows) for name in rows[0]}


def _rouge_scorer() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise MissingExtraError("rouge-score", "rouge", "the metric rouge") from error
    return RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)


METRICS: dict[str, Callable[[Texts, Texts], dict[str, float]] | None] = {
    "bleu": None,  # computed by score_translations
    "chrf": None,
    "rouge": _rouge,
    "accuracy": _accuracy,
    "macro_f1": _macro_f1,
    "exact_match": _exact_match,
    "token_f1": _token_f1,
}
"""Metrics by name."""


COMMAND = "comet-score"
VARIABLE = "OUTRIDER_COMET"
"""Environment variable with the path of the program, if it is not on the PATH."""
INSTALL = (
    "install unbabel-comet in an environment of its own (python -m venv comet; "
    f"comet/bin/pip install unbabel-comet) and set {VARIABLE}=comet/bin/{COMMAND}"
)


def find_comet() -> str:
    """Return the path of the program."""
    name = os.environ.get(VARIABLE) or COMMAND
    path = shutil.which(name)
    if path is None:
        raise ConfigError("--comet", f"{name} was not found; {INSTALL}")
    return path


def score_comet(
    sources: Sequence[str], translations: Sequence[str], references: Sequence[str], *, model: str
) -> float:
    """Return the mean score of the translations.

    Args:
        sources: Source texts.
        translations: Translations to score.
        references: Reference translations.
        model: A model of `comet-score`, such as `Unbabel/wmt22-comet-da`, or a checkpoint.
    """
    program = find_comet()
    with tempfile.TemporaryDirectory() as working:
        sides = {"s": sources, "t": translations, "r": references}
        arguments = []
        for name, lines in sides.items():
            path = Path(working, f"{name}.txt")
            path.write_text("".join(f"{' '.join(line.split())}\n" for line in lines), "utf-8")
            arguments += [f"-{name}", str(path)]
        result = Path(working, "scores.json")
        arguments += ["--model", model, "--gpus", "0", "--quiet", "--only_system"]
        ran = subprocess.run(  # noqa: S603 - the program that the user named
            [program, *arguments, "--to_json", str(result)],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode or not result.is_file():
            lines = (ran.stderr or ran.stdout).strip().splitlines() or ["no output"]
            raise ResourceError(f"{COMMAND} failed with {ran.returncode}: {lines[-1][:300]}")
        (scores,) = json.loads(result.read_text("utf-8")).values()
    return fmean(float(score["COMET"]) for score in scores)
