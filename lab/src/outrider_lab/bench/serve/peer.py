"""A typical CTranslate2 server: FastAPI with dynamic batches. Run as a script.

    python peer.py FOLDER THREADS

Requests that arrive during decoding wait for the next batch, of at most 64; an idle server waits
two milliseconds for further requests. One batch at a time, greedy, int8, as in our server.
"""

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

BATCH, WAIT = 64, 0.002


def main() -> None:
    """Serve the model of the first argument on the threads of the second."""
    import ctranslate2
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    from outrider.serving.run import bind
    from outrider.text.normalise import normalise
    from outrider.text.tokenizer import load_tokenizer

    folder, threads = sys.argv[1:]
    tokenizer: Any = load_tokenizer(Path(folder))
    translator = ctranslate2.Translator(folder, compute_type="int8", intra_threads=int(threads))
    source = _names(folder, "source")
    target = {name: index for index, name in enumerate(_names(folder, "target"))}

    def translate_batch(texts: list[str]) -> list[str]:
        rows = tokenizer.encode_batch([normalise(text) for text in texts])
        results = translator.translate_batch(
            [[source[index] for index in row] for row in rows],
            beam_size=1,
            max_batch_size=len(rows),
            max_decoding_length=3 * max(map(len, rows)) + 30,
        )
        ids = [[target[name] for name in result.hypotheses[0]] for result in results]
        return [text.strip() for text in tokenizer.decode_batch(ids)]

    class Body(BaseModel):
        q: str

    waiting: asyncio.Queue[tuple[str, asyncio.Future[str]]] = asyncio.Queue()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await waiting.get()]
            if waiting.empty():
                await asyncio.sleep(WAIT)
            while len(batch) < BATCH and not waiting.empty():
                batch.append(waiting.get_nowait())
            texts = await loop.run_in_executor(None, translate_batch, [text for text, _ in batch])
            for (_, answer), text in zip(batch, texts, strict=True):
                answer.set_result(text)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> Any:
        worker = asyncio.create_task(work())
        yield
        worker.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/translate")
    async def translate(body: Body) -> dict[str, str]:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting.put_nowait((body.q, answer))
        return {"translatedText": await answer}

    listening = bind("127.0.0.1", 0)
    host, port = listening.getsockname()[:2]
    print(f"listening at http://{host}:{port}", file=sys.stderr, flush=True)
    config = uvicorn.Config(app, log_level="info", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


def _names(folder: str, side: str) -> list[str]:
    """Read the token strings of one side."""
    paths = [Path(folder) / f"{name}_vocabulary.json" for name in (side, "shared")]
    path = next(path for path in paths if path.is_file())
    names: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return names


if __name__ == "__main__":
    main()
