"""Whether two folders speak of the same tokens: ids of one mean nothing in another's vocabulary."""

from pathlib import Path

from outrider.errors import DataError
from outrider.text.tokenizer.base import Tokenizer
from outrider.text.tokenizer.pair import PairTokenizer
from outrider.text.tokenizer.subword import SubwordTokenizer

__all__ = ["check_same_tokenizer"]

SPECIAL_IDS = ("pad_id", "eos_id", "unk_id", "bos_id")


def check_same_tokenizer(
    of_data: Tokenizer,
    of_model: Tokenizer,
    *,
    data: Path,
    model: str | Path,
    grown: bool = False,
) -> None:
    """Refuse the folder `data` if its ids are not those of `model`; `grown`: it may have more."""
    found = _difference(of_data, of_model, grown)
    if found:
        raise DataError(
            f"{data}: was prepared with another tokenizer than that of {model} "
            f"({found}); prepare it again with data.tokenizer.folder={model}"
        )


def _difference(data: Tokenizer, model: Tokenizer, grown: bool) -> str:
    if isinstance(data, PairTokenizer) and isinstance(model, PairTokenizer):
        if data.source.pipeline.to_str() != model.source.pipeline.to_str():
            return "their sources are read differently"
        return _difference(data.target, model.target, grown)
    if isinstance(data, PairTokenizer) or isinstance(model, PairTokenizer):
        return "only one of them has a tokenizer of its own for sources"
    if data.vocab_size != model.vocab_size and not (grown and data.vocab_size > model.vocab_size):
        return f"{data.vocab_size} tokens against {model.vocab_size}"
    for name in SPECIAL_IDS:
        if getattr(data, name) != getattr(model, name):
            return f"{name} is {getattr(data, name)} against {getattr(model, name)}"
    after = _words(model)
    before = _words(data)[: len(after)]
    if before == after:
        return ""
    token = next(i for i, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) > 1)
    return f"token {token} is {before[token]!r} against {after[token]!r}"


def _words(tokenizer: Tokenizer) -> list[str]:
    """What every id stands for."""
    if isinstance(tokenizer, SubwordTokenizer):
        names = {index: word for word, index in tokenizer.pipeline.get_vocab().items()}
        return [names.get(index, "") for index in range(tokenizer.vocab_size)]
    if hasattr(tokenizer, "names"):  # Marian's, which needs SentencePiece to be imported
        sides = [{index: word for word, index in ids.items()} for ids in tokenizer.names]
        return [" ".join(s.get(i, "") for s in sides) for i in range(tokenizer.vocab_size)]
    return tokenizer.decode_batch([[index] for index in range(tokenizer.vocab_size)])
