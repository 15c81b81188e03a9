"""The table of `outrider models`."""

from collections.abc import Collection, Iterator

from outrider.catalog.find import Catalog
from outrider.catalog.hub import read_hub
from outrider.catalog.index import Entry, Pair
from outrider.catalog.store import Installed, Say, list_installed, models_folder
from outrider.errors import ConfigError, OutriderError, ResourceError
from outrider.files.hub import DEMO, DEMO_FOLDERS, demo_folder

Row = tuple[str, ...]
HEAD: Row = ("pair", "architecture", "MB", "COMET", "licence", "source", "downloaded")


def list_models(
    pairs: Collection[tuple[str, str]], *, index: str | None, offline: bool, say: Say
) -> tuple[list[Row], OutriderError | None]:
    """Return the table with its head, and the error if no list could be read."""
    installed = {(one.pair, one.folder.name): one for one in _installed()}
    rows = [*map(_installed_row, installed.values()), *_demo_rows()]
    fault: OutriderError | None = None
    catalog = Catalog(index, offline=offline, say=say)
    try:
        entries = list(catalog.entries())
        known = {entry.pair for entry in entries}
        if not catalog.index:
            found = [read_hub(Pair(*pair)) for pair in pairs if pair not in known]
            entries += [entry for entry, _ in filter(None, found)]
        rows += [_row(one) for one in entries if (one.pair, one.architecture) not in installed]
    except (ConfigError, ResourceError) as error:
        fault = error
    names = {f"{source}-{target}" for source, target in pairs}
    return [HEAD, *sorted(row for row in rows if not names or row[0] in names)], fault


def _installed() -> list[Installed]:
    try:
        return list_installed(models_folder())
    except ConfigError:  # the cache is off
        return []


def _installed_row(model: Installed) -> Row:
    card = model.card
    about = (str(card.get(key) or "") for key in ("licence", "source"))
    comet = _comet(None if model.comet < 0 else model.comet)
    size = f"{model.size / 1e6:.1f}"
    return (str(model.pair), model.folder.name, size, comet, *about, str(model.folder))


def _row(entry: Entry) -> Row:
    size = "" if entry.size is None else f"{entry.size / 1e6:.1f}"
    source = entry.origin if entry.release else f"{entry.origin}, not released"
    about = (_comet(entry.comet), entry.licence, source)
    return (str(entry.pair), entry.architecture, size, *about, "")


def _demo_rows() -> Iterator[Row]:
    for source, target in DEMO_FOLDERS:
        folder = demo_folder(source, target)
        if folder is not None:
            size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
            place = (f"{size / 1e6:.1f}", "", "MPL-2.0", f"the package {DEMO}", str(folder))
            yield (f"{source}-{target}", "tiny", *place)


def _comet(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
