"""Tags of human translations: where alignment puts them, and where Bergamot's HTML mode does.

    python lab/studies/tag_placement.py FOLDER --catalogs DIR --node node_modules --json FILE

The sentences are messages of programs in `LC_MESSAGES/*.mo` below DIR, whose translations carry the
same tags: unpack Debian packages there (`apt-get download inkscape`, `dpkg -x`). FOLDER is a model
from English to the language of the catalogs.

- `reference`: the tags are placed in the human translation, aligned by the model.
- `own`: the tags are placed in the model's translation; a tag counts if its text is that of the
  human translation, without case. `bergamot` is the same by `@browsermt/bergamot-translator`.
"""

import argparse
import gettext
import html
import json
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import outrider
from outrider.documents.html import Page
from outrider.documents.marked import MarkedText
from outrider.documents.tags import Tag, mark_up
from outrider.documents.transfer import transfer
from outrider.documents.translate import translate_marked
from outrider.runtime import Result, Translator
from outrider.runtime.provenance import origin, write_result
from outrider.text.alignment import Alignment, text_links
from outrider.text.normalise import normalise
from outrider.text.sentences import segment
from outrider_lab.bench.service.peers import BERGAMOT

NAMES = "b|i|a|em|strong|tt|u|filename|emphasis|link|icode|application|command|span|interface"
PAIR = re.compile(rf"<({NAMES})\b[^<>]*>([^<>]*)</\1>")
ANY = re.compile(r"<[^>]*>")
LONGEST = 200
SHARE = 0.8
"""Longest part of a sentence that its tags contain."""
EACH = 100
"""Most sentences of one program."""


def read_pairs(folder: Path, count: int) -> list[tuple[str, str]]:
    """Return messages with tags and their translations, at random but always the same."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(folder.rglob("*.mo")):
        with path.open("rb") as file:
            catalog: dict[Any, str] = vars(gettext.GNUTranslations(file))["_catalog"]
        for key, translation in catalog.items():
            source = key.rpartition("\x04")[2] if isinstance(key, str) else ""
            if _fits(source, translation):
                found.setdefault(source, (translation, path.name))
    items = sorted((source, *rest) for source, rest in found.items())
    random.Random(0).shuffle(items)
    chosen: list[tuple[str, str]] = []
    taken: dict[str, int] = {}
    for source, translation, name in items:
        taken[name] = taken.get(name, 0) + 1
        if taken[name] <= EACH:
            chosen.append((source, translation))
    return chosen[:count]


def _fits(source: str, translation: str) -> bool:
    pairs, plain = PAIR.findall(source), ANY.sub("", source)
    tags = ANY.findall(source)
    return (
        0 < len(tags) == 2 * len(pairs)
        and sorted(tags) == sorted(ANY.findall(translation))
        and len(PAIR.findall(translation)) == len(pairs)
        and len(plain) <= LONGEST
        and len(re.findall(r"[A-Za-z]{2,}", plain)) >= 4
        and sum(len(text) for _, text in pairs) <= SHARE * len(plain)
        and not re.search(r"[%{&$<>\n]", plain)
        and all(re.search("[A-Za-z]", text) for _, text in pairs)
    )


def marked(text: str) -> MarkedText:
    """Return a text with pairs of tags as a marked text."""
    pieces: list[str | Tag] = []
    for number, piece in enumerate(re.split("(<[^>]*>)", text)):
        name = re.sub(r"</?([\w-]+).*", r"\1", piece)
        pieces.append(Tag(piece, name, piece.startswith("</")) if number % 2 else piece)
    return mark_up(pieces)[0]


def spans(text: MarkedText) -> list[tuple[str, str]]:
    """Return the tags of a text with the text inside, sorted by tag, then by place."""
    found = [(one.open, text.text[one.start : one.end]) for one in text.spans]
    return [
        (tag, re.sub(r"^\W+|\W+$", "", inside).casefold())
        for tag, inside in sorted(found, key=lambda pair: pair[0])
    ]


def align(model: Translator, source: str, target: str) -> Alignment:
    """Align two texts by the attention of the model that writes the target."""
    (segments,) = segment([source], model.tokenizer, longest=model.longest, split=False)
    backend: Any = model.backend
    (tokens,) = model.tokenizer.encode_target_batch([normalise(target)])
    tokens = [token for token in tokens if token != backend.eos]
    request = model.request(segments.pieces[0].ids, max_new_tokens=None)
    opening = request.opening(backend)
    (weights,) = backend.cross_attention([request.source], [[*opening, *tokens[:-1]]])
    heads = backend.alignment_heads or ((backend.config.decoder_depth - 1, 0),)
    picked = [weights[layer, head, len(opening) - 1 :] for layer, head in heads]
    places = np.mean(picked, axis=0).argmax(axis=1).tolist()
    before = len(model.frame.before)
    return text_links(model.tokenizer, segments, [tokens], [places], [0], before=before)


def bergamot(node: Path, folder: Path, texts: Sequence[str]) -> list[str]:
    """Translate HTML by Bergamot's engine."""
    run = subprocess.run(
        ["node", str(BERGAMOT), str(node), str(folder), "html"],
        input=json.dumps(texts) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(run.stdout.splitlines()[1])["texts"])


def share(found: Sequence[MarkedText], wanted: Sequence[MarkedText]) -> dict[str, Any]:
    """Count the tags with the text of the reference."""
    hits = tags = whole = 0
    for one, other in zip(found, wanted, strict=True):
        pairs = list(zip(spans(one), spans(other), strict=False))
        same = [left == right for left, right in pairs]
        hits += sum(same)
        tags += len(spans(other))
        whole += all(same) and len(spans(one)) == len(spans(other))
    return {"tags": tags, "placed": hits, "share": round(hits / tags, 4), "sentences": whole}


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--catalogs", type=Path, required=True)
    parser.add_argument("--node", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    model = outrider.load(given.folder)
    assert isinstance(model, Translator)
    pairs = read_pairs(given.catalogs, given.count)
    sources = [marked(source) for source, _ in pairs]
    wanted = [marked(translation) for _, translation in pairs]
    forced = [
        transfer(source, target.text, align(model, source.text, target.text))
        for source, target in zip(sources, wanted, strict=True)
    ]
    proportional = [
        transfer(source, target.text, ()) for source, target in zip(sources, wanted, strict=True)
    ]

    def translate(texts: Sequence[str]) -> list[Result]:
        return [best for best, *_ in model.results(texts, alignment=True)]

    pages = [Page(source) for source, _ in pairs]
    own = [
        marked(html.unescape(page.write_text(translate_marked(page.texts, translate))))
        for page in pages
    ]
    result: dict[str, Any] = {
        "sentences": len(pairs),
        "reference": share(forced, wanted),
        "reference, proportional": share(proportional, wanted),
        "own": share(own, wanted),
    }
    if given.node is not None:
        theirs = bergamot(given.node, given.folder, [source for source, _ in pairs])
        others = [marked(html.unescape(text)) for text in theirs]
        result["bergamot"] = share(others, wanted)
        same = [
            number
            for number, (one, other) in enumerate(zip(own, others, strict=True))
            if one.text.split() == other.text.split()
        ]
        result["same text"] = {
            "sentences": len(same),
            "own": share([own[n] for n in same], [wanted[n] for n in same]),
            "bergamot": share([others[n] for n in same], [wanted[n] for n in same]),
        }
        path = given.node / "@browsermt" / "bergamot-translator" / "package.json"
        result["bergamot-translator"] = json.loads(path.read_text("utf-8"))["version"]
    print(json.dumps(result, indent=1))
    if given.json is not None:
        write_result(
            given.json,
            result | origin(given.folder),
        )


if __name__ == "__main__":
    main()
