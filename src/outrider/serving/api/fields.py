"""Fields that several APIs share, and forms (urlencoded, or multipart as in RFC 7578) as JSON.

`guard.py` limits the size of the body, so forms are parsed in memory.
"""

import json
import re
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qsl

from pydantic import ConfigDict, Field, create_model

from outrider.config import attribute_docstrings
from outrider.options import OPTIONS, DecodeConfig, Option
from outrider.serving.request import Priority, RefusalError

Code = Annotated[str, Field(min_length=2, max_length=20)]
"""A language code of the model."""
PriorityName = Literal["low", "normal", "high"]
Seconds = Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)]


_TEXTS = attribute_docstrings(DecodeConfig)


def _field(option: Option) -> Any:
    least, most = option.bounds or (None, None)
    return Field(
        default=None,
        description=_TEXTS[option.name],
        ge=least,
        le=option.http_most or most,
        allow_inf_nan=False if option.kind is float else None,
    )


_rows: dict[str, Any] = {
    row.name: (row.hint | None, _field(row)) for row in OPTIONS.values() if row.http
}
_Fields: Any = create_model("_Fields", __config__=ConfigDict(extra="forbid", frozen=True), **_rows)


class Options(_Fields):
    """Decode options that a client may set."""

    @property
    def given(self) -> dict[str, Any]:
        """Options that are set."""
        return {key: value for key, value in self if value is not None}


def read_priority(name: PriorityName | None, most: Priority) -> Priority:
    """Return the requested priority, at most that of the key."""
    return min(Priority[name], most) if name else min(Priority.normal, most)


FIELDS = 1_000
"""Most fields of a form."""
HEAD = 4_096
"""Most bytes of the headers of a part."""

URLENCODED, _MULTIPART = b"application/x-www-form-urlencoded", b"multipart/form-data"
_BOUNDARY = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s";]{1,70}))', re.IGNORECASE)
_DISPOSITION = re.compile(rb"^content-disposition:\s*form-data\s*;(.*)$", re.IGNORECASE | re.M)
_NAME = re.compile(rb'(?:^|;)\s*name=(?:"([^"]*)"|([^\s";]+))', re.IGNORECASE)
_FILE = re.compile(rb'(?:^|;)\s*filename\*?=(?:"([^"]*)"|([^\s";]*))', re.IGNORECASE)


def is_form(content_type: bytes) -> bool:
    """Whether a body of this type is a form."""
    return content_type.split(b";")[0].strip().lower() in (URLENCODED, _MULTIPART)


def form_to_json(content_type: bytes, body: bytes) -> bytes:
    """Return the fields of a form as a JSON object; a repeated field becomes a list."""
    multipart = content_type.lower().startswith(_MULTIPART)
    pairs = _read_multipart(content_type, body) if multipart else _read_urlencoded(body)
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key not in values:
            values[key] = value
        elif isinstance(values[key], list):
            values[key].append(value)
        else:
            values[key] = [values[key], value]
    return json.dumps(values).encode()


def _read_urlencoded(body: bytes) -> list[tuple[str, str]]:
    if body.count(b"&") >= FIELDS:
        raise RefusalError(f"the form has more than {FIELDS:,} fields; send fewer")
    try:
        return parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise RefusalError("the form is not UTF-8 text; send it as UTF-8") from error


class Upload(NamedTuple):
    """A form with one file."""

    fields: dict[str, str]
    name: str
    """File name, without folders."""
    content: bytes


def read_upload(content_type: bytes, body: bytes) -> Upload:
    """Read a multipart form with one file."""
    if content_type.split(b";")[0].strip().lower() != _MULTIPART:
        raise RefusalError("send the document as multipart/form-data, in the field file")
    files, pairs = [], []
    for part in _split_multipart(content_type, body):
        disposition, key, value = _split_part(part)
        if (match := _FILE.search(disposition)) is None:
            pairs.append((key, _decode(value)))
        else:
            name = _decode(match[1] or match[2] or b"").replace("\\", "/").rpartition("/")[2]
            files.append((name, value))
    if len(files) != 1:
        raise RefusalError(f"file: the form has {len(files)} files, expected one")
    return Upload(dict(pairs), *files[0])


def _read_multipart(content_type: bytes, body: bytes) -> list[tuple[str, str]]:
    return [_read_part(part) for part in _split_multipart(content_type, body)]


def _split_multipart(content_type: bytes, body: bytes) -> list[bytes]:
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise RefusalError("the multipart form has no boundary in its Content-Type; add it")
    boundary = match[1] or match[2]
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary, FIELDS + 2)
    if len(parts) > FIELDS + 1:
        raise RefusalError(f"the form has more than {FIELDS:,} fields; send fewer")
    if not parts or not parts[-1].startswith(b"--"):
        raise RefusalError("the multipart form does not end with its boundary; send all of it")
    return parts[:-1]


def _read_part(part: bytes) -> tuple[str, str]:
    disposition, key, value = _split_part(part)
    if _FILE.search(disposition):
        raise RefusalError(f"{key}: file uploads are not supported; send a plain field")
    return key, _decode(value)


def _split_part(part: bytes) -> tuple[bytes, str, bytes]:
    """Return the disposition of a part, its name and its value."""
    head, blank, value = part.partition(b"\r\n\r\n")
    disposition = _DISPOSITION.search(head) if blank and len(head) <= HEAD else None
    name = None if disposition is None else _NAME.search(disposition[1])
    if disposition is None or name is None:
        raise RefusalError("a part of the multipart form has no name; add it")
    return disposition[1], _decode(name[1] or name[2] or b""), value


def _decode(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusalError("the form is not UTF-8 text; send it as UTF-8") from error
