"""Where a model lies: a folder or an Argos package of this machine, or a model of the Hub."""

import re
from pathlib import Path

from outrider.errors import ModelError

__all__ = ["SAFE_FILES", "model_folder"]

SAFE_FILES = (
    *("*.json", "*.safetensors", "*.spm", "*.model", "README.md"),
    *("model.bin", "*_vocabulary.txt"),  # of CTranslate2
    *("model.*.bin", "lex.*.bin"),  # of Marian
)
"""Nothing that would have to be executed or unpickled to be read."""

SUFFIX = ".argosmodel"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def model_folder(name: str | Path) -> Path:
    """Return the local folder of a model, downloading a Hub model on first use."""
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


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(SAFE_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{hub_id}: no such folder here, and the Hub does not give it ({reason})"
        ) from None
