"""One load opens each JSON file of a model folder once."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import ModelError
from outrider.formats.folder import read_config
from outrider.serving.limits import Limits
from outrider.serving.registry import ModelRegistry, read_spec
from tests.helpers import families, tiny

opened: Counter[str] | None = None


def _count(event: str, args: tuple[Any, ...]) -> None:
    if opened is not None and event == "open" and str(args[0]).endswith(".json"):
        opened[str(args[0])] += 1


sys.addaudithook(_count)


@contextmanager
def counted(folder: Path) -> Iterator[Counter[str]]:
    """Count how often each JSON file of a folder is opened."""
    global opened
    opened = found = Counter()
    try:
        yield found
    finally:
        opened = None
        for path in [path for path in found if not Path(path).is_relative_to(folder)]:
            del found[path]


def family(name: str, **options: Any) -> Callable[[Path], Path]:
    return lambda folder: families.save(families.make(name), folder, **options)


def sharded(folder: Path) -> Path:
    families.save(families.make("llama"), folder)
    (folder / "model.safetensors").unlink()
    families.make("llama").save_pretrained(folder, max_shard_size="20KB")
    return folder


def marian(folder: Path, *, binary: bool = False) -> Path:
    from outrider.torch.export import export_ctranslate2, export_marian

    texts = iter(["the cat sees the dog", "the dog sees a cat", "a bird sings in the tree"] * 5)
    tokenizer = train_tokenizer(texts, TokenizerConfig(kind="unigram", vocab_size=400))
    model = tiny.seq2seq(vocab_size=tokenizer.vocab_size, norm="post", logits_bias=True)
    model.save_pretrained(folder / "ours")
    tokenizer.save(folder / "ours")
    export_marian(folder / "ours", folder / "marian")
    if not binary:
        return folder / "marian"
    pytest.importorskip("ctranslate2", reason="install outrider[peers] to convert models")
    return export_ctranslate2(folder / "marian", folder / "theirs")


def demo(name: str) -> Callable[[Path], Path]:
    return lambda _: Path(__file__).parents[2] / "demo" / name


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "side decoders": demo("en-de"),
    "SentencePiece": demo("zh-en"),
    "languages": family("m2m_100", before="eng_Latn", after="</s>", languages=True),
    "language model": family("llama"),
    "shards": sharded,
    "Marian": marian,
    "CTranslate2": lambda folder: marian(folder, binary=True),
}


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_load_opens_each_json_file_once(kind: str, backend: str, tmp_path: Path) -> None:
    if backend == "native":
        pytest.importorskip("outrider_native", reason="outrider-native is not installed")
    folder = FOLDERS[kind](tmp_path)
    with counted(folder) as found:
        outrider.load(folder, backend=backend)
    assert set(found.values()) == {1}, found
    assert str(folder / "config.json") in found


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_server_opens_each_json_file_once_to_register_and_once_to_load(
    kind: str, tmp_path: Path
) -> None:
    folder = FOLDERS[kind](tmp_path)
    with counted(folder) as found:
        spec = read_spec(str(folder))
    assert {*found.values()} == {1}, found
    options = {"backend": "torch"}
    registry = ModelRegistry([spec], Limits(), deliver=lambda _: None, load_options=options)

    async def load() -> None:
        async with registry.hold(spec.name):
            pass
        await registry.close()

    with counted(folder) as found:
        asyncio.run(load())
    assert {*found.values()} == {1}, found


def test_registering_does_not_read_the_weights_of_ctranslate2(tmp_path: Path) -> None:
    folder = marian(tmp_path, binary=True)
    (folder / "model.bin").write_bytes(b"damaged")
    assert not read_spec(str(folder)).generates
    with pytest.raises(ModelError, match=r"model\.bin"):
        read_config(folder)
