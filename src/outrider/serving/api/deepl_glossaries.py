"""Glossaries of DeepL's API: `/v2/glossaries`, with one dictionary each, and `/v3/glossaries`."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import DataError
from outrider.languages import AUTO
from outrider.serving.api.fields import Code
from outrider.serving.glossaries import Dictionary, GlossaryStore, Summary, base_code
from outrider.serving.keys import admit
from outrider.serving.request import RefusalError
from outrider.serving.translation import TranslationService
from outrider.text.glossary import Glossary, read_table

router = APIRouter(tags=["DeepL"])

Name = Annotated[str, Field(min_length=1, max_length=1024)]
Entries = Annotated[str, Field(max_length=10 << 20)]


class DictionaryBody(BaseModel):
    """A dictionary of `/v3/glossaries`."""

    model_config = ConfigDict(extra="forbid")

    source_lang: Code
    target_lang: Code
    entries: Entries
    """One term a line."""
    entries_format: Literal["tsv", "csv"] = "tsv"


class GlossaryBody(DictionaryBody):
    """Body of `/v2/glossaries`."""

    name: Name


class GlossaryBody3(BaseModel):
    """Body of `/v3/glossaries`."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    dictionaries: Annotated[list[DictionaryBody], Field(min_length=1, max_length=100)]


class ChangeBody(BaseModel):
    """Changes of a glossary; entries are added to its dictionaries."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    dictionaries: Annotated[list[DictionaryBody], Field(max_length=100)] = []


def store_of(request: Request) -> tuple[GlossaryStore, str]:
    """Return the store, and the owner of the request's key; refuse unknown keys."""
    admit(request)
    key = request.scope.get("key")
    store: GlossaryStore = request.app.state.glossaries
    return store, "" if key is None else key.name


def find_glossary(request: Request, number: str, source: str | None, target: str) -> Glossary:
    """Return the entries of a glossary for a language pair."""
    if source is None:
        raise RefusalError("glossary_id: needs source_lang; name the language of the texts")
    store, owner = store_of(request)
    return store.read(owner, number, source, target)


def _read(body: DictionaryBody) -> Dictionary:
    content = body.entries.encode("utf-8", "replace")
    separator = "," if body.entries_format == "csv" else "\t"
    try:
        entries = read_table(content, "entries", separator=separator).entries
    except DataError as error:
        raise RefusalError(f"Invalid glossary entries provided: {error}") from error
    if not entries:
        raise RefusalError("Invalid glossary entries provided: there are none")
    return Dictionary(body.source_lang, body.target_lang, entries)


def _time(summary: Summary) -> str:
    return datetime.fromtimestamp(summary.created, UTC).isoformat(timespec="milliseconds")


def _answer(summary: Summary) -> dict[str, Any]:
    """Return a glossary as `/v2` does; of several dictionaries the first."""
    source, target, count = summary.pairs[0] if summary.pairs else ("", "", 0)
    return {
        "glossary_id": summary.id,
        "name": summary.name,
        "ready": True,
        "source_lang": source,
        "target_lang": target,
        "creation_time": _time(summary),
        "entry_count": count,
    }


def _answer3(summary: Summary) -> dict[str, Any]:
    """Return a glossary as `/v3` does."""
    keys = "source_lang", "target_lang", "entry_count"
    return {
        "glossary_id": summary.id,
        "name": summary.name,
        "dictionaries": [dict(zip(keys, pair, strict=True)) for pair in summary.pairs],
        "creation_time": _time(summary),
    }


@router.post("/v2/glossaries", status_code=201)
async def create(request: Request, body: GlossaryBody) -> dict[str, Any]:
    """Store a glossary."""
    store, owner = store_of(request)
    return _answer(store.create(owner, body.name, [_read(body)]))


@router.get("/v2/glossaries")
async def glossaries(request: Request) -> dict[str, Any]:
    """List the glossaries of the key that have one dictionary."""
    store, owner = store_of(request)
    return {"glossaries": [_answer(one) for one in store.all(owner) if len(one.pairs) == 1]}


@router.get("/v2/glossaries/{number}")
async def glossary(request: Request, number: str) -> dict[str, Any]:
    """Describe a glossary."""
    store, owner = store_of(request)
    return _answer(store.get(owner, number))


@router.get("/v2/glossaries/{number}/entries", response_class=Response)
async def entries(request: Request, number: str) -> Response:
    """Return the entries of a glossary as TSV."""
    store, owner = store_of(request)
    summary = store.get(owner, number)
    text = _tsv(store.read(owner, number, *summary.pairs[0][:2])) if summary.pairs else ""
    return Response(text, media_type="text/tab-separated-values")


@router.delete("/v2/glossaries/{number}", status_code=204, response_class=Response)
@router.delete("/v3/glossaries/{number}", status_code=204, response_class=Response)
async def delete(request: Request, number: str) -> Response:
    """Delete a glossary."""
    store, owner = store_of(request)
    store.delete(owner, number)
    return Response(status_code=204)


@router.get("/v2/glossary-language-pairs")
async def pairs(request: Request) -> dict[str, Any]:
    """List the language pairs that glossaries may have."""
    admit(request)
    service: TranslationService = request.app.state.service
    found = {
        (base_code(one.code), base_code(target))
        for one in service.languages
        for target in one.targets
        if AUTO not in (one.code, target) and target not in one.pivots
    }
    keys = "source_lang", "target_lang"
    return {"supported_languages": [dict(zip(keys, pair, strict=True)) for pair in sorted(found)]}


@router.post("/v3/glossaries", status_code=201)
async def create3(request: Request, body: GlossaryBody3) -> dict[str, Any]:
    """Store a glossary of several dictionaries."""
    store, owner = store_of(request)
    return _answer3(store.create(owner, body.name, [_read(one) for one in body.dictionaries]))


@router.get("/v3/glossaries")
async def glossaries3(request: Request) -> dict[str, Any]:
    """List the glossaries of the key."""
    store, owner = store_of(request)
    return {"glossaries": [_answer3(one) for one in store.all(owner)]}


@router.get("/v3/glossaries/{number}")
async def glossary3(request: Request, number: str) -> dict[str, Any]:
    """Describe a glossary."""
    store, owner = store_of(request)
    return _answer3(store.get(owner, number))


@router.patch("/v3/glossaries/{number}")
async def change3(request: Request, number: str, body: ChangeBody) -> dict[str, Any]:
    """Rename a glossary, and add entries to its dictionaries."""
    store, owner = store_of(request)
    changes = [_read(one) for one in body.dictionaries]
    if body.name is not None:
        store.rename(owner, number, body.name)
    for dictionary in changes:
        store.put(owner, number, dictionary, merge=True)
    return _answer3(store.get(owner, number))


@router.get("/v3/glossaries/{number}/entries")
async def entries3(
    request: Request, number: str, source_lang: Code, target_lang: Code
) -> dict[str, Any]:
    """Return the entries of a dictionary."""
    store, owner = store_of(request)
    text = _tsv(store.read(owner, number, source_lang, target_lang))
    found = {"entries": text, "entries_format": "tsv"}
    codes = {"source_lang": base_code(source_lang), "target_lang": base_code(target_lang)}
    return {"dictionaries": [{**codes, **found}]}


@router.put("/v3/glossaries/{number}/dictionaries")
async def replace3(request: Request, number: str, body: DictionaryBody) -> Mapping[str, Any]:
    """Replace a dictionary."""
    store, owner = store_of(request)
    dictionary = _read(body)
    store.put(owner, number, dictionary)
    codes = {key: base_code(getattr(body, key)) for key in ("source_lang", "target_lang")}
    return {**codes, "entry_count": len(dictionary.entries)}


@router.delete("/v3/glossaries/{number}/dictionaries", status_code=204, response_class=Response)
async def delete_dictionary3(
    request: Request, number: str, source_lang: Code, target_lang: Code
) -> Response:
    """Delete a dictionary."""
    store, owner = store_of(request)
    store.delete_dictionary(owner, number, source_lang, target_lang)
    return Response(status_code=204)


def _tsv(found: Glossary) -> str:
    return "\n".join(f"{entry.source}\t{entry.target}" for entry in found.entries)
