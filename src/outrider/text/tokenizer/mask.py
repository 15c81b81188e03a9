"""The tokenizer of a masked language model: one more token, and a frame around every text.

A corpus is prepared as for any language model. The mask is no part of it: it gets the id behind
all others when a model is built. Text never becomes a mask, `<mask>` is six letters. The frame,
`<s> ... </s>`, is what the model learns from, and tells a translator where a source ends.
"""

from typing import Any

import tokenizers
from tokenizers import processors

from outrider.errors import ConfigError
from outrider.text.tokenizer.base import Tokenizer
from outrider.text.tokenizer.subword import SubwordTokenizer

__all__ = ["MASK", "MaskTokenizer", "add_mask"]

MASK = "<mask>"


class MaskTokenizer(SubwordTokenizer):
    """A pipeline that knows the mask."""

    def __init__(self, pipeline: Any, special: dict[str, str]) -> None:
        super().__init__(pipeline, {**special, "mask_token": MASK})
        self.mask_id = self._id("mask_token")


def add_mask(tokenizer: Tokenizer) -> MaskTokenizer:
    """Return the tokenizer with a mask, its other ids as they are."""
    if not isinstance(tokenizer, SubwordTokenizer):
        message = "a masked_lm needs a tokenizer of one tokenizer.json; use another, or train one"
        raise ConfigError("data.tokenizer.folder", message)
    if tokenizer.bos_id in (tokenizer.pad_id, tokenizer.eos_id):
        message = "its tokenizer has no start token, with which a masked_lm begins a text"
        raise ConfigError("data.tokenizer.folder", f"{message}; use another, or train one")
    pipeline: Any = tokenizers.Tokenizer.from_str(tokenizer.pipeline.to_str())
    pipeline.add_special_tokens([tokenizers.AddedToken(MASK, special=True, normalized=False)])
    ends = [pipeline.id_to_token(index) for index in (tokenizer.bos_id, tokenizer.eos_id)]
    pipeline.post_processor = processors.TemplateProcessing(
        single=f"{ends[0]} $A {ends[1]}",
        special_tokens=[(token, pipeline.token_to_id(token)) for token in ends],
    )
    return MaskTokenizer(pipeline, tokenizer.special)
