"""Find a model by its pair of languages: downloaded, in the package of the demo, or in a list."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from outrider.catalog.choose import choose, no_such_pair
from outrider.catalog.download import Report
from outrider.catalog.hub import read_hub
from outrider.catalog.index import (
    FILE,
    RECORDS,
    REGISTRY,
    Entry,
    Index,
    Pair,
    read_records,
    read_registry,
    with_hashes,
)
from outrider.catalog.store import (
    MODELS,
    Installed,
    Say,
    add_to_list,
    best_installed,
    install,
    models_folder,
)
from outrider.catalog.web import UnreachableError, Web
from outrider.errors import ConfigError, ResourceError
from outrider.files import parse_json, read_json
from outrider.files.hub import demo_folder

INDEX_BYTES = 16 << 20
"""Limit of a list; Mozilla's have one or two megabytes."""
VARIABLE = "OUTRIDER_INDEX"
OFFLINE = ("OUTRIDER_OFFLINE", "HF_HUB_OFFLINE")
LISTS = (("Mozilla's model registry", REGISTRY), ("Firefox's Remote Settings", RECORDS))
"""The default lists, in order."""


class Offer(NamedTuple):
    """An entry and how to open its files."""

    entry: Entry
    web: Web


def is_offline(given: bool = False) -> bool:
    """Whether `--offline` or a variable forbids the network."""
    values = (os.environ.get(name, "") for name in OFFLINE)
    return given or any(value.lower() in ("1", "true", "yes", "on") for value in values)


def find_model(
    name: str,
    *,
    offline: bool = False,
    index: str | None = None,
    small: bool = False,
    say: Say = lambda text: None,
    report: Report = lambda name, have, total: None,
) -> Path | None:
    """Return the folder of a pair such as `de-en`, which is downloaded if it is missing.

    None for any other name, and for the name of an existing file or folder.

    Args:
        name: The pair.
        offline: Never use the network; also set by `OUTRIDER_OFFLINE` and `HF_HUB_OFFLINE`.
        index: URL or folder of the only list to use; by default `OUTRIDER_INDEX`.
        small: Prefer the smallest architecture, `tiny`.
        say: Called with each message.
        report: Called with the progress of each file.
    """
    pair = None if Path(name).expanduser().exists() else Pair.parse(name)
    if pair is None:
        return None
    return Catalog(index, offline=offline, small=small, say=say, report=report).find(pair)


@dataclass
class Catalog:
    """The lists of models, and the models of this machine."""

    index: str | None = None
    offline: bool = False
    small: bool = False
    say: Say = lambda text: None
    report: Report = lambda name, have, total: None
    _read: dict[str, Index] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index = self.index or os.environ.get(VARIABLE) or None
        self.offline = is_offline(self.offline)

    def find(self, pair: Pair) -> Path:
        """Return the folder of a pair; a missing one is downloaded, after a message."""
        installed = find_installed(pair, small=self.small)
        if installed is not None:
            return installed.folder
        demo = None if self.index else demo_folder(*pair)
        return demo or self.pull(pair).folder

    def pull(self, pair: Pair, root: Path | None = None) -> Installed:
        """Download the best model of a pair, unless it is there, into the cache or `root`."""
        entry, web = self.offer(pair)
        root = models_folder() if root is None else root
        size = "" if entry.size is None else f"{entry.size / 1e6:.1f} MB, "
        about = f"{entry.architecture}, {size}{entry.licence}"
        self.say(f"{pair}: downloading from {entry.origin} ({about}) into {root}")
        return install(root, entry, web, self.report, self.say)

    def pull_to(self, folder: Path, pair: Pair) -> Installed:
        """Download a model into a folder with its own list, which `index` can name."""
        model = self.pull(pair, folder / MODELS)
        add_to_list(folder, model)
        return model

    def offer(self, pair: Pair) -> Offer:
        """Return the best entry of a pair from the first list that has a release of it."""
        unreleased: list[Offer] = []
        for origin, index, web in self._lists(pair):
            entry = choose(index.entries, pair, small=self.small)
            if entry is not None and entry.release:
                return Offer(self._with_hashes(entry, origin), web)
            if entry is not None:
                unreleased.append(Offer(entry, web))
        if unreleased:
            return unreleased[0]
        return self._hub_offer(pair)

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of all lists; of one that is in several, the first."""
        seen: set[tuple[Pair, str]] = set()
        for _, index, _ in self._lists(None):
            for fault in index.faults[:3]:
                self.say(fault)
            for entry in index.entries:
                if (entry.pair, entry.architecture) not in seen:
                    yield entry
            seen |= {(entry.pair, entry.architecture) for entry in index.entries}

    def _lists(self, pair: Pair | None) -> Iterator[tuple[str, Index, Web]]:
        """Yield the lists that can be read."""
        if self.index is not None:
            if self.offline and "://" in self.index:
                raise self._forbidden(pair)
            yield self.index, self._index(self.index, self.index), Web(self.index)
            return
        if self.offline:
            raise self._forbidden(pair)
        faults = []
        for origin, url in LISTS:
            try:
                index = self._index(origin, url)
            except UnreachableError as error:
                self.say(f"{origin}: {error}; trying the next list")
                faults.append(error)
            else:
                yield origin, index, Web()
        if len(faults) == len(LISTS):
            fix = "check the network, or name a list with --index"
            raise ResourceError(f"{faults[0]}; {fix}") from faults[0]

    def _index(self, origin: str, place: str) -> Index:
        if place not in self._read:
            self._read[place] = read_list(place, Web(self.index or ""), origin)
        return self._read[place]

    def _with_hashes(self, entry: Entry, origin: str) -> Entry:
        """Add the checksums that only Remote Settings states, if it can be read."""
        if origin != LISTS[0][0]:
            return entry
        origin, url = LISTS[1]
        try:
            return with_hashes(entry, self._index(origin, url).entries)
        except (UnreachableError, ConfigError):
            return entry

    def _hub_offer(self, pair: Pair) -> Offer:
        """Return the model of OPUS-MT on the Hub."""
        found = None if self.index else read_hub(pair)
        if found is None:
            known = [entry for index in self._read.values() for entry in index.entries]
            raise no_such_pair(known, pair)
        return Offer(*found)

    def _forbidden(self, pair: Pair | None) -> ConfigError:
        name = "the list of models" if pair is None else str(pair)
        fix = f"run outrider pull {pair or 'de-en'} with a network, or name a folder with --index"
        return ConfigError("--offline", f"{name} is not on this machine; {fix}")


def find_installed(pair: Pair, *, small: bool = False) -> Installed | None:
    """Return the downloaded model of a pair; None too if the cache is off."""
    try:
        root = models_folder()
    except ConfigError:
        return None
    return best_installed(root, pair, small=small)


def read_list(place: str, web: Web, origin: str) -> Index:
    """Read a list: a URL, a folder with `models.json`, or a file."""
    if "://" not in place:
        path = Path(place).expanduser().absolute()
        path = path / FILE if path.is_dir() else path
        fix = f"; name a folder with {FILE}, as outrider pull --to writes it, or a URL"
        values = read_json(path, limit=INDEX_BYTES, fix=fix)
        return read_registry(values, str(path.parent), origin)
    url = place if place.endswith((".json", "/records")) else f"{place.rstrip('/')}/{FILE}"
    values = parse_json(web.read(url, INDEX_BYTES), url)
    if "data" in values:
        return read_records(values, _attachments(url, web), origin)
    return read_registry(values, url.rpartition("/")[0], origin)


def _attachments(records: str, web: Web) -> str:
    """Return the URL of the attachments of Remote Settings, which its root states."""
    root = f"{records.partition('/buckets/')[0]}/"
    values: Any = parse_json(web.read(root, INDEX_BYTES), root)
    for key in ("capabilities", "attachments", "base_url"):
        values = values.get(key) if isinstance(values, dict) else None
    if not isinstance(values, str) or urlsplit(values).scheme not in ("http", "https"):
        raise ConfigError(root, "states no URL of attachments; this is not Remote Settings")
    return values
