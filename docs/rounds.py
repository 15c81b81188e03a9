"""Write docs/rounds.json, the rounds on the first page: `python docs/rounds.py`."""

import json
from pathlib import Path
from typing import Any

from outrider.runtime import load
from outrider.show.tandem_trace import trace_text

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "rounds.json"
TEXT = "Do you think that she will come to the party tonight?"


def demo_rounds() -> dict[str, Any]:
    """Translate with the demo in int8, which gives the same numbers on every CPU."""
    trace = trace_text(load(ROOT / "demo" / "en-de", backend="native"), TEXT, {"mode": "tandem"})
    return {
        "source": trace.source,
        "text": trace.text,
        "tokens": trace.statistics.tokens,
        "rounds": [
            [{"text": span.label, "kind": span.kind} for span in spans] for spans in trace.rounds
        ],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(demo_rounds(), ensure_ascii=False, indent=1) + "\n", "utf-8")
