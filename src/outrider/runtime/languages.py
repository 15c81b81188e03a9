"""Languages that a model folder says it reads."""

import re
from contextlib import suppress
from pathlib import Path

from outrider.errors import ModelError
from outrider.files import read_json, read_limited

__all__ = ["source_languages"]

_BERGAMOT = re.compile(r"model\.([a-z]{2})[a-z]{2}\..*")
_SETTING = re.compile(r"^ +source_language: *([A-Za-z]{2,3}) *$", re.MULTILINE)
"""`data.clean.source_language` of a run."""
_CARD = re.compile(r"\A---\n(?:(?!---\n).*\n)*?language:(.*\n(?: *- .*\n)*)")
_CODE = re.compile(r"\b[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?\b")


def source_languages(folder: Path) -> tuple[str, ...]:
    """Return the languages of the texts that a model reads; none if its folder does not say.

    A model card lists the source with the target, in no certain order.
    """
    with suppress(ModelError, OSError):
        for file, key in (("metadata.json", "from_code"), ("tokenizer_config.json", "source_lang")):
            path = folder / file
            code = read_json(path).get(key) if path.is_file() else None
            if isinstance(code, str) and _CODE.fullmatch(code):
                return (code,)
        for path in folder.glob("model.*.bin"):
            if match := _BERGAMOT.fullmatch(path.name):
                return (match[1],)
        if match := _SETTING.search(_text(folder / "run.yaml")):
            return (match[1],)
        if match := _CARD.match(_text(folder / "README.md")):
            return tuple(_CODE.findall(match[1]))
    return ()


def _text(path: Path) -> str:
    return read_limited(path, limit=1 << 20).decode("utf-8", "replace") if path.is_file() else ""
