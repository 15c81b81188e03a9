"""HTML pages without external resources: a tandem decoding, and attention maps.

Attention weights are stored in a byte each, as 255 sqrt(w), which keeps the resolution of small
weights.
"""

import base64
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.files import write_text
from outrider.show.palette import css_variables
from outrider.show.tandem_trace import KINDS, Kind, Span, Trace

if TYPE_CHECKING:
    from outrider.torch.inspect.attention_maps import AttentionMaps, Maps


def read_asset(name: str) -> str:
    """Return a CSS or JS file of this package."""
    return files("outrider.show").joinpath(name).read_text(encoding="utf-8")


def html_page(title: str, body: str, *, style: str) -> str:
    """Return a whole page; `style` names the CSS file to add to the common one."""
    css = "".join((css_variables(), read_asset("page.css"), read_asset(style)))
    return f"""<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{css}</style>
</head>
<body>
{body}
</body>
</html>
"""


_ELEMENT: dict[Kind, str] = {"refused": "del", "dropped": "del", "correction": "ins"}


def write_page(trace: Trace, path: Path) -> None:
    """Write the page of a tandem decoding."""
    write_text(path, tandem_page(trace))


def tandem_page(trace: Trace) -> str:
    """Return the page of a tandem decoding."""
    legend = "".join(f'<li><i class="{kind}"></i>{KINDS[kind]}</li>' for kind in trace.kinds)
    rounds = "".join(_round(number, spans) for number, spans in enumerate(trace.rounds, start=1))
    body = f"""<main>
<p class="source">{escape(trace.source)}</p>
<p class="text">{_text(trace)}</p>
<ul class="legend">{legend}</ul>
<ol class="rounds">{rounds}</ol>
{_figures(trace)}
</main>"""
    return html_page(trace.text, body, style="tandem_page.css")


def _text(trace: Trace) -> str:
    """Underline the final text by the origin of its tokens, if they spell it exactly."""
    spans = [span for spans in trace.rounds for span in spans if span.kept and not span.ends]
    if "".join(span.text for span in spans).strip() != trace.text.strip():
        return escape(trace.text)
    return "".join(_underlined(span) for span in spans)


def _underlined(span: Span) -> str:
    word = span.text.lstrip()
    space = span.text[: len(span.text) - len(word)]
    return f'{escape(space)}<span class="{span.kind}">{escape(word)}</span>'


def _round(number: int, spans: Sequence[Span]) -> str:
    delay = min(number - 1, 20) * 0.12
    tokens = "".join(_token(span) for span in spans)
    return (
        f'<li style="animation-delay:{delay:.2f}s"><b>{number}</b>'
        f'<div class="tokens">{tokens}</div></li>'
    )


def _token(span: Span) -> str:
    tag = _ELEMENT.get(span.kind, "span")
    classes = ["token", span.kind]
    classes += ["end"] if span.ends else []
    classes += ["word"] if span.ends or span.text[:1].isspace() else []
    return (
        f'<{tag} class="{" ".join(classes)}" data-tip="{escape(_tip(span))}">'
        f"{escape(span.label)}</{tag}>"
    )


def _tip(span: Span) -> str:
    place = f"place {span.place} of the draft" if span.place else "by the model itself"
    confidence = "" if span.confidence is None else f", confidence {span.confidence:.0%}"
    return f"{KINDS[span.kind]}: {place}{confidence}, token {span.token}"


def _figures(trace: Trace) -> str:
    statistics = trace.statistics
    figures = (
        (f"{statistics.tokens_per_round:.2f}", "tokens a round"),
        (str(statistics.rounds), "rounds"),
        (str(statistics.tokens), "tokens"),
    )
    cells = "".join(f"<div><strong>{value}</strong>{name}</div>" for value, name in figures)
    bars = "".join(
        f'<li>{share:.0%}<div><i style="height:{share:.1%}"></i></div>{place}</li>'
        for place, share in enumerate(statistics.acceptance_by_position, start=1)
    )
    if not bars:
        return f'<div class="figures">{cells}</div>'
    return (
        f'<div class="figures">{cells}</div>\n'
        '<p class="note">share of the drafts that held up to place</p>\n'
        f'<ol class="bars">{bars}</ol>'
    )


def write_attention_page(maps: "AttentionMaps", path: Path) -> None:
    """Write the page of a text's attention maps to a file."""
    write_text(path, attention_page(maps))


def attention_page(maps: "AttentionMaps") -> str:
    """Return the HTML page of a text's attention maps."""
    data = json.dumps({"parts": [_part(part) for part in maps.parts]}, ensure_ascii=False)
    data = data.replace("<", "\\u003c")  # no token may close the script element
    output = "" if maps.output is None else f'<p class="output">{escape(maps.output)}</p>'
    body = f"""<main>
<p class="text">{escape(maps.text)}</p>
{output}
<noscript><p>This page draws its maps with a script; allow it to run.</p></noscript>
<nav></nav>
<div class="view">
<div class="grid"></div>
<div class="large"><h2></h2><p></p><canvas></canvas><div class="words"></div></div>
</div>
</main>
<script type="application/json" id="maps">{data}</script>
<script>
{read_asset("attention_page.js")}</script>"""
    return html_page(f"Attention: {maps.text}", body, style="attention_page.css")


def _part(part: "Maps") -> dict[str, Any]:
    layers, heads, *_ = part.weights_LHTS.shape
    roots = (255 * part.weights_LHTS.clamp(0, 1).sqrt()).round().byte()
    return {
        "name": part.name,
        "title": part.title,
        "queries": part.queries,
        "keys": part.keys,
        "layers": layers,
        "heads": heads,
        "descriptions": part.descriptions,
        "alike": [
            [[round(value, 3) for value in row] for row in layer]
            for layer in part.similarity_LHH.tolist()
        ],
        "weights": base64.b64encode(roots.contiguous().numpy().tobytes()).decode("ascii"),
    }
