"""The page of all routes at `/docs`, written from the OpenAPI schema; it needs no script."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Outrider: routes</title>
<link rel="icon" href="page/logo.svg" type="image/svg+xml">
<link rel="stylesheet" href="page/docs.css">
</head>
<body>
<main>
"""
_KEY = (
    "<p>If the server needs a key, send it as <code>Authorization: Bearer KEY</code>, "
    "<code>Authorization: DeepL-Auth-Key KEY</code> or <code>X-API-Key: KEY</code>, or in the "
    "query as <code>api_key</code>, <code>key</code> or <code>token</code>. "
    'The schema for programs is <a href="openapi.json">/openapi.json</a>.</p>\n'
)


def write_docs(schema: Mapping[str, Any]) -> str:
    """Write the page of an OpenAPI schema."""
    groups: dict[str, list[str]] = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            (tag,) = operation["tags"]
            groups.setdefault(tag, []).append(_operation(schema, method, path, operation))
    names = [(tag, tag.lower().replace(" ", "-")) for tag in groups]
    links = " ".join(f'<a href="#{name}">{escape(tag)}</a>' for tag, name in names)
    parts = [_HEAD, "<h1>Routes</h1>\n", f"<nav>{links}</nav>\n", _KEY]
    for tag, name in names:
        parts += [f'<h2 id="{name}">{escape(tag)}</h2>\n', *groups[tag]]
    return "".join([*parts, "</main>\n</body>\n</html>\n"])


def _operation(
    schema: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]
) -> str:
    rows = [
        _row(schema, field["name"], field["schema"], field.get("required", False))
        for field in operation.get("parameters", ())
    ]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        rows += _body_rows(schema, content["schema"])
    head = "<tr><th>field</th><th>values</th><th>default</th><th></th></tr>"
    table = f'<div class="wide"><table>{head}{"".join(rows)}</table></div>\n' if rows else ""
    title = f"<h3><b>{method.upper()}</b> <code>{escape(path)}</code></h3>\n"
    return (
        f"<section>\n{title}<p>{_prose(operation.get('description', ''))}</p>\n{table}</section>\n"
    )


def _body_rows(schema: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[str]:
    found = _resolve(schema, body)
    required = found.get("required", ())
    for name, field in found.get("properties", {}).items():
        yield _row(schema, name, field, name in required)


def _row(schema: Mapping[str, Any], name: str, field: Mapping[str, Any], required: bool) -> str:
    default = "required" if required else escape(str(field.get("default") or ""))
    text = _prose(field.get("description", ""))
    values = escape(" or ".join(dict.fromkeys(_values(schema, field))))
    cells = (f"<code>{escape(name)}</code>", values, default, text)
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _values(schema: Mapping[str, Any], field: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values that a field may have."""
    field = _resolve(schema, field)
    if "anyOf" in field:
        for one in field["anyOf"]:
            yield from _values(schema, one)
    elif "enum" in field or "const" in field:
        yield from (str(value) for value in field.get("enum", [field.get("const")]) if value != "")
    elif field.get("type") == "array":
        yield f"list of {' or '.join(_values(schema, field.get('items', {})))}"
    elif field.get("type") == "object":
        yield ", ".join(field.get("properties", ())) or "object"
    elif field.get("type") != "null":
        yield field.get("type", "any")


def _resolve(schema: Mapping[str, Any], field: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema to which a reference leads."""
    name = field.get("$ref", "").removeprefix("#/components/schemas/")
    found: Mapping[str, Any] = schema["components"]["schemas"][name] if name else field
    return found


def _prose(text: str) -> str:
    """Escape a docstring; text in backticks becomes code."""
    parts = escape(text).replace("``", "`").split("`")
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(parts))
