"""Parts of the site that are written by the code itself, so that they cannot fall behind it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from outrider.cli.config import run_fields
from outrider.cli.main import app
from outrider.config import Field
from outrider.nn.attention import attention_kinds, build_attention, load_attention

COMMANDS = "<!-- every command -->"
KEYS = "<!-- every key -->"
ATTENTIONS = "<!-- every attention -->"
PRICED = 16_384  # length at which the attentions are compared


def on_config(config: Any) -> Any:
    """List the pages of docs/attention in the navigation: a new kind is found by its page."""
    pages = sorted(Path(config["docs_dir"], "attention").glob("*.md"))
    names = [f"attention/{page.name}" for page in pages]
    for section in config["nav"]:
        if "Attention" in section:
            section["Attention"] = sorted(names, key=lambda name: name != "attention/index.md")
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the references where a page asks for them."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, "\n".join(_commands(typer.main.get_command(app))))
    if KEYS in markdown:
        markdown = markdown.replace(KEYS, "\n".join(_keys(run_fields())))
    if ATTENTIONS in markdown:
        markdown = markdown.replace(ATTENTIONS, "\n".join(_attentions()))
    return markdown


def _commands(command: Any, path: str = "outrider") -> Iterator[str]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{path} {name}")
    if getattr(command, "commands", {}):
        return
    yield f"## `{path}`\n"
    yield f"{(command.help or '').strip()}\n"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    words = [p.metavar or p.name.upper() for p in arguments]
    yield f"```text\n{' '.join([path, *words, *(['[options]'] if options else [])])}\n```\n"
    rows = [(_names(p), _cell(p.help), _default(p)) for p in [*arguments, *options]]
    yield from _table(("", "meaning", "default"), rows)


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _code(parameter.metavar or parameter.name.upper())
    return ", ".join(_code(name) for name in [*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    default = parameter.default
    hidden = default is None or default is False or callable(default) or default == []
    return "required" if parameter.required else "" if hidden else _code(str(default))


def _keys(fields: Iterable[Field]) -> Iterator[str]:
    section, rows = "", [("", "", "", "")][:0]
    for field in [*fields, Field("", "", "", "")]:
        top = field.key.split(".")[0] if "." in field.key or field.type == "section" else ""
        if top != section or not field.key:
            yield from _table(("key", "type", "default", "meaning"), rows)
            rows = []
            section = top
            if top:
                yield f"## `{top}`\n"
                yield f"{field.text}\n"
                continue
        rows.append((_code(field.key), _code(field.type), _code(field.default), _cell(field.text)))


def _attentions() -> Iterator[str]:
    rows = []
    for kind in attention_kinds():
        variant = load_attention(kind)
        able = (("decoder", "causal_ok"), ("encoder", "two_sided_ok"))
        places = [place for place, flag in able if getattr(variant.Attention, flag)]
        attention = build_attention({"kind": kind}, causal=places[0] == "decoder")
        pairs, slots = attention.cost(PRICED)
        summary = (variant.__doc__ or "").splitlines()[0].split(": ", 1)[-1]
        cost = (f"{pairs / PRICED**2:.1%}", f"{slots:,}" if "decoder" in places else "")
        rows.append((f"[`{kind}`]({kind}.md)", _cell(summary), " and ".join(places), *cost))
    head = ("kind", "", "stands in", f"pairs of {PRICED:,} tokens scored", "tokens kept to decode")
    yield from _table(head, rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(head)} |"
        yield f"|{'---|' * len(head)}"
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield ""


def _code(text: str) -> str:
    return f"`{text}`" if text else ""  # a pipe in code does not end a cell


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
