"""A tandem decoding as one HTML page that needs nothing else: no script, no font, no network."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from outrider.evaluation.inspect.tandem_trace import KINDS, Kind, Span, Trace
from outrider.files import write_text

__all__ = ["tandem_page", "write_page"]

_ELEMENT: dict[Kind, str] = {"refused": "del", "dropped": "del", "correction": "ins"}

_STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fbfbfa; --card: #ffffff; --ink: #1f2933; --quiet: #7b8794; --rule: #e6e8eb;
  --accepted: #d3f0ea; --accepted-ink: #0b5c52; --refused: #fbe3dc; --refused-ink: #a63d1f;
  --dropped: #f3f4f6; --dropped-ink: #9aa5b1; --correction: #fdedc8; --correction-ink: #7a4d00;
  --bonus: #dfe6fb; --bonus-ink: #2c3e9e; --plain: #eceff2; --plain-ink: #3e4c59; --bar: #2a9d8f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #12161b; --card: #1a2027; --ink: #e6eaee; --quiet: #8b97a5; --rule: #2b333c;
    --accepted: #12413b; --accepted-ink: #8be3d3; --refused: #4a2118; --refused-ink: #ffa88f;
    --dropped: #20272e; --dropped-ink: #66727f; --correction: #4a3709; --correction-ink: #ffd98a;
    --bonus: #262f5e; --bonus-ink: #b4c2ff; --plain: #2b333c; --plain-ink: #c3ccd5; --bar: #2fb3a3;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; padding: 4vmin; background: var(--ground); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main {
  max-width: 62rem; margin: 0 auto; padding: clamp(1.2rem, 4vw, 2.6rem);
  background: var(--card); border: 1px solid var(--rule); border-radius: 14px;
}
.source { margin: 0; color: var(--quiet); white-space: pre-wrap; }
.text {
  margin: .3rem 0 1.6rem; font-size: 1.5rem; line-height: 1.7; font-weight: 500;
  white-space: pre-wrap;
}
.text span { border-bottom: 3px solid transparent; padding-bottom: 1px; }
.text .accepted { border-color: var(--bar); }
.text .correction { border-color: #e0a21b; }
.text .bonus { border-color: #5b74e8; }
.legend, .rounds, .bars { list-style: none; margin: 0; padding: 0; }
.legend {
  display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; padding-bottom: 1rem; font-size: .85rem;
  color: var(--quiet); border-bottom: 1px solid var(--rule);
}
.legend i {
  display: inline-block; width: .85em; height: .85em; border-radius: 3px; margin: 0 .45em -.1em 0;
}
.rounds { padding: 1rem 0; border-bottom: 1px solid var(--rule); }
.rounds li { display: flex; gap: 1rem; padding: .22rem 0; animation: appear .4s both; }
.rounds b {
  width: 1.6rem; flex: none; text-align: right; font-weight: 400; color: var(--quiet);
  font-size: .85rem; line-height: 2.1;
}
.tokens { display: flex; flex-wrap: wrap; gap: 4px; }
.token {
  position: relative; padding: .05rem .42rem; border-radius: 5px; white-space: pre;
  text-decoration: none; cursor: default;
}
.word { margin-left: 4px; }
.tokens > :first-child { margin-left: 0; }
.accepted { background: var(--accepted); color: var(--accepted-ink); }
.refused { background: var(--refused); color: var(--refused-ink); text-decoration: line-through; }
.dropped { background: var(--dropped); color: var(--dropped-ink); }
.correction { background: var(--correction); color: var(--correction-ink); font-weight: 600; }
.bonus { background: var(--bonus); color: var(--bonus-ink); }
.plain { background: var(--plain); color: var(--plain-ink); }
.text span { background: none; color: inherit; font-weight: inherit; }
.end { font-size: .78rem; line-height: 2.05; letter-spacing: .03em; }
.token:hover::after {
  content: attr(data-tip); position: absolute; left: 50%; bottom: calc(100% + 6px); z-index: 1;
  transform: translateX(-50%); padding: .25rem .6rem; border-radius: 6px;
  font: 400 .8rem/1.5 system-ui, sans-serif;
  background: var(--ink); color: var(--card); pointer-events: none; width: max-content;
}
.figures { display: flex; flex-wrap: wrap; gap: .4rem 2.4rem; margin: 1.3rem 0 .6rem; }
.figures div { font-size: .85rem; color: var(--quiet); }
.figures strong {
  display: block; font-size: 1.7rem; line-height: 1.25; font-weight: 600; color: var(--ink);
}
.bars { display: flex; gap: 10px; align-items: flex-end; margin-top: .8rem; }
.bars li { width: 46px; text-align: center; font-size: .78rem; color: var(--quiet); }
.bars div {
  height: 56px; border-radius: 4px; background: var(--dropped); display: flex;
  align-items: flex-end; overflow: hidden; margin: .15rem 0;
}
.bars div i { display: block; width: 100%; background: var(--bar); }
.note { margin: 1rem 0 0; font-size: .85rem; color: var(--quiet); }
@keyframes appear { from { opacity: 0; transform: translateY(4px); } }
@media (prefers-reduced-motion: reduce) { .rounds li { animation: none; } }
"""


def write_page(trace: Trace, path: Path) -> None:
    """Write the page of a tandem decoding to a file."""
    write_text(path, tandem_page(trace))


def tandem_page(trace: Trace) -> str:
    """Return how a text came about as a page."""
    legend = "".join(f'<li><i class="{kind}"></i>{KINDS[kind]}</li>' for kind in trace.kinds)
    rounds = "".join(_round(number, spans) for number, spans in enumerate(trace.rounds, start=1))
    return f"""<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(trace.text)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<p class="source">{escape(trace.source)}</p>
<p class="text">{_text(trace)}</p>
<ul class="legend">{legend}</ul>
<ol class="rounds">{rounds}</ol>
{_figures(trace)}
</main>
</body>
</html>
"""


def _text(trace: Trace) -> str:
    """Underline the final text by where each part of it came from, if its tokens spell it out."""
    spans = [span for spans in trace.rounds for span in spans if span.stands and not span.ends]
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
    sure = "" if span.confidence is None else f", confidence {span.confidence:.0%}"
    return f"{KINDS[span.kind]}: {place}{sure}, token {span.token}"


def _figures(trace: Trace) -> str:
    done = trace.statistics
    figures = (
        (f"{done.tokens_per_round:.2f}", "tokens a round"),
        (str(done.rounds), "rounds"),
        (str(done.tokens), "tokens"),
    )
    cells = "".join(f"<div><strong>{value}</strong>{name}</div>" for value, name in figures)
    bars = "".join(
        f'<li>{share:.0%}<div><i style="height:{share:.1%}"></i></div>{place}</li>'
        for place, share in enumerate(done.acceptance_by_position, start=1)
    )
    if not bars:
        return f'<div class="figures">{cells}</div>'
    return (
        f'<div class="figures">{cells}</div>\n'
        '<p class="note">share of the drafts that held up to place</p>\n'
        f'<ol class="bars">{bars}</ol>'
    )
