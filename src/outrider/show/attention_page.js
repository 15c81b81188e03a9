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
      canvas.title = `layer ${l + 1}, head ${h + 1}: ${part.descriptions[l][h]}`;
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
    line.textContent = `${part.title}; this head: ${part.descriptions[layer][head]}`;
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
