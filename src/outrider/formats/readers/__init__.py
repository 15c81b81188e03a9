"""Readers of other families' models, one file a family.

`import_config` converts a `config.json` to a spec, `import_weights` renames the weights.
Differences of storage (three matrices instead of one, a constant factor, unused rows) are resolved
in the weights, exactly; differences of computation are keys of the spec.
"""

from pathlib import Path

__all__ = ["has_binary"]


def has_binary(folder: Path) -> bool:
    """Whether a folder has a `.bin` file; only then its readers, which are large, are imported."""
    return any(any(place.glob("*.bin")) for place in (folder, folder / "model"))
