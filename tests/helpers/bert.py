"""Tiny pretrained encoders and a GPT-2 with random weights, and a tokenizer of letters for them."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import CONFIG_MAPPING, AutoModel, PreTrainedModel

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in range(97, 123)]
WORDS = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,?!"]
CLS, SEP = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
SIZE = {
    "vocab_size": len(WORDS),
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 8},
    "bert": {},
    "camembert": {},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 4,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
    },
    "distilbert": {},
    "electra": {"embedding_size": 8},
    "gpt2": {},
    "modernbert": {"pad_token_id": 0, "local_attention": 4, "cls_token_id": CLS},
    "mpnet": {},
    "roberta": {},
    "xlm-roberta": {},
}
"""Options that make each family's features visible at a small size."""
NAMES = {
    "distilbert": {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
    },
    "gpt2": {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
    },
}
"""Families with other names of the sizes."""


def build_encoder(kind: str = "bert", *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Build an encoder whose outputs differ clearly from token to token."""
    values = {**SIZE, **FAMILIES[kind], **changes}
    names = NAMES.get(kind, {})
    values = {names.get(key, key): value for key, value in values.items()}
    torch.manual_seed(seed)
    encoder = AutoModel.from_config(CONFIG_MAPPING[kind](**values, initializer_range=0.4))
    return encoder.eval()


def save_encoder(folder: Path, kind: str = "bert", **changes: Any) -> PreTrainedModel:
    """Save an encoder with the tokenizer of letters, as a folder of the Hub would be."""
    encoder = build_encoder(kind, **changes)
    encoder.save_pretrained(folder)
    wordpieces().save(str(folder / "tokenizer.json"))
    return encoder


def wordpieces() -> Tokenizer:
    """Build an uncased tokenizer that truncates and pads, as that of a sentence encoder does."""
    words = {word: index for index, word in enumerate(WORDS)}
    pipeline = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    pipeline.normalizer = normalizers.BertNormalizer(lowercase=True)
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pipeline.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    pipeline.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    pipeline.enable_truncation(8)
    pipeline.enable_padding(length=8)
    return pipeline
