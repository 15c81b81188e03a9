"""Draw the pictures of the docs again from results/ and the demo: `python docs/pictures.py`.

Nothing is measured; a picture changes only with its file or its drawing code.
"""

import json
from dataclasses import replace
from pathlib import Path

from outrider.runtime import load
from outrider.show.attention import draw_maps
from outrider.show.tandem import draw_tandem
from outrider.show.tandem_trace import trace_text
from outrider.torch.inspect.attention_maps import read_maps
from outrider_lab.bench.compare.picture import draw_comparison
from outrider_lab.bench.decode.picture import draw_decode_speed
from outrider_lab.bench.session.measure import watch_batches, watch_session
from outrider_lab.bench.session.picture import draw_session

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SENTENCE = "Do you think that she will come to the party tonight?"
TEXTS = """
I have to go to the station now.
Where is it?
My brother lives in a small house near the sea.
He is ill.
She did not tell me why she had come so late.
Thank you.
Do you want to drink a cup of tea with us?
I know.
The children were playing in the garden when it began to rain.
Nobody came.
Can you help me?
It is cold.
He reads the newspaper every morning before he goes to work.
Tom laughed.
I forgot my key.
What is that?
We would like to buy a new car next year, but we do not have enough money.
Stop!
Please sit down.
I agree.
The train was late again.
Mary can speak three languages.
You are right.
When I was a child, I lived here.
"""
"""Mixed lengths, in the given order."""


def main() -> None:
    """Draw comparisons, decoding speeds, and rounds and cross-attention of the demo."""
    for path in sorted((ROOT / "results").glob("compare-*.json")):
        draw_comparison(json.loads(path.read_text("utf-8")), IMAGES / f"{path.stem}.png")
    for name in ("bench-decode-demo", "bench-decode-large"):
        result = json.loads((ROOT / "results" / f"{name}.json").read_text("utf-8"))
        draw_decode_speed(result, IMAGES / f"{name}.png")
    maps = read_maps(load(ROOT / "demo" / "en-de", backend="torch"), SENTENCE)
    draw_maps(replace(maps, parts=maps.parts[-1:]), IMAGES / "attention-heads.png")
    native = load(ROOT / "demo" / "en-de", backend="native")
    draw_tandem(trace_text(native, SENTENCE, {"mode": "tandem"}), IMAGES / "tandem-rounds.png")
    both = (watch(native, TEXTS.split("\n"), rows=6) for watch in (watch_batches, watch_session))
    draw_session(*both, IMAGES / "session.png")


if __name__ == "__main__":
    main()
