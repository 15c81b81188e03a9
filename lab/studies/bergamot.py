"""A Bergamot student in several engines: the same file and lines, one thread each.

    python lab/studies/bergamot.py FOLDER --source TEXT.en.gz --json FILE [--node node_modules]

Peers are `fxtranslate` (pip), a port of Firefox's engine, and `@browsermt/bergamot-translator`
(npm, WebAssembly; `--node` names its folder). Each engine runs in its own process and translates
line by line, greedily. Engines take turns of a few lines. An engine with `+lex` scores only tokens
of the lexical shortlist, as Firefox does.

Texts are compared with each other and with those of PyTorch in float32 from the int8 weights of the
file.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from outrider.data.lines import open_lines
from outrider.runtime.provenance import machine, origin, versions, write_result
from outrider_lab.bench.service.peers import BERGAMOT

FEW = 10
"""Lines per turn."""
WASM = "bergamot-wasm+lex"
LABELS = {
    "reference": "PyTorch, float32",
    "outrider": "Outrider, int8",
    "outrider+lex": "Outrider, int8, shortlist",
    "fxtranslate": "fxtranslate",
    "fxtranslate+lex": "fxtranslate, shortlist",
    WASM: "bergamot-translator (wasm), shortlist",
}


def build(name: str, folder: Path) -> Callable[[str], str]:
    """Load an engine; return a function that translates one line."""
    if name.startswith("fxtranslate"):
        import fxtranslate  # type: ignore[import-not-found]

        def read(pattern: str) -> bytes:
            return next(folder.glob(pattern)).read_bytes()

        files = [read("model.*.bin"), read("vocab.*.spm"), read("vocab.*.spm")]
        engine = fxtranslate.Translator(*files, *([read("lex.*.bin")] if "+lex" in name else []))
        print(json.dumps({"computes": engine.backend()}), flush=True)
        return engine.translate  # type: ignore[no-any-return]

    from outrider.runtime import Translator, load

    if name == "reference":
        loaded = load(folder, backend="torch", threads=1)
    else:
        loaded = load(folder, backend="native", threads=1, shortlist="+lex" in name)
    assert isinstance(loaded, Translator)
    computes = getattr(loaded.backend, "instruction_set", "torch")
    print(json.dumps({"computes": computes}), flush=True)
    return lambda line: loaded.translate(line, split=False)


def work(name: str, folder: Path) -> None:
    """Translate lists of lines from stdin and print the texts and seconds."""
    translate = build(name, folder)
    for turn in sys.stdin:
        lines = json.loads(turn)
        began = perf_counter()
        texts = [translate(line) for line in lines]
        print(json.dumps({"seconds": perf_counter() - began, "texts": texts}), flush=True)


class Engine:
    """An engine in its own process."""

    def __init__(self, name: str, folder: Path, node: Path | None) -> None:
        self.name = name
        command = [sys.executable, __file__, str(folder), "--engine", name]
        if name == WASM:
            command = ["node", str(BERGAMOT), str(node), str(folder)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.computes: str = self._read()["computes"]

    def translate(self, lines: Sequence[str]) -> tuple[float, list[str]]:
        """Translate lines; return the engine's own seconds and the texts."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(list(lines)) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        return answer["seconds"], answer["texts"]

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name}: ended without an answer")
        return json.loads(line)  # type: ignore[no-any-return]


def measure(
    engines: Sequence[Engine], lines: Sequence[str], repeats: int
) -> tuple[dict[str, list[float]], dict[str, list[str]]]:
    """Run engines in turns; return the seconds of each repeat, and the texts of the last."""
    seconds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    texts: dict[str, list[str]] = {}
    for engine in engines:
        engine.translate(lines[:FEW])  # warm-up
    for _ in range(repeats):
        for engine in engines:
            seconds[engine.name].append(0.0)
        texts = {engine.name: [] for engine in engines}
        for turn, begin in enumerate(range(0, len(lines), FEW)):
            first = turn % len(engines)
            for engine in [*engines[first:], *engines[:first]]:
                took, found = engine.translate(lines[begin : begin + FEW])
                seconds[engine.name][-1] += took
                texts[engine.name] += found
    return seconds, texts


def main() -> None:
    """Measure all available engines and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--node", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--engines", help="some of the engines, comma-separated; by default all")
    parser.add_argument("--engine", help="run as the process of this engine")
    options = parser.parse_args()
    if options.engine:
        work(options.engine, options.model)
        return
    with open_lines(options.source) as raw:
        lines = [line.decode() for line in raw if line.strip()][: options.lines]
    names = [name for name in LABELS if name != "reference" and (name != WASM or options.node)]
    if options.engines:
        names = [name for name in names if name in options.engines.split(",")]
    reference = Engine("reference", options.model, None)
    expected = reference.translate(lines)[1]
    reference.close()
    engines = [Engine(name, options.model, options.node) for name in names]
    seconds, texts = measure(engines, lines, options.repeats)
    words = sum(len(line.split()) for line in lines)
    texts["reference"] = expected
    rows = [_row(engine, seconds[engine.name], texts, words) for engine in engines]
    print("| engine | words/s | equal to float32 | " + " | ".join(f"= {name}" for name in names))
    print("|---|" + "---|" * (2 + len(names)))
    for row in rows:
        equal = " | ".join(str(row["equal"][name]) for name in ["reference", *names])
        print(f"| {LABELS[row['engine']]} | {row['words_per_second']:.0f} | {equal} |")
    for engine in engines:
        engine.close()
    if options.json is not None:
        about = {
            "task": "a Bergamot student in several engines",
            "lines": len(lines),
            "words": words,
            "repeats": options.repeats,
            "rows": rows,
            **origin(options.model, source=options.source),
        }
        found = {**versions(), **_peer_versions(options.node)}
        write_result(options.json, {**about, "machine": machine(), "versions": found})
        print(f"wrote {options.json}")


def _row(
    engine: Engine, seconds: Sequence[float], texts: dict[str, list[str]], words: int
) -> dict[str, Any]:
    own = texts[engine.name]
    return {
        "engine": engine.name,
        "computes": engine.computes,
        "words_per_second": words / median(seconds),
        "seconds": list(seconds),
        "equal": {
            name: sum(one == other for one, other in zip(own, others, strict=True))
            for name, others in texts.items()
        },
    }


def _peer_versions(node: Path | None) -> dict[str, str]:
    found = {}
    try:
        found["fxtranslate"] = version("fxtranslate")
    except PackageNotFoundError:
        found["fxtranslate"] = "unknown"
    if node is not None:
        package = node / "@browsermt" / "bergamot-translator" / "package.json"
        found["bergamot-translator"] = json.loads(package.read_text())["version"]
        found["node"] = subprocess.check_output(["node", "--version"], text=True).strip()
    return found


if __name__ == "__main__":
    main()
