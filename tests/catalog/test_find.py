"""Finding, downloading, listing and removing a pair, with every format of list."""

import gzip
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from outrider.catalog import Catalog, Pair, find, find_model
from outrider.catalog.index import File
from outrider.catalog.store import CARD
from outrider.catalog.web import Web
from outrider.errors import ConfigError, ModelError, OutriderError
from tests.helpers.model_server import ModelServer

DE_EN = Pair("de", "en")


def metrics(comet: float) -> dict[str, object]:
    return {"metrics": {"flores200-plus": {"comet": comet}}}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def open_web(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept the local server as a default list."""
    monkeypatch.setattr(Web, "_check", lambda self, url: (urlsplit(url), True))


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("de-en", "de-en"),
        ("en-zh-Hans", "en-zh"),
        ("zh_CN-en", "zh-en"),
        ("en-zh-TW", "en-zh-Hant"),
        ("no-en", "nb-en"),
        ("DE-EN", "de-en"),
        ("pt-BR-en", "pt-BR-en"),
        ("model", "None"),
        ("../de-en", "None"),
        ("org/opus-mt-de-en", "None"),
    ],
)
def test_names_of_pairs(name: str, pair: str) -> None:
    assert str(Pair.parse(name)) == pair


def test_a_model_is_downloaded_once(server: ModelServer, tiny: Path, cache: Path) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny, **metrics(87.12))]})
    said: list[str] = []
    folder = find_model("de-en", index=index, say=said.append)
    assert folder == cache / "de-en" / "tiny"
    assert names(folder) == {*names(tiny), CARD}
    for name in names(tiny):
        assert (folder / name).read_bytes() == (tiny / name).read_bytes()
    card = json.loads((folder / CARD).read_text())
    assert (card["licence"], card["comet"], card["source"]) == ("MPL-2.0", 0.8712, index)
    checks = {row["name"].partition(".")[0]: row["checksum"] for row in card["files"]}
    assert checks == {"model": "by the list", "vocab": "recorded at download"}
    assert len(said) == 1
    assert said[0].startswith(f"de-en: downloading from {index} (tiny, ")
    asked = len(server.requests)
    assert find_model("de-en", offline=True) == folder
    assert find_model("de-en", index="http://127.0.0.1:9/gone") == folder
    assert len(server.requests) == asked


def test_the_best_release_is_chosen(server: ModelServer, tiny: Path, cache: Path) -> None:
    rows = [
        server.entry(tiny, architecture="tiny", **metrics(0.87)),
        server.entry(tiny, architecture="base-memory", **metrics(0.88)),
        server.entry(tiny, architecture="base", releaseStatus="Nightly", **metrics(0.89)),
    ]
    index = server.add_registry({"de-en": rows})
    assert find_model("de-en", index=index, small=True) == cache / "de-en" / "tiny"
    assert Catalog(index).offer(DE_EN).entry.architecture == "base-memory"
    Catalog(index).pull(DE_EN)
    assert find_model("de-en", offline=True) == cache / "de-en" / "base-memory"
    assert find_model("de-en", offline=True, small=True) == cache / "de-en" / "tiny"
    only = server.add_registry({"de-en": rows[2:]})
    assert Catalog(only).offer(DE_EN).entry.architecture == "base"


def test_offline_mode_sends_no_request(
    server: ModelServer, tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    with pytest.raises(
        ConfigError, match=r"^--offline: de-en is not on this machine; run outrider"
    ):
        find_model("de-en", index=index, offline=True)
    for name in ("OUTRIDER_OFFLINE", "HF_HUB_OFFLINE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            with pytest.raises(ConfigError, match=r"^--offline"):
                find_model("de-en", index=index)
            with pytest.raises(ConfigError, match=r"^--offline"):
                find_model("de-en")
    assert server.requests == []


def test_a_pair_in_no_list(server: ModelServer, tiny: Path, cache: Path) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    message = "^de-fr: no list has this pair .*there are de-en; outrider models lists all$"
    with pytest.raises(ConfigError, match=message):
        find_model("de-fr", index=index)
    assert not cache.exists()


def test_without_a_cache(server: ModelServer, tiny: Path, monkeypatch, cache: Path) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", "off")
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    with pytest.raises(ConfigError, match=r"^OUTRIDER_CACHE: is off.*outrider pull --to"):
        find_model("de-en", index=index)


def test_local_folders_take_precedence(tmp_path: Path, monkeypatch, cache: Path) -> None:
    (tmp_path / "de-en").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model("de-en", offline=True) is None
    assert find_model("some-model", offline=True) is None


def test_a_newer_model_replaces_an_older_one(
    server: ModelServer, tiny: Path, tmp_path, cache
) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    first = Catalog(index).pull(DE_EN)
    other = tmp_path / "newer"
    other.mkdir()
    for path in tiny.iterdir():
        (other / path.name).write_bytes(path.read_bytes() + b"\0")
    server.add_registry({"de-en": [server.entry(other, version="4.0")]})
    second = Catalog(index).pull(DE_EN)
    assert second.folder == first.folder
    assert second.card["version"] == "4.0"
    assert second.is_intact()
    asked = len(server.requests)
    Catalog(index).pull(DE_EN)
    assert len(server.requests) == asked + 1, "only the list"


def test_pull_repairs_a_damaged_model(server: ModelServer, tiny: Path, cache: Path) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    folder = Catalog(index).pull(DE_EN).folder
    weights = next(folder.glob("model.*"))
    good = weights.read_bytes()
    weights.write_bytes(b"x" + good[1:])
    assert Catalog(index).pull(DE_EN).folder == folder
    assert weights.read_bytes() == good
    weights.write_bytes(good[:-1])
    with pytest.raises(ConfigError, match=r"^--offline"):
        find_model("de-en", offline=True)


def test_a_folder_for_machines_without_network(
    server: ModelServer, tiny: Path, tmp_path: Path, cache: Path, monkeypatch
) -> None:
    rows = {"de-en": [server.entry(tiny, **metrics(0.87))], "fr-en": [server.entry(tiny, "fr-en")]}
    index = server.add_registry(rows)
    for pair in (DE_EN, Pair("fr", "en"), DE_EN):
        Catalog(index).pull_to(tmp_path / "usb", pair)
    assert not cache.exists()
    listed = json.loads((tmp_path / "usb" / "models.json").read_text())["models"]
    assert {name: len(rows) for name, rows in listed.items()} == {"de-en": 1, "fr-en": 1}
    for file in listed["de-en"][0]["files"].values():
        assert len(file["uncompressedHash"]) == 64
    server.files.clear()
    monkeypatch.setenv("OUTRIDER_INDEX", str(tmp_path / "usb"))
    folder = find_model("de-en", offline=True)
    assert folder == cache / "de-en" / "tiny"
    card = json.loads((folder / CARD).read_text())
    assert card["comet"] == 0.87
    assert {row["checksum"] for row in card["files"]} == {"by the list"}


def test_the_folder_of_pull_can_be_served(server: ModelServer, tiny: Path, tmp_path, cache) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    Catalog(index).pull_to(tmp_path / "usb", DE_EN)
    for path in (tmp_path / "usb").rglob("*.*"):
        if path.is_file():
            server.files[f"/usb/{path.relative_to(tmp_path / 'usb').as_posix()}"] = (
                path.read_bytes()
            )
    assert find_model("de-en", index=f"{server.url}/usb") == cache / "de-en" / "tiny"


def test_remote_settings_by_zstd(server: ModelServer, tiny: Path, cache: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="needs outrider[serve]")
    rows = server.records(tiny, zstandard.ZstdCompressor().compress)
    other = server.records(tiny, zstandard.ZstdCompressor().compress, version="3.1a1")
    nightly = server.records(tiny, gzip.compress, version="3.2", filter_expression="env.channel")
    old = server.records(tiny, zstandard.ZstdCompressor().compress, version="2.9")
    index = server.add_records([*nightly, *other, *old, *rows])
    server.records(tiny, zstandard.ZstdCompressor().compress)
    folder = find_model("de-en", index=index)
    assert folder is not None
    card = json.loads((folder / CARD).read_text())
    assert (card["version"], card["release"]) == ("3.0", True)
    assert {row["checksum"] for row in card["files"]} == {"by the list"}
    for name in names(tiny):
        assert (folder / name).read_bytes() == (tiny / name).read_bytes()


def test_the_order_of_the_lists(
    server: ModelServer, tiny: Path, cache: Path, monkeypatch, open_web: None
) -> None:
    registry = server.add_registry({"de-en": [server.entry(tiny)]})
    records = server.add_records(
        [*server.records(tiny, gzip.compress), *server.records(tiny, gzip.compress, "fr-en")]
    )
    monkeypatch.setattr(find, "LISTS", (("registry", registry), ("settings", records)))
    entry = Catalog().offer(DE_EN).entry
    assert entry.origin == "registry"
    assert all(file.sha256 for file in entry.files), "checksums of Remote Settings are added"
    assert Catalog().offer(Pair("fr", "en")).entry.origin == "settings"
    listed = {(str(one.pair), one.origin) for one in Catalog().entries()}
    assert listed == {("de-en", "registry"), ("fr-en", "settings")}
    del server.files["/models.json"]
    said: list[str] = []
    assert Catalog(say=said.append).offer(DE_EN).entry.origin == "settings"
    assert said[0].endswith("the server answers 404 (Not Found); trying the next list")
    server.files.clear()
    with pytest.raises(OutriderError, match="check the network, or name a list with --index"):
        Catalog().offer(DE_EN)


SPM = {"source.spm": b"s", "target.spm": b"t", "vocab.json": b"{}", "config.json": b"{}"}


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_opus_mt_on_the_hub(
    server: ModelServer, tmp_path: Path, cache: Path, monkeypatch, kind: str
) -> None:
    registry = server.add_registry({})
    monkeypatch.setattr(find, "LISTS", (("registry", registry),))
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr(Web, "_check", lambda self, url: (urlsplit(url), True))
    with pytest.raises(ConfigError, match=r"^de-en: no list has this pair"):
        find_model("de-en")
    name, revision = "Helsinki-NLP/opus-mt-de-en", "0123456789" * 4
    files = {**SPM, kind: b"weights", "danger.py": b"raise SystemExit"}
    siblings = [{"rfilename": file, "size": len(raw)} for file, raw in files.items()]
    about = {"sha": revision, "siblings": siblings, "cardData": {"license": "cc-by-4.0"}}
    server.files[f"/api/models/{name}?blobs=true"] = json.dumps(about).encode()
    for file, raw in files.items():
        server.files[f"/{name}/resolve/{revision}/{file}"] = raw
    if kind != "model.safetensors":
        with pytest.raises(ModelError, match=r"holds no model\.safetensors; its pickles can run"):
            find_model("de-en")
        return
    folder = find_model("de-en")
    assert folder == cache / "de-en" / "opus-mt"
    assert names(folder) == {*SPM, kind, CARD}
    assert json.loads((folder / CARD).read_text())["licence"] == "CC-BY-4.0"
    Catalog().pull_to(tmp_path / "usb", DE_EN)
    assert Catalog(str(tmp_path / "usb"), offline=True).pull(DE_EN).is_intact()


def test_limits_of_files_without_a_stated_size() -> None:
    assert File("vocab.de.spm", "u").largest < File("lex.de.bin", "u").largest
