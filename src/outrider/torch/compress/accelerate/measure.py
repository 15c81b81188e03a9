"""What was gained: the same sentences with and without the drafter, and by CTranslate2."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.backends.threads import default_threads
from outrider.data.prepared import Prepared
from outrider.files import write_text
from outrider.runtime.origin import origin
from outrider.torch.training.validation import valid_texts
from outrider_lab.bench.decode.plan import settings
from outrider_lab.bench.decode.run import bench_model, choose_sentences
from outrider_lab.bench.decode.speed import Limits

__all__ = ["measure"]

SENTENCES = 128
BATCHES = (1, 8, 32)
REPEATS = 3


def measure(
    folder: Path, target: Path, prepared: Prepared, threads: int | None, console: Console
) -> dict[str, Any]:
    """Decode held-out sentences in batches of several sizes, with one thread and with all."""
    held_out = prepared.folder.parent / "held-out.txt"
    write_text(held_out, "".join(f"{line}\n" for line in valid_texts(prepared)[0]))
    sentences = choose_sentences(folder, held_out, None, most=SENTENCES)
    counts = sorted({1, threads or default_threads()})
    engines = ["outrider-native-int8"]
    if find_spec("ctranslate2") is not None:
        engines.append("ctranslate2-int8")
    console.print("measuring on sentences that were held out", highlight=False)
    result = bench_model(
        folder,
        sentences,
        settings(BATCHES, ("sorted",), counts, all_threads=True),
        engines=engines,
        repeats=REPEATS,
        limits=Limits(20.0, 600.0),
    )
    # A drafter of a few slots writes no whole texts.
    rows = [row for row in result["rows"] if row["mode"] != "parallel"]
    return result | {"rows": rows, "target": target.name, **origin(folder)}
