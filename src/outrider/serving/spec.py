"""What is to be served: `FOLDER`, or `zh-en=FOLDER`, which names the languages and the model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError
from outrider.files import read_json
from outrider.files.hub import model_folder
from outrider.formats.description import LanguageModelDescription
from outrider.formats.folder import CTC, DRAFTER, model_files, read_config
from outrider.text.prompt_template import source_frame
from outrider.text.tokenizer import load_tokenizer

__all__ = ["Spec", "read_spec"]

_PAIR = re.compile(
    r"(?P<source>[A-Za-z_]{2,8})-(?P<target>[A-Za-z_]{2,8})=(?P<place>.+)", re.DOTALL
)
_CODE = re.compile(r"[A-Za-z_]{2,8}")


@dataclass(frozen=True)
class Spec:
    """A model that can be asked for by name, loaded or not."""

    name: str
    """What clients call it: `zh-en` of `zh-en=FOLDER`, else the last part of its path."""
    folder: Path
    writes: bool
    """Whether it continues prompts; if not, it translates."""
    pair: tuple[str, str] | None
    """The languages it translates between; None where it has many or none, or they are unknown."""
    languages: tuple[str, ...]
    """Languages it writes, as it names them, where it has many."""
    reads: bool
    """Whether it is told what it reads, which is then one of those."""
    names: Mapping[str, str]
    """What languages are called, where the folder says so."""
    changed: int
    """When its config was written, in seconds since 1970."""
    weights: int
    """Bytes of its weights on disk, which is about what they take in memory."""

    @property
    def unknown(self) -> bool:
        """Whether it translates, but neither its folder nor the command line says what."""
        return not (self.writes or self.pair or self.languages)


def read_spec(given: str) -> Spec:
    """Look at a model without loading it."""
    match = _PAIR.fullmatch(given)
    place = given if match is None else match["place"]
    folder = model_folder(place)
    config = read_config(folder)
    writes = isinstance(config, LanguageModelDescription)
    if writes and match is not None:
        raise ConfigError(given, "is a language model, which has no languages; leave them out")
    pair, names = (None, {}) if writes else _told(folder)
    languages, reads = ((), False) if writes or pair else _many(folder)
    if match is not None:
        pair, languages, reads = (match["source"], match["target"]), (), False
    name = _name(folder, place) if match is None else given.removesuffix(f"={place}")
    return Spec(
        name, folder, writes, pair, languages, reads, names, _changed(folder), _weights(folder)
    )


def _told(folder: Path) -> tuple[tuple[str, str] | None, dict[str, str]]:
    """Return the languages that an Argos package names, and what they are called."""
    path = folder / "metadata.json"
    values = read_json(path) if path.exists() else {}
    codes = [values.get(key) for key in ("from_code", "to_code")]
    source, target = (code if isinstance(code, str) else "" for code in codes)
    if not (_CODE.fullmatch(source) and _CODE.fullmatch(target)):
        return None, {}
    called = {source: values.get("from_name"), target: values.get("to_name")}
    names = {code: name[:100] for code, name in called.items() if isinstance(name, str)}
    return (source, target), names


def _many(folder: Path) -> tuple[tuple[str, ...], bool]:
    """Return the languages that a tokenizer names, and whether a source is told its own."""
    frame = source_frame(load_tokenizer(folder), start=-1, end=None, forced=None)
    return tuple(frame.targets), frame.told


def _name(folder: Path, place: str) -> str:
    """Name a model by the last part of what the user typed, or of where it leads."""
    name = Path(place).name or folder.resolve().name
    return name.removesuffix(".argosmodel")


def _changed(folder: Path) -> int:
    return int(max(path.stat().st_mtime for path in model_files(folder)))


def _weights(folder: Path) -> int:
    places = [folder, *(folder / side for side in (DRAFTER, CTC) if (folder / side).is_dir())]
    return sum(path.stat().st_size for place in places for path in model_files(place))
