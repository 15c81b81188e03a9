"""Generated parts of the home page: the rounds of one translation, and figures from results/."""

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

ROUNDS = "<!-- rounds -->"
FIGURES = "<!-- three figures -->"
DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
KINDS = {
    "en": {
        "accepted": "drafted, accepted",
        "refused": "drafted, rejected",
        "dropped": "drafted after a rejected token",
        "correction": "the model's token in its place",
        "bonus": "the model's token after an accepted block",
    },
    "zh": {
        "accepted": "草稿，已接受",
        "refused": "草稿，被拒绝",
        "dropped": "随之丢弃",
        "correction": "换成主模型自己的词元",
        "bonus": "整块草稿之后主模型自己的词元",
    },
}
FIGURE_WORDS = {
    "en": (
        "the speed of CTranslate2 int8: OPUS-MT Chinese–English, one sentence at a time, "
        "one thread each",
        "the sentences a second of LibreTranslate: a server with OPUS-MT and 64 clients",
        "lines of newstest2014 identical, token for token, to decoding without a drafter",
    ),
    "zh": (
        "CTranslate2 int8 的速度：OPUS-MT 中英，逐句翻译，各用一个线程",
        "LibreTranslate 每秒的句数：OPUS-MT 服务，64 个客户端",
        "newstest2014 的译文与不用草稿模型时逐词元相同的行数",
    ),
}
ELEMENTS = {"refused": "del", "dropped": "del", "correction": "ins"}


class Figure(NamedTuple):
    """A number of the home page, its description and its result file."""

    value: str
    words: str
    file: str
    machine: str


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Replace the markers of the rounds and the figures, in the page's language."""
    language = "zh" if page is not None and page.file.src_uri.endswith(".zh.md") else "en"
    if ROUNDS in markdown:
        shown = json.loads((DOCS / "rounds.json").read_text(encoding="utf-8"))
        markdown = markdown.replace(ROUNDS, "".join(rounds(shown, language)))
    if FIGURES in markdown:
        markdown = markdown.replace(FIGURES, "".join(map(_card, figures(language))))
    return markdown


def rounds(shown: dict[str, Any], language: str = "en") -> Iterator[str]:
    """Return every round as a line of coloured tokens, with a legend, as one block of HTML."""
    found = {token["kind"] for line in shown["rounds"] for token in line}
    kinds = KINDS[language]
    yield f'<div class="rounds"><p class="rounds-source">{escape(shown["source"])}</p><ol>'
    for line in shown["rounds"]:
        yield f"<li>{''.join(_token(token, kinds) for token in line)}</li>"
    yield f'</ol><p class="rounds-text">{escape(shown["text"])}</p><ul class="rounds-legend">'
    for kind, words in kinds.items():
        if kind in found:
            yield f'<li><i class="token {kind}"></i>{words}</li>'
    yield "</ul></div>"


def figures(language: str = "en") -> list[Figure]:
    """The three figures of the first page, read from their result files."""
    names = ("bench-decode-opus-mt-zh-en-plain-vnni", "bench-serve-opus-mt", "exact-newstest2014")
    decode, serve, exact = results = [_result(name) for name in names]
    (alone,) = (
        row
        for row in decode["rows"]
        if (row["engine"], row["batch"]) == ("outrider-native-int8", 1)
    )
    values = (
        f"{alone['ratio_to_ctranslate2_int8']:.1f}×",
        f"{serve['ratio_to_libretranslate']:.1f}×",
        f"{exact['identical']:,}{'/' if language == 'zh' else ' of '}{exact['lines']:,}",
    )
    return [
        Figure(value, words, f"{name}.json", machine_words(result["machine"], language))
        for value, words, name, result in zip(
            values, FIGURE_WORDS[language], names, results, strict=True
        )
    ]


def machine_words(machine: dict[str, Any], language: str = "en") -> str:
    """Name a processor and its best instruction set."""
    name = re.sub(r"\((?:R|TM)\)| Processor| CPU|@.*", "", machine["processor"]).strip()
    has = set(machine["instructions"])
    if "amx_int8" in has:
        sets = "AVX-512 and AMX"
    elif "avx512f" in has:
        sets = "AVX-512 VNNI, no AMX" if "avx512_vnni" in has else "AVX-512, no VNNI"
    else:
        sets = "AVX2" if "avx2" in has else "no vector set we know"
    cores = machine["cores"]
    if language == "zh":
        sets = sets.replace(" and ", " 与 ").replace(", no ", "，无 ")
        return f"{name}（{sets}），{cores} 个共享核"
    return f"{name} ({sets}), {cores} shared core{'s' if cores > 1 else ''}"


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _token(token: dict[str, str], kinds: dict[str, str]) -> str:
    tag = ELEMENTS.get(token["kind"], "span")
    words = escape(kinds[token["kind"]])
    return f'<{tag} class="token {token["kind"]}" title="{words}">{escape(token["text"])}</{tag}>'


def _card(figure: Figure) -> str:
    return (
        f'<div class="figure"><strong>{figure.value}</strong><p>{escape(figure.words)}</p>'
        f"<small>{escape(figure.machine)}<br><code>results/{figure.file}</code></small></div>"
    )
