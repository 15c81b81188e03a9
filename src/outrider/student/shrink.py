"""A smaller model of a larger one: some of its layers, and the words that its texts need.

Nothing is learnt here. What is left out is missed until the model is trained again, which
`model.start` does; what is kept computes what it did.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers.utils import logging as transformers_logging

from outrider.data.prepared import Prepared, open_prepared
from outrider.data.tokenizer import load_tokenizer
from outrider.data.tokenizer.cut import cut_tokenizer
from outrider.data.tokenizer.match import check_same_tokenizer
from outrider.errors import ConfigError, ModelError
from outrider.files import working_folder
from outrider.hub import model_folder
from outrider.models import Seq2Seq, load_model
from outrider.models.reshape import Layers, keep_layers, keep_words

__all__ = ["shrink"]


def shrink(
    model: str | Path,
    out: str | Path,
    *,
    layers: Layers | None = None,
    words: int | None = None,
    data: str | Path | None = None,
) -> Path:
    """Write a model folder with less in it.

    Args:
        model: A model folder, an `.argosmodel` file or a Hub name; an encoder-decoder.
        out: The folder to write.
        layers: Which layers of `encoder` and `decoder` stay; all of a side that is not named.
        words: How many words of each side stay.
        data: A prepared folder of this model's tokenizer whose texts say which words those are;
            what `outrider distill` writes.
    """
    out = Path(out)
    if out.exists():
        raise ModelError(f"{out}: exists already; name a new folder")
    if (words is None) != (data is None):
        key, other = ("words", "data") if words is None else ("data", "words")
        raise ConfigError(key, f"is missing: {other} alone does not say which words stay")
    folder = model_folder(model)
    loaded, tokenizer = load_model(folder), load_tokenizer(folder)
    if not isinstance(loaded, Seq2Seq):
        raise ModelError(f"{folder}: is a language model; shrink takes one that translates")
    if layers:
        loaded = keep_layers(loaded, layers)
    if words is not None and data is not None:
        prepared = open_prepared(data)
        check_same_tokenizer(prepared.tokenizer, tokenizer, data=prepared.folder, model=folder)
        counts = [_count(prepared, side, tokenizer.vocab_size) for side in ("source", "target")]
        cut = cut_tokenizer(tokenizer, *counts, words=words)
        extra = range(tokenizer.vocab_size, loaded.config.vocab_size)  # rows that are no words
        loaded = keep_words(loaded, [*cut.source, *extra], [*cut.target, *extra])
        tokenizer = cut.tokenizer
    transformers_logging.disable_progress_bar()
    with working_folder(out) as draft:
        loaded.save_pretrained(draft)
        tokenizer.save(draft)
    return out


def _count(prepared: Prepared, side: str, words: int) -> Sequence[int]:
    """Count how often each word occurs in the training text."""
    reader, count_V = prepared.reader("train"), np.zeros(words, np.int64)
    for block in range(len(reader.block_rows)):
        count_V += np.bincount(reader.ids(block, f"{side}_ids").flat, minlength=words)
    counted: list[int] = count_V.tolist()
    return counted
