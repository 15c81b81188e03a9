"""A short run for attacks to damage."""

from pathlib import Path
from typing import Any

import yaml

CONFIG: dict[str, Any] = {
    "name": "attacked",
    "folder": "run",
    "data": {
        "folder": "data",
        "train": {"source": "train.en", "target": "train.de"},
        "valid_rows": 4,
        "tokenizer": {"kind": "char", "vocab_size": 64},
        "clean": {"drop_duplicates": False},
    },
    "model": {
        **{"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2},
        **{"encoder_layers": 1, "decoder_layers": 1},
    },
    "train": {"steps": 2, "batch_tokens": 256, "warmup": 1, "device": "cpu"},
}


def write(folder: Path, config: dict[str, Any]) -> None:
    for side in ("en", "de"):
        lines = "".join(f"{chr(97 + n % 20)} {chr(98 + n % 7)}\n" for n in range(40))
        (folder / f"train.{side}").write_text(lines)
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
