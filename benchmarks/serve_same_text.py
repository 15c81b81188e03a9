"""Every answer of a server under load is the offline one: `python benchmarks/serve_same_text.py`.

Starts `outrider serve` on loopback with two tiny models (as the tests make them), lets many clients
ask for everything it can do, in all modes, some hanging up on the way, and compares each answer
with what the library says alone. Prints counts as JSON; exits with 1 if any text differs.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import drafted
from same_text import play


def main() -> None:
    """Play, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--quit", type=float, default=0.1, help="Share of clients that hang up.")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        translator = drafted.save_translator(Path(folder) / "tiny", ctc=True)
        writer = drafted.save_language_model(Path(folder) / "text")
        models = (f"en-de={translator}", str(writer))
        line = (sys.executable, "-m", "outrider", "serve", *models, "--port", "0")
        log = Path(folder) / "log"  # a pipe that nobody reads would stop the server
        with log.open("w") as file:
            server = subprocess.Popen(
                (*line, "--backend", "native", "--deadline", "600"), stderr=file
            )
        try:
            url = _address(server, log)
            began = time.perf_counter()
            outcome = play(
                url,
                translator,
                writer,
                place={"backend": "native"},
                requests=given.requests,
                clients=given.clients,
                quit_share=given.quit,
                seed=given.seed,
            )
        finally:
            server.terminate()
            server.wait(60)
    told = {
        "requests": given.requests,
        "clients": given.clients,
        "answered": outcome.answered,
        "quit": outcome.quit,
        "different": len(outcome.different),
        "seconds": round(time.perf_counter() - began, 1),
        "server_exit": server.returncode,
    }
    print(json.dumps(told, indent=2))
    for one, answer, wanted in outcome.different[:5]:
        print(one, answer, wanted, sep="\n  ", file=sys.stderr)
    sys.exit(1 if outcome.different or server.returncode else 0)


def _address(server: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait until the server is up, and say where."""
    while server.poll() is None:
        told = log.read_text()
        if "startup complete" in told:
            return re.findall(r"listening at (\S+)", told)[0]
        time.sleep(0.1)
    sys.exit(f"the server did not start:\n{log.read_text()}")


if __name__ == "__main__":
    main()
