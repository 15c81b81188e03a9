"""DeepL's API: `/v2/translate`, `/v2/languages` and `/v2/usage`.

`formality` is answered as by DeepL for a language without it: `more` and `less` are refused,
`prefer_more` and `prefer_less` have no effect. `context` has no effect. Several glossaries, styles
and translation memories are refused.
"""

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.responses import JSONResponse

from outrider.documents.html_elements import Rules
from outrider.languages import AUTO, language_name
from outrider.serving.api.deepl_glossaries import find_glossary
from outrider.serving.api.fields import Code
from outrider.serving.api.texts import translate_texts
from outrider.serving.keys import Keyring, admit
from outrider.serving.request import RefusalError, UnknownError
from outrider.serving.translation import TranslationService

router = APIRouter(prefix="/v2", tags=["DeepL"])

UNLIMITED = 1_000_000_000_000
"""DeepL's `character_limit` of a key without one."""
TARGETS = {
    "en": ("EN-GB", "EN-US"),
    "pt": ("PT-BR", "PT-PT"),
    "zh": ("ZH", "ZH-HANS"),
    "zh-Hant": ("ZH-HANT",),
}
"""DeepL's target languages, where they are not our codes in capitals."""

Text = Annotated[str, Field(max_length=1_000_000)]
_AsText = BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)


class DeepLBody(BaseModel):
    """Body of `/v2/translate`."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    text: Text | Annotated[list[Text], Field(min_length=1)]
    """One or more texts."""
    target_lang: Code
    source_lang: Code | None = None
    """Detected if it is left out."""
    split_sentences: Annotated[Literal["0", "1", "nonewlines"], _AsText] | None = None
    """`nonewlines` joins the lines of a paragraph before it is split."""
    tag_handling: Literal["html", "xml"] | None = None
    """Whether the texts are HTML or XML; the following tags need it."""
    formality: Literal["default", "more", "less", "prefer_more", "prefer_less"] = "default"
    """`more` and `less` are refused, as for DeepL's languages without formality."""
    show_billed_characters: bool = False
    context: str | None = None
    """No effect."""
    preserve_formatting: bool | None = None
    """No effect: formatting is always preserved."""
    model_type: str | None = None
    """No effect."""
    tag_handling_version: str | None = None
    """No effect."""
    outline_detection: bool | None = None
    """With `xml`, whether elements divide texts if there is no text beside them; true by default.
    """
    non_splitting_tags: str | list[str] | None = None
    """Elements that do not divide texts."""
    splitting_tags: str | list[str] | None = None
    """Elements that divide texts."""
    ignore_tags: str | list[str] | None = None
    """Elements that are not translated."""
    enable_beta_languages: bool | None = None
    """No effect."""
    glossary_id: Annotated[str, Field(max_length=100)] | None = None
    """Needs `source_lang`."""
    glossary_ids: str | list[str] | None = None
    """Refused, as the following fields."""
    style_id: str | None = None
    custom_instructions: str | list[str] | None = None
    translation_memory_id: str | None = None
    translation_memory_threshold: int | None = None


REFUSED = {
    "glossary_ids": "several glossaries are not offered; send one as glossary_id",
    "style_id": "styles are not offered; leave it out",
    "custom_instructions": "instructions are not offered; leave it out",
    "translation_memory_id": "translation memories are not offered; leave it out",
}


@router.post("/translate", response_model=dict[str, Any])
async def translate(request: Request, body: DeepLBody) -> JSONResponse:
    """Translate one or more texts."""
    _check(body)
    texts = body.text if isinstance(body.text, list) else [body.text]
    split = body.split_sentences
    if split == "nonewlines":
        texts = [" ".join(text.splitlines()) for text in texts]
    glossary = None
    if body.glossary_id is not None:
        glossary = find_glossary(request, body.glossary_id, body.source_lang, body.target_lang)
    try:
        translation = await translate_texts(
            request,
            texts,
            body.source_lang,
            body.target_lang,
            html=_rules(body),
            split=False if split == "0" else None,
            glossary=glossary,
        )
    except UnknownError as error:
        raise RefusalError(f"Value for 'target_lang' not supported: {error}") from error
    language = body.source_lang or translation.detected
    answers = []
    for before, after in zip(texts, translation.texts, strict=True):
        answer: dict[str, Any] = {"detected_source_language": source_code(language), "text": after}
        if body.show_billed_characters:
            answer["billed_characters"] = len(before)
        answers.append(answer)
    return JSONResponse({"translations": answers})


def _check(body: DeepLBody) -> None:
    """Refuse what is not offered."""
    if body.formality in ("more", "less"):
        raise RefusalError("'formality' is not supported for given 'target_lang'.")
    if body.tag_handling is None:
        for name in ("ignore_tags", "splitting_tags", "non_splitting_tags"):
            if getattr(body, name):
                raise RefusalError(f"{name}: needs tag_handling; set it to xml or html")
    for name, fix in REFUSED.items():
        if getattr(body, name):
            raise RefusalError(f"{name}: {fix}")


def _rules(body: DeepLBody) -> Rules | Literal[False]:
    """Return which elements divide texts; False for plain text."""
    if body.tag_handling is None:
        return False
    xml = body.tag_handling == "xml"
    return Rules(
        xml=xml,
        blocks=_names(body.splitting_tags),
        inline=_names(body.non_splitting_tags),
        kept=_names(body.ignore_tags),
        by_structure=xml and body.outline_detection is not False,
    )


def _names(given: str | list[str] | None) -> tuple[str, ...]:
    """Return the names of elements in lists that commas divide."""
    lists = [given] if isinstance(given, str) else given or []
    return tuple(name.strip() for names in lists for name in names.split(",") if name.strip())


def source_code(code: str | None) -> str:
    """Return DeepL's code of a source language."""
    return (code or "").partition("-")[0].upper()


Kind = Literal["source", "target"]


@router.get("/languages")
async def languages(
    request: Request, kind: Annotated[Kind | None, Query(alias="type")] = None
) -> list[dict[str, Any]]:
    """List the source languages, or with `type=target` the target languages."""
    admit(request)
    service: TranslationService = request.app.state.service
    known = [one for one in service.languages if one.code != AUTO]
    names = {one.code: one.name for one in known}
    if (kind or await _type_in_body(request)) != "target":
        sources = {source_code(code): name for code, name in reversed(names.items())}
        return [{"language": code, "name": sources[code]} for code in sorted(sources)]
    codes = sorted({code for one in known for code in one.targets})
    return [
        {
            "language": own,
            "name": names.get(code) or language_name(code),
            "supports_formality": False,
        }
        for code in codes
        for own in TARGETS.get(code, (code.upper(),))
    ]


@router.post("/languages")
async def languages_by_post(
    request: Request, kind: Annotated[Kind | None, Query(alias="type")] = None
) -> list[dict[str, Any]]:
    """List the languages, for clients that send `type` in a body."""
    return await languages(request, kind)


async def _type_in_body(request: Request) -> str:
    """Return the `type` of a form; DeepL's own client sends one with GET."""
    try:
        values = json.loads(await request.body() or b"{}")
    except ValueError:
        return "source"
    return str(values.get("type", "source")) if isinstance(values, dict) else "source"


@router.get("/usage")
async def usage(request: Request) -> dict[str, int]:
    """Return the characters that the key has translated this month; 0 without keys."""
    admit(request)
    keyring: Keyring | None = request.app.state.keyring
    used = 0 if keyring is None else keyring.used(request.scope["key"])
    return {"character_count": used, "character_limit": UNLIMITED}


@router.api_route(
    "/{path:path}",
    methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
    include_in_schema=False,
    response_model=None,
)
async def refuse(path: str) -> None:
    """Refuse the other routes of DeepL's API."""
    raise UnknownError("Not Found")
