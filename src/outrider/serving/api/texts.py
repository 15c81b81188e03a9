"""Translation of a list of texts, which most APIs share, and Google's language codes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request

from outrider.documents.html_elements import Rules
from outrider.serving.api.responses import while_connected
from outrider.serving.keys import admit
from outrider.serving.request import Priority
from outrider.serving.translation import TranslationService

if TYPE_CHECKING:
    from outrider.text.glossary import Glossary

_GOOGLE = {"zh": "zh-CN", "zh-Hant": "zh-TW", "nb": "no"}
"""Google's codes that differ from ours; the browser extensions use them too."""


@dataclass(frozen=True)
class Translated:
    """Translations of a list of texts."""

    texts: list[str]
    detected: str | None
    """Code of the source language, if it was detected."""


async def translate_texts(
    request: Request,
    texts: Sequence[str],
    source: str | None,
    target: str,
    *,
    html: bool | Rules = False,
    split: bool | None = None,
    glossary: "Glossary | None" = None,
) -> Translated:
    """Translate texts with the rights of the request's key."""
    priority = min(Priority.normal, admit(request))
    service: TranslationService = request.app.state.service
    work = service.translate(
        texts,
        source,
        target,
        html=html,
        split=split,
        glossary=glossary,
        priority=priority,
        facts=request.scope["facts"],
    )
    translation = await while_connected(request, work)
    request.scope["facts"]["characters"] = translation.characters
    detected = translation.detected
    best = [several[0] for several in translation.texts]
    return Translated(best, None if detected is None else detected.code)


def as_google(code: str) -> str:
    """Return Google's code of a language."""
    return _GOOGLE.get(code, code)
