"""Coverage-guided fuzzing of readers of untrusted files: `python tests/attacks/fuzz.py TARGET`.

Needs `pip install atheris`. TARGET is json, tokenizer, shards, ctranslate2, argos or bergamot;
options are passed to libFuzzer, such as `-max_total_time=120`. An input must give a result or an
OutriderError; a finding is any other exception, a panic, ten seconds or two gigabytes.
"""

import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["outrider", "json"]):
    from outrider.data.config import TokenizerConfig
    from outrider.data.manifest import Shard, read_manifest
    from outrider.data.shards import BlockReader
    from outrider.data.tokenizer_training import train_tokenizer
    from outrider.errors import OutriderError
    from outrider.files import read_json
    from outrider.files.hub import model_folder
    from outrider.formats.folder import read_parts
    from outrider.text.tokenizer import load_tokenizer

WORDS = ["a small dog runs", "two men play", "where is the station?", "it is late. we go home!"]
VALUES: list[Any] = [None, True, -1, 0, 1.5, 10**9, 2**32, 2**64, 1e308, "", "x", "\ud800", [], {}]


def main() -> None:
    """Fuzz one target up to libFuzzer's limits."""
    target, *options = sys.argv[1:] or [""]
    if target not in TARGETS:
        sys.exit(f"give one of {', '.join(TARGETS)}")
    folder = Path(tempfile.mkdtemp())
    seeds = folder / "seeds"
    seeds.mkdir()
    read, mutate = TARGETS[target](folder, seeds)

    def one(data: bytes) -> None:
        try:
            read(data)
        except OutriderError as error:
            if "\n" in str(error):
                raise AssertionError("more than one line") from error

    limits = ["-timeout=10", "-rss_limit_mb=2048", "-max_len=65536"]
    arguments = [sys.argv[0], *limits, *options, str(seeds)]
    if mutate is None:
        atheris.Setup(arguments, one)
    else:
        atheris.Setup(arguments, one, custom_mutator=mutate)
    atheris.Fuzz()


Target = tuple[Callable[[bytes], object], Callable[[bytes, int, int], bytes] | None]


def _json(folder: Path, seeds: Path) -> Target:
    """Arbitrary bytes as a config and as a manifest."""
    (seeds / "config").write_text('{"vocab_size": 3, "a": [1.5, null, {"b": "\\u00fc"}]}')
    (folder / "prepared").mkdir()

    def read(data: bytes) -> None:
        for path in (folder / "config.json", folder / "prepared" / "manifest.json"):
            path.write_bytes(data)
        try:
            read_json(folder / "config.json")
        finally:
            read_manifest(folder / "prepared")

    return read, _mutate_json


def _tokenizer(folder: Path, seeds: Path) -> Target:
    """JSON pipelines with values changed, moved and removed."""
    for kind in ("char", "bpe"):
        (folder / kind).mkdir()
        train_tokenizer(WORDS * 9, TokenizerConfig(kind=kind, vocab_size=320)).save(folder / kind)
        (seeds / kind).write_bytes((folder / kind / "tokenizer.json").read_bytes())

    def read(data: bytes) -> None:
        (folder / "char" / "tokenizer.json").write_bytes(data)
        tokenizer = load_tokenizer(folder / "char")
        ids = tokenizer.encode_batch([*WORDS, "", "漢字 \0 </s>", "a" * 200])
        tokenizer.decode_batch([*ids, [0, 1, 10**6]])

    return read, _mutate_json


def _shards(folder: Path, seeds: Path) -> Target:
    """Valid Parquet files with some bytes changed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from outrider.data.shards import ragged_column

    rows = [[n, n + 1, n * 7 % 11] for n in range(50)]
    lengths = pa.array([3] * 50, pa.int32())
    table = pa.table({"target_ids": ragged_column(rows), "target_length": lengths})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=20)
    (seeds / "shard").write_bytes(buffer.getvalue())
    shard = Shard(name="x.parquet", rows=50, sha256="", source_tokens=0, target_tokens=150)

    def read(data: bytes) -> None:
        (folder / "x.parquet").write_bytes(data)
        reader = BlockReader(folder, [shard], 20)
        for block in range(3):
            reader.ids(block, "target_ids")

    return read, None


def _ctranslate2(folder: Path, seeds: Path) -> Target:
    """A `model.bin` of CTranslate2 with some bytes changed."""
    sys.path.append(str(Path(__file__).parents[2]))
    from outrider.formats.layout import model_layout
    from outrider.formats.spec import Seq2SeqSpec
    from tests.helpers import ct2_file, plain_folder

    sizes = {"vocab_size": 6, "hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 6}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "position": "learned", "max_positions": 8}
    apart = {"share_embeddings": False, "tie_word_embeddings": False, "logits_bias": True}
    config = Seq2SeqSpec(**sizes, **layers, **apart)
    shapes = {name: one.shape for name, one in model_layout(config).items()}
    words = ["<unk>", "<pad>", "<s>", "</s>", "a", "b"]
    model = ct2_file.write(
        folder / "model",
        plain_folder.random_arrays(shapes),
        {"add_source_eos": True},
        heads=2,
        source=words,
        target=words,
    )
    (seeds / "model").write_bytes((model / "model.bin").read_bytes())

    def read(data: bytes) -> None:
        (model / "model.bin").write_bytes(data)
        read_parts(model).check()

    return read, None


def _argos(folder: Path, seeds: Path) -> Target:
    """An `.argosmodel` with some bytes changed."""
    import zipfile

    os.environ["OUTRIDER_CACHE"] = str(folder / "cache")
    package = folder / "x.argosmodel"
    with zipfile.ZipFile(seeds / "package", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("root/model/model.bin", b"weights" * 99)
        archive.writestr("root/model/config.json", "{}")
        archive.writestr("root/sentencepiece.model", b"pieces")
        archive.writestr("../else", b"not wanted")

    def read(data: bytes) -> None:
        package.write_bytes(data)
        shutil.rmtree(model_folder(package))

    return read, None


def _bergamot(folder: Path, seeds: Path) -> Target:
    """Marian's binary files with some bytes changed."""
    sys.path.append(str(Path(__file__).parents[2]))
    from tests.helpers.bergamot_tiny import write_folder

    write_folder(folder / "model")
    file = next((folder / "model").glob("model.*.bin"))
    (seeds / "model").write_bytes(file.read_bytes())

    def read(data: bytes) -> None:
        file.write_bytes(data)
        read_parts(folder / "model").check()

    return read, None


def _mutate_json(data: bytes, max_size: int, seed: int) -> bytes:
    """Change a value of a JSON document, or some bytes if it is not JSON."""
    dice = random.Random(seed)
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return bytes(atheris.Mutate(data, max_size))
    for _ in range(dice.randint(1, 3)):
        _change(values, dice)
    return json.dumps(values).encode()[:max_size]


def _change(values: Any, dice: random.Random) -> None:
    places = [(values, key) for key in _keys(values)]
    for holder, key in places:
        inner = holder[key]
        if isinstance(inner, dict | list) and len(places) < 5000:
            places += [(inner, k) for k in list(_keys(inner))[:50]]
    if not places:
        return
    holder, key = dice.choice(places)
    deed = dice.randrange(4)
    if deed == 0:
        del holder[key]
    elif deed == 1:
        holder[key] = dice.choice(VALUES)
    elif deed == 2:
        other, where = dice.choice(places)
        holder[key] = json.loads(json.dumps(other[where])) if _has(other, where) else None
    elif isinstance(holder[key], str):
        holder[key] = holder[key] * dice.choice([0, 2, 100])
    elif isinstance(holder[key], int | float):
        holder[key] = holder[key] * dice.choice([-1, 2, 10**6])


def _keys(values: Any) -> list[Any]:
    if isinstance(values, dict):
        return list(values)
    return list(range(len(values))) if isinstance(values, list) else []


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


TARGETS: dict[str, Callable[[Path, Path], Target]] = {
    "json": _json,
    "tokenizer": _tokenizer,
    "shards": _shards,
    "ctranslate2": _ctranslate2,
    "argos": _argos,
    "bergamot": _bergamot,
}

if __name__ == "__main__":
    main()
