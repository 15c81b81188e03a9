"""A prepared corpus of random letters, and a small model that sometimes generates its end token."""

import random
from pathlib import Path
from typing import Any

import torch

from outrider.data.config import PrepareConfig
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared
from outrider.torch.models import LanguageModel, Seq2Seq, Seq2SeqConfig

SIZE = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


def save_corpus(folder: Path, *, lines: int, valid_rows: int, **changes: Any) -> Prepared:
    """Write equal `train.en` and `train.de`, and prepare them in `prepared`."""
    dice = random.Random(0)
    text = ["".join(dice.choices("abcd ", k=dice.randint(2, 12))) + "." for _ in range(lines)]
    for name in ("en", "de"):
        (folder / f"train.{name}").write_text("".join(f"{line}\n" for line in text))
    values = {
        "folder": str(folder / "prepared"),
        "root": str(folder),
        "train": {"source": "train.en", "target": "train.de"},
        "valid_rows": valid_rows,
        "tokenizer": {"kind": "char", "vocab_size": 32},
        "clean": {"drop_duplicates": False, "max_tokens": 30},
        **changes,
    }
    return prepare(PrepareConfig.model_validate(values), progress=False)


def save_translator(prepared: Prepared, folder: Path) -> None:
    """Save a model of random weights whose output depends on the source."""
    torch.manual_seed(2)
    size = {"vocab_size": prepared.tokenizer.vocab_size, "encoder_layers": 1, "decoder_layers": 1}
    model = Seq2Seq(Seq2SeqConfig(norm="post", **size, **SIZE))
    for weight in [*model.encoder.parameters(), *model.decoder.parameters()]:
        weight.data *= 3 if weight.ndim == 2 else 1  # otherwise all outputs are equal
    save(model, prepared, folder)


def save(model: Seq2Seq | LanguageModel, prepared: Prepared, folder: Path) -> None:
    """Save a model with the tokenizer of its corpus."""
    model.save_pretrained(folder)
    prepared.tokenizer.save(folder)
