"""OPUS-MT on the Hub: `Helsinki-NLP/opus-mt-de-en` as an entry of a list."""

import os
import re
from typing import Any

from outrider.catalog.index import OPUS_FILES, OPUS_MT, OPUS_NEEDED, Entry, File, Pair
from outrider.catalog.web import UnreachableError, Web
from outrider.errors import ModelError
from outrider.files import parse_json

ENDPOINT = "https://huggingface.co"
ORGANISATION = "Helsinki-NLP"
LICENCE = "CC-BY-4.0"
ANSWER_BYTES = 4 << 20
LARGEST = 4 << 30
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def read_hub(pair: Pair) -> tuple[Entry, Web] | None:
    """Return OPUS-MT's model of a pair; None if there is none."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    web = Web(endpoint)
    endpoint = endpoint or ENDPOINT
    name = f"{ORGANISATION}/opus-mt-{pair}"
    url = f"{endpoint}/api/models/{name}?blobs=true"
    try:
        values = parse_json(web.read(url, ANSWER_BYTES), url)
    except UnreachableError as error:
        if error.status in (401, 404):  # the Hub answers 401 for names that do not exist
            return None
        raise
    revision = values.get("sha")
    if not isinstance(revision, str) or not _HASH.fullmatch(revision):
        raise ModelError(f"{url}: states no revision")
    files = _files(values, f"{endpoint}/{name}/resolve/{revision}")
    missing = [name for name in OPUS_NEEDED if name not in files]
    if "model.safetensors" in missing:
        raise ModelError(
            f"{name}: holds no model.safetensors; its pickles can run code and are not read; "
            "convert it once with transformers (save_pretrained), and give the folder with --model"
        )
    if missing:
        raise ModelError(f"{name}: lacks {', '.join(missing)}, so it is no model of OPUS-MT")
    about = values.get("cardData")
    licence = about.get("license") if isinstance(about, dict) else None
    licence = licence.upper()[:40] if isinstance(licence, str) else LICENCE
    chosen = tuple(files[name] for name in OPUS_FILES if name in files)
    return Entry(pair, OPUS_MT, chosen, f"{name} on the Hub", licence, version=revision[:12]), web


def _files(values: dict[str, Any], base: str) -> dict[str, File]:
    rows = values.get("siblings")
    found = {}
    for row in rows if isinstance(rows, list) else []:
        name = row.get("rfilename") if isinstance(row, dict) else None
        if name not in OPUS_FILES:
            continue
        size, lfs = row.get("size"), row.get("lfs")
        sha256 = lfs.get("sha256") if isinstance(lfs, dict) else None
        size = size if type(size) is int and 0 < size <= LARGEST else None
        sha256 = sha256 if isinstance(sha256, str) and _HASH.fullmatch(sha256) else None
        found[name] = File(name, f"{base}/{name}", size, sha256)
    return found
