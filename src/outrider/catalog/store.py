"""Downloaded models: folders in the cache.

    models/de-en/tiny/                     the model's files and its card, complete and verified
    models/de-en/tiny/card.json            source, licence, version, sizes and checksums
    models/de-en/.tiny.1f2e3d.partial/     an unfinished download, which the next one continues
    models/de-en/.tiny.lock                locked while a process downloads or removes

A folder appears by renaming, so what stands under its name is complete.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from outrider.catalog.download import Report, Stored, download
from outrider.catalog.index import FILE as LIST
from outrider.catalog.index import Entry, File, Pair, list_key
from outrider.catalog.web import Web
from outrider.errors import ConfigError, ModelError, ResourceError
from outrider.files import explained, file_sha256, locked, publish, read_json, write_json
from outrider.files.writing import VARIABLE, cache_folder

CARD = "card.json"
MODELS = "models"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Installed:
    """A downloaded model."""

    pair: Pair
    folder: Path
    card: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(row["size"] for row in self.card["files"])

    @property
    def comet(self) -> float:
        """COMET; -1 if it is unknown."""
        value = self.card.get("comet")
        return float(value) if isinstance(value, int | float) else -1.0

    def is_intact(self) -> bool:
        """Whether all files have the checksums of the card."""
        return all(
            (self.folder / row["name"]).is_file()
            and file_sha256(self.folder / row["name"]) == row["sha256"]
            for row in self.card["files"]
        )

    def is_of(self, entry: Entry) -> bool:
        """Whether it was downloaded from the same files."""
        stated = {file.name: file.sha256 for file in entry.files}
        kept = {row["name"]: row["sha256"] for row in self.card["files"]}
        return stated.keys() == kept.keys() and all(
            sha256 in (None, kept[name]) for name, sha256 in stated.items()
        )


def models_folder() -> Path:
    """Return the folder of downloaded models."""
    cache = cache_folder()
    if cache is None:
        fix = "set it to a folder, or name one with outrider pull --to"
        raise ConfigError(VARIABLE, f"is off, so downloaded models have no place; {fix}")
    return cache / MODELS


def list_installed(root: Path, pair: Pair | None = None) -> list[Installed]:
    """Return the complete models of a folder, sorted by pair."""
    names = [str(pair)] if pair is not None else _subfolders(root)
    return [
        found
        for name in names
        for architecture in _subfolders(root / name)
        if (found := _read_installed(root / name / architecture)) is not None
    ]


def _subfolders(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")
    return []


def _read_installed(folder: Path) -> Installed | None:
    pair = Pair.parse(folder.parent.name)
    try:
        card = read_json(folder / CARD)
        rows = card["files"]
        sizes = all((folder / row["name"]).stat().st_size == row["size"] for row in rows)
    except (ModelError, OSError, KeyError, TypeError):
        return None
    return Installed(pair, folder, card) if pair is not None and sizes and rows else None


def best_installed(root: Path, pair: Pair, *, small: bool = False) -> Installed | None:
    """Return the installed model of a pair; `small` prefers the architecture `tiny`."""
    return max(
        list_installed(root, pair),
        key=lambda one: (small and one.folder.name == "tiny", one.comet, one.size),
        default=None,
    )


def install(root: Path, entry: Entry, web: Web, report: Report, say: Say) -> Installed:
    """Download a model into `root` unless the same one is there."""
    folder = root / str(entry.pair) / entry.architecture
    with _alone(folder, say), explained(folder, "the finished part of the download is kept"):
        there = _read_installed(folder)
        if there is not None and there.is_of(entry) and there.is_intact():
            return there
        work = _partial(folder, entry)
        stored = {file.name: download(file, work, web, report) for file in entry.files}
        write_json(work / CARD, _card(entry, stored))
        publish(work, folder)
    done = _read_installed(folder)
    if done is None:
        raise ModelError(f"{folder}: was changed while it was written; run the command again")
    return done


def remove(root: Path, pair: Pair) -> list[Path]:
    """Remove the downloaded models of a pair, and unfinished downloads."""
    folder = root / str(pair)
    found = _subfolders(folder)
    partial = [path for path in folder.glob(".*.partial*") if path.is_dir()]
    if not found and not partial:
        there = ", ".join(dict.fromkeys(str(one.pair) for one in list_installed(root))) or "none"
        raise ConfigError(str(pair), f"is not downloaded; downloaded are: {there}")
    for name in {*found, *(path.name[1:].rsplit(".", 2)[0] for path in partial)}:
        busy = ResourceError(f"{folder / name}: another process downloads it; try again later")
        with locked(_lock_file(folder / name), busy), explained(folder / name):
            if name in found:  # renamed first, so that it is never incomplete under its name
                doomed = folder / f".{name}.{uuid4().hex[:12]}.partial"
                (folder / name).rename(doomed)
            for path in folder.glob(f".{name}.*.partial*"):
                shutil.rmtree(path, ignore_errors=True)
    return [folder / name for name in found]


def add_to_list(root: Path, model: Installed) -> None:
    """Write the list of a folder, in the shape of Mozilla's registry, with one more model."""
    path, card, name = root / LIST, model.card, str(model.pair)
    with _alone(root / LIST, lambda text: None):
        values = read_json(path) if path.exists() else {}
        listed = values.get("models")
        models = dict(listed) if isinstance(listed, dict) else {}
        rows = models.get(name)
        kept = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        kept = [row for row in kept if row.get("architecture") != card["architecture"]]
        models[name] = [*kept, _listed(model)]
        write_json(path, {"generated": card["downloaded"], "models": models})


def _listed(model: Installed) -> dict[str, Any]:
    """Return the entry of a model in the list of its folder."""
    card, base = model.card, f"{MODELS}/{model.pair}/{model.folder.name}"
    files = {
        list_key(row["name"]): {
            "path": f"{base}/{row['name']}",
            "uncompressedSize": row["size"],
            "uncompressedHash": row["sha256"],
        }
        for row in card["files"]
    }
    return {
        "architecture": card["architecture"],
        "releaseStatus": "Release" if card["release"] else None,
        "sourceLanguage": model.pair.source,
        "targetLanguage": model.pair.target,
        "version": card["version"],
        "source": card["source"],
        "licence": card["licence"],
        "files": files,
        "metrics": {"flores200-plus": {"comet": card["comet"]}},
    }


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


@contextmanager
def _alone(folder: Path, say: Say) -> Iterator[None]:
    """Hold the lock of a folder; wait for another process that downloads it."""
    from filelock import FileLock, Timeout

    with explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(_lock_file(folder))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"{folder.parent.name}: another process downloads it; waiting for it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _partial(folder: Path, entry: Entry) -> Path:
    """Return the folder of an unfinished download, after removing those of other versions."""
    stated = json.dumps([[file.name, file.url, file.sha256] for file in entry.files])
    digest = hashlib.sha256(stated.encode()).hexdigest()[:12]
    work = folder.with_name(f".{folder.name}.{digest}.partial")
    for other in folder.parent.glob(f".{folder.name}.*.partial*"):
        if other != work:
            shutil.rmtree(other, ignore_errors=True)
    work.mkdir(exist_ok=True)
    return work


def _card(entry: Entry, stored: dict[str, Stored]) -> dict[str, Any]:
    return {
        "pair": str(entry.pair),
        "architecture": entry.architecture,
        "source": entry.origin,
        "licence": entry.licence,
        "version": entry.version,
        "release": entry.release,
        "comet": entry.comet,
        "downloaded": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": [_row(file, stored[file.name]) for file in entry.files],
    }


def _row(file: File, stored: Stored) -> dict[str, Any]:
    checked = "by the list" if file.sha256 is not None else "recorded at download"
    url = file.url if "://" in file.url else os.path.abspath(file.url)  # noqa: PTH100 (a link stays)
    return {"name": file.name, **stored._asdict(), "checksum": checked, "url": url}
