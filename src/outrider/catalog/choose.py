"""Which of the entries of a pair is downloaded, or used."""

from collections.abc import Sequence

from outrider.catalog.index import Entry, Pair, known_pairs, version_key
from outrider.errors import ConfigError, nearest


def choose(entries: Sequence[Entry], pair: Pair, *, small: bool = False) -> Entry | None:
    """Return the best entry of a pair: a release, of the best COMET, of the newest version.

    `small` prefers the architecture `tiny`, and after it the smallest model.
    """
    found = [entry for entry in entries if entry.pair == pair]
    return max(found, key=lambda entry: _rank(entry, small), default=None)


def _rank(entry: Entry, small: bool) -> tuple[object, ...]:
    size = entry.model.size or 0
    return (
        entry.release,
        *((entry.architecture == "tiny", -size) if small else ()),
        -1.0 if entry.comet is None else entry.comet,
        version_key(entry.version),
        size,
    )


def no_such_pair(entries: Sequence[Entry], pair: Pair) -> ConfigError:
    """Return the error for a pair that no list has, with its neighbours."""
    names = list(known_pairs(entries))
    near = [name for name in names if pair.source in name.split("-")]
    near += [name for name in names if pair.target in name.split("-") and name not in near]
    there = f"; there are {', '.join(near[:12])}" if near else ""
    message = f"no list has this pair{nearest(str(pair), names)}{there}"
    return ConfigError(str(pair), f"{message}; outrider models lists all")
