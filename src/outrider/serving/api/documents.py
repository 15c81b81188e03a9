"""Documents: LibreTranslate's `/translate_file`, and DeepL's `/v2/document`."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from outrider.documents.marked import MarkedText
from outrider.languages import AUTO, normalise_code
from outrider.serving.api.fields import Upload, read_upload
from outrider.serving.api.responses import while_connected
from outrider.serving.documents import DocumentStore, Job
from outrider.serving.keys import admit
from outrider.serving.request import Priority, RefusalError
from outrider.serving.translation import TranslationService

libretranslate = APIRouter(tags=["LibreTranslate"])
deepl = APIRouter(prefix="/v2", tags=["DeepL"])

CHARACTERS_OF_REQUESTS = 20
"""A document may have as many characters as so many requests."""


def _form(*names: str) -> dict[str, Any]:
    """Return the description of a form with a file."""
    fields: dict[str, Any] = {name: {"type": "string"} for name in names}
    fields["file"] = {"type": "string", "format": "binary"}
    schema = {"type": "object", "properties": fields, "required": ["file", names[0]]}
    return {"requestBody": {"content": {"multipart/form-data": {"schema": schema}}}}


@libretranslate.post("/translate_file", openapi_extra=_form("target", "source", "api_key"))
async def translate_file(request: Request) -> dict[str, str]:
    """Translate a document; the answer names the address of the translation."""
    try:
        upload = await _upload(request)
    except RefusalError:
        admit(request)
        raise
    fields = upload.fields
    priority = admit(request, fields.get("api_key"))
    job = await _start(
        request, upload, fields.get("source", AUTO), fields.get("target"), "target", priority
    )
    store: DocumentStore = request.app.state.documents
    try:
        await while_connected(request, _wait(job.task))
    except BaseException:
        store.drop(job)
        raise
    if job.error is not None:
        store.drop(job)
        raise job.error
    address = f"{request.base_url}download_file/{job.id}{job.key}"
    return {"translatedFileUrl": address}


@libretranslate.get("/download_file/{name}", response_class=Response)
async def download_file(request: Request, name: str) -> Response:
    """Return a translated document."""
    store: DocumentStore = request.app.state.documents
    return _file(store.find(name[:32], name[32:]))


class KeyBody(BaseModel):
    """Body of the routes of one document."""

    model_config = ConfigDict(extra="forbid")

    document_key: Annotated[str, Field(max_length=200)]


@deepl.post("/document", openapi_extra=_form("target_lang", "source_lang", "filename"))
async def upload_document(request: Request) -> dict[str, str]:
    """Start the translation of a document."""
    upload = await _upload(request)
    fields = upload.fields
    priority = admit(request)
    source, target = fields.get("source_lang", AUTO), fields.get("target_lang")
    upload = upload._replace(name=fields.get("filename") or upload.name)
    if fields.get("formality") in ("more", "less"):
        raise RefusalError("'formality' is not supported for given 'target_lang'.")
    suffix = upload.name.rpartition(".")[2].lower()
    if fields.get("output_format", suffix).lower() != suffix:
        raise RefusalError("output_format: documents keep their format; leave it out")
    job = await _start(request, upload, source, target, "target_lang", priority)
    return {"document_id": job.id, "document_key": job.key}


@deepl.post("/document/{number}")
async def document_status(request: Request, number: str, body: KeyBody) -> dict[str, Any]:
    """Return the progress of a document."""
    admit(request)
    store: DocumentStore = request.app.state.documents
    job = store.find(number, body.document_key)
    answer: dict[str, Any] = {"document_id": job.id}
    if job.error is not None:
        return answer | {"status": "error", "error_message": str(job.error)}
    if not job.running:
        return answer | {"status": "done", "billed_characters": job.characters}
    left = job.seconds_left(request.app.state.engine.now)
    status = "queued" if job.began is None else "translating"
    return answer | {"status": status, "seconds_remaining": left}


@deepl.post("/document/{number}/result", response_class=Response)
async def document_result(request: Request, number: str, body: KeyBody) -> Response:
    """Return a translated document once, and forget it."""
    admit(request)
    store: DocumentStore = request.app.state.documents
    job = store.find(number, body.document_key)
    answer = _file(job)
    store.drop(job)
    return answer


async def _upload(request: Request) -> Upload:
    kind = request.headers.get("content-type", "").encode("latin-1")
    return read_upload(kind, await request.body())


async def _start(
    request: Request,
    upload: Upload,
    source: str,
    target: str | None,
    field: str,
    priority: Priority,
) -> Job:
    if not target:
        raise RefusalError(f"{field}: name the language to translate to")
    service: TranslationService = request.app.state.service
    store: DocumentStore = request.app.state.documents
    state: dict[str, Any] = {"source": source}
    facts: dict[str, Any] = {}

    async def translate(texts: Sequence[MarkedText]) -> list[MarkedText]:
        done, state["source"] = await service.translate_marked(
            texts, state["source"], target, priority=min(Priority.low, priority), facts=facts
        )
        return done

    limit = CHARACTERS_OF_REQUESTS * service.engine.limits.characters
    job = await store.start(upload.name, upload.content, normalise_code(target), translate, limit)
    request.scope["facts"] |= {"model": "documents", "characters": job.characters}
    return job


async def _wait(task: "asyncio.Task[None] | None") -> None:
    assert task is not None
    await asyncio.shield(task)


def _file(job: Job) -> Response:
    """Return the translation as a download."""
    if job.error is not None:
        raise job.error
    if job.running:
        raise RefusalError("the document is not translated yet; ask for its status first")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(job.name)}"}
    return Response(job.content, media_type="application/octet-stream", headers=headers)
