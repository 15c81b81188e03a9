"""Attention maps as an interactive HTML page.

Weights are stored in a byte each, as 255 sqrt(w), which keeps the resolution of small weights.
"""

import base64
import json
from html import escape
from pathlib import Path
from typing import Any

from outrider.files import write_text
from outrider.show.page import html_page, read_asset
from outrider.torch.inspect.attention_maps import AttentionMaps, Maps


def write_attention_page(maps: AttentionMaps, path: Path) -> None:
    """Write the page of a text's attention maps to a file."""
    write_text(path, attention_page(maps))


def attention_page(maps: AttentionMaps) -> str:
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
        "descriptions": part.descriptions,
        "alike": [
            [[round(value, 3) for value in row] for row in layer]
            for layer in part.similarity_LHH.tolist()
        ],
        "weights": base64.b64encode(roots.contiguous().numpy().tobytes()).decode("ascii"),
    }
