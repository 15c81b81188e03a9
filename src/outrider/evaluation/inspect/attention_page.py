"""Attention maps as one HTML page to hover over, that needs nothing else: no font, no network.

Weights travel as one byte each, 255 sqrt(w): fine where weights are small and many.
"""

import base64
import json
from html import escape
from pathlib import Path
from typing import Any

from outrider.evaluation.inspect.attention_maps import AttentionMaps, Maps
from outrider.files import write_text

__all__ = ["attention_page", "write_attention_page"]

_STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fbfbfa; --card: #ffffff; --ink: #1f2933; --quiet: #7b8794; --rule: #e6e8eb;
  --empty: #f3f6f7; --low: #bfe5de; --mid: #2a9d8f; --high: #06352f; --mark: #e0a21b;
  --alike-empty: #f3f4fb; --alike: #2f43a8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #12161b; --card: #1a2027; --ink: #e6eaee; --quiet: #8b97a5; --rule: #2b333c;
    --empty: #20272e; --low: #16524a; --mid: #2fb3a3; --high: #c9fff5;
    --alike-empty: #20242e; --alike: #9fb0ff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; padding: 3vmin; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main {
  max-width: 82rem; margin: 0 auto; padding: clamp(1rem, 3vw, 2.2rem);
  background: var(--card); border: 1px solid var(--rule); border-radius: 14px;
}
.text { margin: 0; color: var(--quiet); white-space: pre-wrap; }
.output { margin: .2rem 0 0; font-size: 1.45rem; font-weight: 500; white-space: pre-wrap; }
nav { display: flex; flex-wrap: wrap; gap: .4rem; margin: 1.2rem 0 1.4rem; }
nav button {
  font: inherit; font-size: .9rem; padding: .3rem .9rem; border-radius: 99px; cursor: pointer;
  border: 1px solid var(--rule); background: none; color: var(--quiet);
}
nav button[aria-pressed=true] { background: var(--mid); border-color: var(--mid); color: #fff; }
.view { display: flex; flex-wrap: wrap; gap: 2.2rem; align-items: flex-start; }
.grid { display: grid; gap: 7px; align-items: center; font-size: .75rem; color: var(--quiet); }
.grid canvas {
  width: 72px; height: 72px; border-radius: 5px; cursor: pointer; display: block;
  outline: 1px solid var(--rule);
}
.grid canvas.alike { margin-left: 10px; width: 60px; height: 60px; cursor: default; }
.grid canvas.chosen { outline: 3px solid var(--mark); }
.grid .top { text-align: center; }
.large { flex: 1 1 26rem; min-width: 0; position: sticky; top: 1rem; }
.large h2 { margin: 0; font-size: 1.05rem; }
.large p { margin: .1rem 0 .7rem; font-size: .9rem; color: var(--quiet); min-height: 1.4em; }
.large p strong { color: var(--ink); }
.large canvas { display: block; max-width: 100%; touch-action: none; }
.words { margin: 1rem 0 0; line-height: 2.1; }
.words small { display: block; color: var(--quiet); line-height: 1.4; }
.words span {
  padding: .1rem .34rem; border-radius: 5px; margin-right: 2px; cursor: default;
  white-space: pre;
}
.words span.chosen { box-shadow: inset 0 -3px var(--mark); }
"""

_SCRIPT = """
"use strict";
const data = JSON.parse(document.getElementById("maps").textContent);
const $ = (selector) => document.querySelector(selector);
const make = (tag, parent, text) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
};
for (const part of data.parts) {
  part.bytes = Uint8Array.from(atob(part.weights), (letter) => letter.charCodeAt(0));
}
let part = data.parts[0], layer = 0, head = 0, query = null, key = null, palette;

const rgb = (name) => {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
};
const readPalette = () => {
  palette = {
    weight: ["--empty", "--low", "--mid", "--high"].map(rgb),
    alike: ["--alike-empty", "--alike"].map(rgb),
  };
};
const shade = (stops, share) => {
  const at = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1);
  const low = Math.floor(at), rest = at - low;
  return stops[low].map((c, i) => Math.round(c + rest * (stops[low + 1][i] - c)));
};
const css = (colour) => `rgb(${colour.join(",")})`;
const root = (l, h, t, s) => {
  const rows = part.queries.length, columns = part.keys.length;
  return part.bytes[((l * part.heads + h) * rows + t) * columns + s] / 255;
};
const weight = (t, s) => root(layer, head, t, s) ** 2;
const percent = (w) => (w >= 0.0995 ? (100 * w).toFixed(0) : (100 * w).toFixed(1)) + " %";

function paint(canvas, rows, columns, colour) {
  canvas.width = columns; canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let t = 0; t < rows; t++) for (let s = 0; s < columns; s++) {
    image.data.set([...colour(t, s), 255], 4 * (t * columns + s));
  }
  context.putImageData(image, 0, 0);
  canvas.style.imageRendering = "pixelated";
}
function drawGrid() {
  const grid = $(".grid");
  grid.replaceChildren();
  grid.style.gridTemplateColumns = `auto repeat(${part.heads}, auto) auto`;
  make("div", grid);
  for (let h = 0; h < part.heads; h++) make("div", grid, `head ${h + 1}`).className = "top";
  make("div", grid, "alike").className = "top";
  for (let l = 0; l < part.layers; l++) {
    make("div", grid, `layer ${l + 1}`);
    for (let h = 0; h < part.heads; h++) {
      const canvas = make("canvas", grid);
      paint(canvas, part.queries.length, part.keys.length,
            (t, s) => shade(palette.weight, root(l, h, t, s)));
      canvas.title = `layer ${l + 1}, head ${h + 1}: ${part.habits[l][h]}`;
      canvas.dataset.at = `${l},${h}`;
      canvas.onmouseenter = canvas.onclick = () => { layer = l; head = h; refresh(); };
    }
    const canvas = make("canvas", grid);
    canvas.className = "alike";
    paint(canvas, part.heads, part.heads,
          (a, b) => shade(palette.alike, part.alike[l][a][b]));
    canvas.onmousemove = (event) => {
      const size = canvas.clientWidth / part.heads;
      const a = Math.min(part.heads - 1, Math.max(0, Math.floor(event.offsetY / size)));
      const b = Math.min(part.heads - 1, Math.max(0, Math.floor(event.offsetX / size)));
      const value = part.alike[l][a][b].toFixed(2);
      canvas.title = `layer ${l + 1}: heads ${a + 1} and ${b + 1} are ${value} alike`;
    };
  }
}
let box = null;
function drawLarge() {
  const canvas = $(".large canvas"), rows = part.queries.length, columns = part.keys.length;
  const context = canvas.getContext("2d"), scale = window.devicePixelRatio || 1;
  const cell = Math.max(3, Math.min(34, Math.floor(520 / Math.max(rows, columns))));
  const letter = Math.max(7, Math.min(14, cell - 4)), font = `${letter}px system-ui, sans-serif`;
  context.font = font;
  const width = (word) => context.measureText(word).width;
  const widest = (words) => Math.min(150, Math.max(...words.map(width)));
  const left = widest(part.queries) + 12, top = widest(part.keys) + 12;
  const wide = left + columns * cell + 2, high = top + rows * cell + 2;
  canvas.width = wide * scale; canvas.height = high * scale;
  canvas.style.width = `${wide}px`; canvas.style.aspectRatio = `${wide} / ${high}`;
  context.scale(scale, scale);
  context.font = font;
  const ink = css(rgb("--ink")), quiet = css(rgb("--quiet")), mark = css(rgb("--mark"));
  const gap = cell > 8 ? 1 : 0;
  for (let t = 0; t < rows; t++) for (let s = 0; s < columns; s++) {
    context.fillStyle = css(shade(palette.weight, root(layer, head, t, s)));
    context.fillRect(left + s * cell, top + t * cell, cell - gap, cell - gap);
  }
  const every = Math.ceil((letter + 1) / cell);
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (let t = 0; t < rows; t++) if (t % every === 0 || t === query) {
    context.fillStyle = t === query ? ink : quiet;
    context.fillText(part.queries[t], left - 6, top + (t + 0.5) * cell);
  }
  context.textAlign = "left";
  for (let s = 0; s < columns; s++) if (s % every === 0 || s === key) {
    context.save();
    context.translate(left + (s + 0.5) * cell, top - 6);
    context.rotate(-Math.PI / 2);
    context.fillStyle = s === key ? ink : quiet;
    context.fillText(part.keys[s], 0, 0);
    context.restore();
  }
  if (query !== null) {
    context.strokeStyle = mark; context.lineWidth = 2;
    context.strokeRect(left - 1, top + query * cell - 1, columns * cell + 1, cell + 1);
    if (key !== null) context.strokeRect(left + key * cell, top + query * cell, cell - 1, cell - 1);
  }
  box = { left, top, cell, wide };
}
function drawWords() {
  const words = $(".words");
  words.replaceChildren();
  make("small", words, "hover over a word to see where it looks");
  part.queries.forEach((word, t) => {
    const span = make("span", words, word);
    span.className = t === query ? "chosen" : "";
    span.onmouseenter = () => {
      if (query === t && key === null) return;  // drawing puts a new word under the mouse
      query = t; key = null; refresh();
    };
  });
  make("small", words, "what it looks at");
  part.keys.forEach((word, s) => {
    const span = make("span", words, word);
    if (query === null) return;
    const r = root(layer, head, query, s);
    span.style.background = css(shade(palette.weight, r));
    span.style.color = r > 0.45 && !dark.matches ? "#fff" : r > 0.75 ? "#06352f" : "inherit";
    span.title = percent(r * r);
  });
}
function say() {
  const line = $(".large p");
  line.replaceChildren();
  $(".large h2").textContent = `${part.name}, layer ${layer + 1}, head ${head + 1}`;
  if (query === null) {
    line.textContent = `${part.title}; this head: ${part.habits[layer][head]}`;
    return;
  }
  const order = part.keys.map((_, s) => s).sort((a, b) => weight(query, b) - weight(query, a));
  const shown = key === null ? order.slice(0, 3) : [key];
  make("strong", line, part.queries[query]);
  line.append(" looks at ");
  shown.forEach((s, n) => {
    if (n) line.append(", ");
    make("strong", line, part.keys[s]);
    line.append(` ${percent(weight(query, s))}`);
  });
}
function refresh() {
  document.querySelectorAll(".grid canvas[data-at]").forEach((canvas) => {
    canvas.classList.toggle("chosen", canvas.dataset.at === `${layer},${head}`);
  });
  drawLarge(); drawWords(); say();
}
function choose(next) {
  part = next; query = key = null;
  layer = Math.min(layer, part.layers - 1); head = Math.min(head, part.heads - 1);
  document.querySelectorAll("nav button").forEach((button, n) => {
    button.setAttribute("aria-pressed", data.parts[n] === part);
  });
  drawGrid(); refresh();
}
$(".large canvas").onmousemove = (event) => {
  const ratio = box.wide / event.target.clientWidth;
  const s = Math.floor((event.offsetX * ratio - box.left) / box.cell);
  const t = Math.floor((event.offsetY * ratio - box.top) / box.cell);
  query = t >= 0 && t < part.queries.length ? t : null;
  key = query !== null && s >= 0 && s < part.keys.length ? s : null;
  refresh();
};
$(".large canvas").onmouseleave = () => { key = null; refresh(); };
data.parts.forEach((one) => { make("button", $("nav"), one.name).onclick = () => choose(one); });
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.onchange = () => { readPalette(); choose(part); };
readPalette();
choose(part);
"""


def write_attention_page(maps: AttentionMaps, path: Path) -> None:
    """Write the page of a text's attention maps to a file."""
    write_text(path, attention_page(maps))


def attention_page(maps: AttentionMaps) -> str:
    """Return where all heads look as a page."""
    data = json.dumps({"parts": [_part(part) for part in maps.parts]}, ensure_ascii=False)
    data = data.replace("<", "\\u003c")  # no word may end the script it stands in
    output = "" if maps.output is None else f'<p class="output">{escape(maps.output)}</p>'
    return f"""<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attention: {escape(maps.text)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
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
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _part(part: Maps) -> dict[str, Any]:
    layers, heads, *_ = part.weights_LHTS.shape
    roots = (255 * part.weights_LHTS.clamp(0, 1).sqrt()).round().byte()
    return {
        "name": part.name,
        "title": part.title,
        "queries": part.queries,
        "keys": part.keys,
        "layers": layers,
        "heads": heads,
        "habits": part.habits,
        "alike": [
            [[round(value, 3) for value in row] for row in layer]
            for layer in part.likeness_LHH.tolist()
        ],
        "weights": base64.b64encode(roots.contiguous().numpy().tobytes()).decode("ascii"),
    }
