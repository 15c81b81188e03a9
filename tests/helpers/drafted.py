"""Tiny model folders with an untrained drafter, whose drafts are nearly always refused."""

import json
from pathlib import Path
from typing import Any

import torch

from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.torch.models import (
    Drafter,
    DrafterConfig,
    LanguageModel,
    LanguageModelConfig,
    Seq2Seq,
    Seq2SeqConfig,
)
from outrider.torch.models.configs import CtcConfig
from outrider.torch.models.ctc import Ctc

TEXT = ["a small dog runs", "two men play", "where is the station?", "it is late. we go home!"]
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


def save_translator(
    folder: Path, *, drafter: bool = True, ctc: bool = False, seed: int = 0, **parts: Any
) -> Path:
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64))
    tokenizer.save(folder)
    torch.manual_seed(seed)
    config = Seq2SeqConfig(
        vocab_size=tokenizer.vocab_size, encoder_layers=1, decoder_layers=1, **SIZES, **parts
    )
    if ctc:
        Ctc(CtcConfig.for_target(config, layers=1)).save_pretrained(folder / "ctc")
    return _save(Seq2Seq(config), folder, drafter)


def save_language_model(folder: Path, *, drafter: bool = True, **parts: Any) -> Path:
    tokenizer = train_tokenizer(TEXT, TokenizerConfig(kind="char", vocab_size=64), verbatim=True)
    tokenizer.save(folder)
    torch.manual_seed(0)
    config = LanguageModelConfig(vocab_size=tokenizer.vocab_size, layers=1, **SIZES, **parts)
    return _save(LanguageModel(config), folder, drafter)


def _save(model: Seq2Seq | LanguageModel, folder: Path, drafter: bool) -> Path:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # With plain random weights every text is one repeated letter.
            if weight.dim() > 1 and "tokens" not in name:
                weight.mul_(3.0 if ".feedforward." in name else 8.0)
    model.save_pretrained(folder)
    generation = {"bad_words_ids": [[token] for token in (0, 2, 3)]}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    if drafter:
        config = DrafterConfig.for_target(model.config, block=6, train_block=4)
        Drafter(config).save_pretrained(folder / "drafter")
    return folder
