"""Strict drafting in float32 on several threads takes at most three times as long as plain."""

import json
import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "demo/en-de"
PROGRAM = """
import json, sys, time
import outrider
from outrider.decoding import decode
from outrider.runtime.options import call_settings

lines = json.load(sys.stdin)
model = outrider.load(sys.argv[1], backend="torch", dtype="float32", threads=2)
seconds, texts = {}, {}
for turn in range(3):
    for name, options in {
        "plain": {},
        "chosen": {"mode": "tandem", "strict": True},
        "blocks": {"mode": "tandem", "strict": True, "draft_tokens": 8},
    }.items():
        config = call_settings(model.backend, model.defaults, options)
        requests = [one for work in model.works(lines, config) for one in work.requests]
        began = time.perf_counter()
        found = decode(model.backend, requests, config, rows=7, controllers=model.controllers)
        taken = time.perf_counter() - began
        seconds[name] = min(taken, seconds.get(name, taken))
        texts[name] = [best.tokens for best, *_ in found]
assert texts["plain"] == texts["chosen"] == texts["blocks"]
print(json.dumps(seconds))
"""
LINES = [
    f"{who} {does} {where}."
    for who in ("The old man", "My sister", "A dog")
    for does in ("waits for the bus", "is looking for a friend")
    for where in ("at the station", "in the park today", "behind the house", "in town")
][:14]


def test_strict_in_float32_takes_at_most_three_times_as_long_as_plain() -> None:
    """Two threads and batches of seven; the minimum of three runs each reduces noise."""
    openmp = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(DEMO)],
        check=True,
        input=json.dumps(LINES),
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        env={name: value for name, value in os.environ.items() if name not in openmp},
    )
    seconds = json.loads(done.stdout)
    assert max(seconds["chosen"], seconds["blocks"]) < 3 * seconds["plain"], seconds
