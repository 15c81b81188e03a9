"""Generated parts of the site: references from the code."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main
import yaml

from outrider.cli.config import run_fields
from outrider.cli.main import build_app
from outrider.config import ExplainedKey, explain
from outrider.options import OPTIONS, DecodeConfig
from outrider.torch.nn.attention import HeadShape, attention_kinds, build_attention, load_attention
from outrider_lab.bench.attention.scaling import scaling_options
from outrider_lab.tasks import load_task, task_names

COMMANDS = "<!-- every command -->"
KEYS = "<!-- every key -->"
OPTION_ROWS = "<!-- every decode option -->"
ATTENTIONS = "<!-- every attention -->"
PATTERNS = "<!-- every pattern -->"
TASKS = "<!-- every task -->"
SETTINGS = "<!-- every setting of a task -->"
SOURCES = "<!-- every source -->"
PRICED = 16_384  # length of the comparison of attentions
VERDICTS = ("yes", "argued", "not shown", "open")
IMAGES = Path(__file__).parent / "images"


def on_config(config: Any) -> Any:
    """Add the pages of docs/attention to the navigation."""
    pages = sorted(Path(config["docs_dir"], "attention").glob("*.md"))
    names = [f"attention/{page.name}" for page in pages if not page.name.endswith(".zh.md")]
    for section in config["nav"]:
        if "Attention" in section:
            section["Attention"] = sorted(names, key=lambda name: name != "attention/index.md")
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the markers of references, and add the picture to an attention's page."""
    kind = Path(page.file.src_uri).stem
    if page.file.src_uri == f"attention/{kind}.md" and kind in attention_kinds():
        markdown = _with_picture(markdown, kind)
    if COMMANDS in markdown:
        markdown = markdown.replace(
            COMMANDS, "\n".join(_commands(typer.main.get_command(build_app())))
        )
    if KEYS in markdown:
        markdown = markdown.replace(KEYS, "\n".join(_keys(run_fields())))
    if OPTION_ROWS in markdown:
        markdown = markdown.replace(OPTION_ROWS, "\n".join(_options()))
    if ATTENTIONS in markdown:
        markdown = markdown.replace(ATTENTIONS, "\n".join(_attentions()))
    if PATTERNS in markdown:
        markdown = markdown.replace(PATTERNS, "\n".join(_patterns()))
    for mark, write in ((TASKS, _tasks), (SETTINGS, _settings), (SOURCES, _sources)):
        if mark in markdown:
            markdown = markdown.replace(mark, "\n".join(write()))
    return markdown


def _sources() -> Iterator[str]:
    """List the items of the source documents with their verdicts."""
    here = Path(__file__).parent
    documents = yaml.safe_load((here / "sources.yaml").read_text(encoding="utf-8"))
    yield f"All together: {_verdicts([row for one in documents for row in one['items']])}.\n"
    for document in documents:
        yield f"## {document['document']}\n"
        yield f"[The page about it]({document['page']}); {_verdicts(document['items'])}.\n"
        rows = [
            (
                str(number),
                row["item"],
                row["verdict"],
                row.get("why", ""),
                ", ".join(_place(path) for path in row["where"]),
            )
            for number, row in enumerate(document["items"], 1)
        ]
        yield from _table(("", "item", "verdict", "why", "where"), rows)


def _verdicts(rows: list[dict[str, Any]]) -> str:
    """Count the verdicts, in the order of the legend."""
    counts = Counter(row["verdict"] for row in rows)
    found = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    return f"{len(rows)} items, {found}"


def _place(path: str) -> str:
    """Link a page; format any other path as code."""
    page = path.removeprefix("docs/")
    return f"[{page}]({page})" if path.startswith("docs/") else _code(path)


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


def _keys(fields: Iterable[ExplainedKey]) -> Iterator[str]:
    section, rows = "", [("", "", "", "")][:0]
    for field in [*fields, ExplainedKey("", "", "", "")]:
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


def _options() -> Iterator[str]:
    rows = []
    for key in explain(DecodeConfig):
        option = OPTIONS[key.key]
        places = [word for word, has in (("CLI", option.help), ("HTTP", option.http)) if has]
        cells = (", ".join(["Python, YAML", *places]), _cell(key.text))
        rows.append((_code(key.key), _code(key.type), _code(key.default), *cells))
    yield from _table(("option", "type", "default", "in", "meaning"), rows)


def _attentions() -> Iterator[str]:
    rows = []
    for kind in attention_kinds():
        variant = load_attention(kind)
        able = (("decoder", "causal_ok"), ("encoder", "two_sided_ok"))
        places = [place for place, flag in able if getattr(variant.Attention, flag)]
        spec = {"kind": kind, **scaling_options(kind, PRICED)}
        shape = HeadShape(4, 4, 64)
        attention = build_attention(spec, causal=places[0] == "decoder", shape=shape)
        pairs, slots = attention.cost(PRICED)
        summary = re.sub(r" \([^()]*\)", "", (variant.__doc__ or "").splitlines()[0])
        summary = summary.split(": ", 1)[-1]
        cost = (f"{pairs / PRICED**2:.1%}", f"{slots:,}" if "decoder" in places else "")
        rows.append((f"[`{kind}`]({kind}.md)", _cell(summary), " and ".join(places), *cost))
    head = ("kind", "", "stands in", f"pairs of {PRICED:,} tokens scored", "tokens kept to decode")
    yield from _table(head, rows)


def _with_picture(markdown: str, kind: str) -> str:
    """Insert the picture of a pattern before its config, unless the page contains it."""
    name = f"pattern-{kind}.png"
    if name in markdown or not (IMAGES / name).is_file():
        return markdown
    picture = f"![What a token sees, and what is computed for it](../images/{name})\n\n"
    head, fence, rest = markdown.partition("```yaml")
    return f"{head}{picture}{fence}{rest}" if fence else f"{markdown}\n\n{picture}"


def _patterns() -> Iterator[str]:
    for kind in attention_kinds():
        if (IMAGES / f"pattern-{kind}.png").is_file():
            picture = f"../images/pattern-{kind}.png"
            yield f'[![The pattern of {kind}]({picture}){{ width="560" }}]({kind}.md)\n'


def _tasks() -> Iterator[str]:
    rows = []
    for name in task_names():
        task = load_task(name)
        summary = (import_module(task.__module__).__doc__ or "").splitlines()[0]
        summary = re.sub(r" \([^()]*\)", "", summary).split(": ", 1)[-1]
        rows.append((_code(name), _cell(summary), ", ".join(map(_code, task.model_types))))
    yield from _table(("task", "", "for"), rows)


def _settings() -> Iterator[str]:
    """List every setting with the tasks that have it, and their defaults."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in task_names():
        for field in explain(load_task(name).config_class, "task."):
            row = (_code(field.key), _code(field.default), _cell(field.text))
            found.setdefault(row, []).append(name)
    drawn = [name for name in task_names() if name not in ("text", "translation")]
    rows = []
    for (key, default, text), names in sorted(found.items()):
        whose = {tuple(task_names()): "all", tuple(drawn): "all that are drawn"}
        who = whose.get(tuple(names), ", ".join(map(_code, names)))
        rows.append((key, who, default, text))
    yield from _table(("setting", "of", "default", "meaning"), rows)


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
