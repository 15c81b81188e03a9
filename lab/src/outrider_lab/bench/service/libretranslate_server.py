"""LibreTranslate with an exported model. A script.

    outrider export MODEL CT2 --to ctranslate2 --quantization int8
    python lab/src/outrider_lab/bench/service/libretranslate_server.py CT2 --pair zh-en --port 5001

`outrider lab bench service` runs both; `outrider lab bench serve` takes the address. The script
runs in an environment with `pip install libretranslate`, without Outrider.

The model becomes an installed Argos package. For a fair comparison it decodes greedily, on one
thread, in int8; LibreTranslate's default is a beam of four. Its sentence splitter, a download, is
disabled, which is correct for one sentence per request and saves time.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path


def main() -> None:
    """Create the package, and serve it until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="Output of outrider export --to ctranslate2.")
    parser.add_argument("--pair", required=True, help="Languages, as zh-en.")
    parser.add_argument("--port", type=int, default=5001, help="0 for a free one.")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the engine.")
    parser.add_argument("--clients", type=int, default=64, help="Threads that answer clients.")
    given = parser.parse_args()
    source, target = given.pair.split("-")
    with tempfile.TemporaryDirectory() as home:
        package = Path(home, "packages", f"translate-{source}_{target}-1_0")
        package.mkdir(parents=True)
        (package / "model").symlink_to(given.model.resolve())
        (package / "sentencepiece.model").symlink_to((given.model / "source.spm").resolve())
        about = {"package_version": "1.0", "argos_version": "1.9", "type": "translate"}
        about |= {"from_code": source, "from_name": source, "to_code": target, "to_name": target}
        (package / "metadata.json").write_text(json.dumps(about), encoding="utf-8")
        os.environ |= {
            "XDG_DATA_HOME": home,
            "XDG_CONFIG_HOME": home,
            "XDG_CACHE_HOME": home,
            "ARGOS_PACKAGES_DIR": str(package.parent),
            "ARGOS_BEAM_SIZE": "1",
            "ARGOS_COMPUTE_TYPE": "int8",
            "ARGOS_INTRA_THREADS": str(given.threads),
        }
        os.chdir(home)  # the folder of its database
        _serve(given.port, given.clients)


def _serve(port: int, clients: int) -> None:
    from argostranslate import sbd
    from libretranslate import init
    from libretranslate.main import main as serve

    def whole(splitter: object, text: str) -> list[str]:
        return [text]

    if port == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    threading.Thread(target=_announce, args=(port,), daemon=True).start()
    init.boot = lambda *args, **more: None  # would download other models
    sbd.MiniSBDSentencizer.split_sentences = whole
    line = ["--host", "127.0.0.1", "--port", str(port), "--threads", str(clients)]
    sys.argv = ["libretranslate", *line, "--disable-web-ui", "--disable-files-translation"]
    serve()


def _announce(port: int) -> None:
    """Print the address when the server accepts connections."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            print(f"listening at http://127.0.0.1:{port} : startup complete", flush=True)
            return


if __name__ == "__main__":
    main()
