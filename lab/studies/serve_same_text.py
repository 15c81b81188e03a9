"""Compare answers of a loaded server with offline texts: `python lab/studies/serve_same_text.py`.

Starts `outrider serve` on loopback with tiny models (those of the tests) and compares each answer
with the library's output. First many clients send requests of all kinds in all modes, and some
disconnect early. With `--apis`, they use all translation APIs at once instead, directly and through
a pivot, and the memory fits two of four models. Prints counts as JSON; exits with 1 if any text
differs.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from outrider.serving.registry import read_spec
from outrider_lab.bench.serve.server import serve_line, serving
from tests.helpers import all_apis, drafted
from tests.helpers.same_text import play


def main() -> None:
    """Run the clients and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--quit", type=float, default=0.1, help="Share of early disconnects.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--apis", action="store_true", help="Use all translation APIs.")
    given = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found, different, code = (_all_apis if given.apis else _all_modes)(Path(folder), given)
    told = {
        "requests": given.requests,
        "clients": given.clients,
        **found,
        "different": len(different),
        "seconds": round(time.perf_counter() - began, 1),
        "server_exit": code,
    }
    print(json.dumps(told, indent=2))
    for one, answer, wanted in different[:5]:
        print(one, answer, wanted, sep="\n  ", file=sys.stderr)
    sys.exit(1 if different or code else 0)


Found = tuple[dict[str, Any], list[tuple[Any, Any, Any]], int | None]
"""Counts, different answers, and the exit code of the server."""


def _all_modes(folder: Path, given: argparse.Namespace) -> Found:
    translator = drafted.save_translator(folder / "tiny", ctc=True)
    writer = drafted.save_language_model(folder / "text")
    line = serve_line(f"en-de={translator}", writer, "--deadline", 600)
    with serving(folder / "log", line) as server:
        outcome = play(
            server.url,
            translator,
            writer,
            place={"backend": "native"},
            requests=given.requests,
            clients=given.clients,
            quit_share=given.quit,
            seed=given.seed,
        )
    assert server.process is not None
    counts = {"answered": outcome.answered, "quit": outcome.quit}
    return counts, outcome.different, server.process.returncode


def _all_apis(folder: Path, given: argparse.Namespace) -> Found:
    first = drafted.save_translator(folder / "first", ctc=True)
    second = drafted.save_translator(folder / "second", drafter=False, seed=7)
    models = {"de-en": first, "en-pt": second, "fr-en": second, "en-es": first}
    memory = 2 * max(read_spec(str(path)).weights for path in models.values())
    pairs = [f"{name}={path}" for name, path in models.items()]
    options = ("--memory", memory, "--idle", 1, "--deadline", 600)
    with serving(folder / "log", serve_line(*pairs, *options)) as server:
        outcome = all_apis.play(
            server.url, models, given.requests, clients=given.clients, seed=given.seed
        )
    assert server.process is not None
    names = ("answered", "pivoted", "repeated", "loads", "unloads")
    counts = {name: getattr(outcome, name) for name in names}
    return counts, outcome.different, server.process.returncode


if __name__ == "__main__":
    main()
