"""Tokenizers: text to ids and back.

Ours (`subword.py`) are `tokenizers` pipelines, trained in `training.py`. Folders of Marian models
(two SentencePiece files and a vocabulary) are read by `marian.py` and written by
`sentencepiece_export.py`. Beside a pretrained encoder the source has a tokenizer of its own
(`pair.py`). Text never becomes a special token: `</s>` is four letters.
"""

from outrider.text.tokenizer.load import load_tokenizer
from outrider.text.tokenizer.subword import SPECIAL_TOKENS, SubwordTokenizer, Tokenizer

__all__ = ["SPECIAL_TOKENS", "SubwordTokenizer", "Tokenizer", "load_tokenizer"]
