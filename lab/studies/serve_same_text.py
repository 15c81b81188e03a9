"""Compare answers of a loaded server with offline texts: `python lab/studies/serve_same_text.py`.

Starts `outrider serve` on loopback with two tiny models (those of the tests), sends requests of all
kinds in all modes from many clients, some of which disconnect early, and compares each answer with
the library's output. Prints counts as JSON; exits with 1 if any text differs.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from outrider_lab.bench.serve.server import serve_line, serving
from tests.helpers import drafted
from tests.helpers.same_text import play


def main() -> None:
    """Run the clients and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--quit", type=float, default=0.1, help="Share of early disconnects.")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        translator = drafted.save_translator(Path(folder) / "tiny", ctc=True)
        writer = drafted.save_language_model(Path(folder) / "text")
        line = serve_line(f"en-de={translator}", writer, "--deadline", 600)
        began = time.perf_counter()
        with serving(Path(folder) / "log", line) as server:
            outcome = play(
                server.url,
                translator,
                writer,
                load_options={"backend": "native"},
                requests=given.requests,
                clients=given.clients,
                quit_share=given.quit,
                seed=given.seed,
            )
        assert server.process is not None
        code = server.process.returncode
    told = {
        "requests": given.requests,
        "clients": given.clients,
        "answered": outcome.answered,
        "quit": outcome.quit,
        "different": len(outcome.different),
        "seconds": round(time.perf_counter() - began, 1),
        "server_exit": code,
    }
    print(json.dumps(told, indent=2))
    for one, answer, wanted in outcome.different[:5]:
        print(one, answer, wanted, sep="\n  ", file=sys.stderr)
    sys.exit(1 if outcome.different or code else 0)


if __name__ == "__main__":
    main()
