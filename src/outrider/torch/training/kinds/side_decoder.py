"""Parallel decoders of a finished model, their target: drafters and CTC decoders.

The model folder holds the target's files and a subfolder:

    config.json, model.safetensors, tokenizer ...   the target, unchanged (new weights if joint)
    drafter/ or ctc/                                the trained decoder, its config and provenance
"""

import shutil
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from outrider.data.config import Task
from outrider.data.prepared import Prepared
from outrider.files.hub import SAFE_FILES
from outrider.formats.folder import weights_of
from outrider.formats.spec import check_keys
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.vocabulary import check_same_tokenizer
from outrider.torch.models import Ctc, Drafter, Seq2SeqConfig, load_config, load_model
from outrider.torch.training.card import add_side_decoder_section
from outrider.torch.training.kinds.base import Kind
from outrider.torch.training.log import Log, read_log
from outrider.torch.training.start import (
    check_start,
    model_keys,
    new_model,
    refuse_start,
    target_folder,
)

ARGOS = "model"
"""Subfolder of an Argos package that holds the model."""
_FILES = (*SAFE_FILES, "run.yaml")

S = TypeVar("S", Ctc, Drafter)


class SideDecoderKind(Kind[S]):
    name: ClassVar[str]
    """Its subfolder in a model folder."""
    other: ClassVar[str]
    """The subfolder of the other kind."""
    config_class: ClassVar[Any]
    title: ClassVar[str]
    """Of its section in the target's card."""
    about: ClassVar[str]

    @property
    def task(self) -> Task:  # type: ignore[override]
        config = load_config(target_folder(self.config))
        return "translation" if isinstance(config, Seq2SeqConfig) else "language_model"

    def check(self) -> None:
        refuse_start(self.config, " for model.target")
        check_start(self.config)
        self._make_config()

    def _make_config(self) -> Any:
        values, target = self.config.model.values, load_config(target_folder(self.config))
        check_keys(self.config_class, values, prefix="model.")
        with model_keys():
            return self.config_class.for_target(target, **values)

    def notes(self, prepared: Prepared) -> list[str]:
        """Return a note if the data is not the target's output, which it learns best from."""
        origin, target = prepared.manifest.origin, target_folder(self.config)
        if origin is None:
            content = "holds original text"
        elif origin["weights"] != weights_of(target):
            content = f"holds the output of {origin['model']}, which has other weights"
        else:
            return []
        return [
            f"note: {prepared.folder} {content}; a {self.name} learns more from the target's own "
            f"output: outrider distill {target} --data {prepared.folder} --out FOLDER"
        ]

    def _build(self, prepared: Prepared) -> S:
        folder = target_folder(self.config)
        tokenizer = load_tokenizer(folder)
        check_same_tokenizer(prepared.tokenizer, tokenizer, data=prepared.folder, model=folder)
        return self.bind(self._make_config(), load_model(folder), folder)

    def _blank(self, vocab_size: int) -> S:
        folder = target_folder(self.config)
        return self.bind(self._make_config(), new_model(load_config(folder)), folder)

    @abstractmethod
    def bind(self, config: Any, target: Any, folder: Path) -> S:
        """Build the decoder with fresh weights and attach it to its target."""

    def load_others(self, model: S, prepared: Prepared, device: torch.device) -> None:
        model.target.to(device)  # it may not be a submodule

    def row_options(self, model: S, prepared: Prepared, *, train: bool) -> dict[str, Any]:
        target = model.target.config
        return {
            **super().row_options(model, prepared, train=train),
            "source_end": getattr(target, "source_end", True),
            "right_to_left": getattr(target, "right_to_left", False),
        }

    def provenance(self, prepared: Prepared, log: Log) -> dict[str, Any]:
        evaluations = [r for r in read_log(log.path) if r["event"] == "evaluation"]
        return {
            "distilled": prepared.manifest.origin,
            "validation": evaluations[-1] if evaluations else None,
        }

    def write(self, model: S, prepared: Prepared, folder: Path) -> str:
        target = target_folder(self.config)
        copy_files(target, folder)
        if (target / ARGOS / "model.bin").is_file():
            copy_files(target / ARGOS, folder / ARGOS)
        if (target / self.other).is_dir():
            copy_files(target / self.other, folder / self.other)
        model.save_pretrained(folder / self.name, state_dict=model.state_dict())
        return ""

    def write_card(self, folder: Path, **parts: Any) -> None:
        texts: dict[str, Any] = {"title": self.title, "about": self.about}
        add_side_decoder_section(folder, self.config, **texts, **parts)


def copy_files(source: Path, folder: Path, *, leave_out: str = "") -> None:
    """Copy the files that belong to a model."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        known = path.is_file() and any(path.match(pattern) for pattern in _FILES)
        if known and not (leave_out and path.match(leave_out)):
            shutil.copyfile(path, folder / path.name)
