"""Tokenizers. The text of a special token, such as `</s>`, is read as ordinary characters.

`subword.py` has ours, pipelines of the `tokenizers` library; `marian.py` those of Marian models
(two SentencePiece files and a vocabulary); `pair.py` pairs of a pretrained encoder's tokenizer for
the source and another for the target.
"""

from outrider.text.tokenizer.load import load_tokenizer
from outrider.text.tokenizer.subword import SPECIAL_TOKENS, SubwordTokenizer, Tokenizer

__all__ = ["SPECIAL_TOKENS", "SubwordTokenizer", "Tokenizer", "load_tokenizer"]
