"""The model folder of a drafter or a ctc decoder: its target's files, and a subfolder of its own.

config.json, model.safetensors, tokenizer ...   the target, as it was (new weights if joint)
drafter/ or ctc/                                what this run trained, its config and origin
"""

import shutil
from pathlib import Path

from outrider.files.hub import SAFE_FILES
from outrider.formats.folder import model_files
from outrider.formats.weights import weight_files
from outrider.text.tokenizer import load_tokenizer
from outrider.torch.models import Drafter
from outrider.torch.models.ctc import Ctc, split_weights

__all__ = ["write_side_decoder"]

ARGOS = "model"
"""Subfolder of an Argos package that holds the model."""
_OTHERS = {"drafter": "ctc", "ctc": "drafter"}
_FILES = (*SAFE_FILES, "run.yaml")


def write_side_decoder(decoder: Drafter | Ctc, target: Path, folder: Path) -> str:
    """Fill `folder` with the target and its side decoder; return what people should know, or ""."""
    kind = "drafter" if isinstance(decoder, Drafter) else "ctc"
    joint = isinstance(decoder, Ctc) and decoder.config.joint
    if joint and model_files(target) != weight_files(target):  # of another format: written as ours
        load_tokenizer(target).save(folder)
    else:
        _copy(target, folder, leave_out="*.safetensors*" if joint else "")
        if (target / ARGOS / "model.bin").is_file():
            _copy(target / ARGOS, folder / ARGOS)
    other = target / _OTHERS[kind]
    note = ""
    if joint and other.is_dir():
        note = f"left out {other}: the weights it was trained for have changed; train it again"
    elif other.is_dir():
        _copy(other, folder / other.name)
    own = decoder.state_dict()
    if isinstance(decoder, Ctc) and joint:
        own, theirs = split_weights(own)
        decoder.target.save_pretrained(folder, state_dict=theirs)
    decoder.save_pretrained(folder / kind, state_dict=own)
    return note


def _copy(source: Path, folder: Path, *, leave_out: str = "") -> None:
    """Copy what belongs to a model, and nothing that only happens to lie there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        wanted = path.is_file() and any(path.match(pattern) for pattern in _FILES)
        if wanted and not (leave_out and path.match(leave_out)):
            shutil.copyfile(path, folder / path.name)
