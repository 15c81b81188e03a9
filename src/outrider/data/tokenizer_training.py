"""Training of unigram, byte-level BPE and character tokenizers.

`unigram` is trained by SentencePiece, whose result is deterministic (the trainer of the
`tokenizers` library yields another vocabulary on every run), and works without whitespace between
words. Characters beyond `coverage` are encoded as bytes. `bpe` works on bytes. `char` has the
characters of its training text; others are unknown.

For translation, whitespace is collapsed to one space and stripped at the ends; `verbatim`, for
language models, keeps all whitespace. In both cases decode(encode(x)) is the normalised x.
"""

import io
from collections import Counter
from collections.abc import Iterable
from typing import Any

import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Pipeline

from outrider.data.config import TokenizerConfig
from outrider.errors import ConfigError
from outrider.text.tokenizer.subword import SPECIAL_TOKENS, SubwordTokenizer

BLANK = "\u2581"  # SentencePiece's symbol for a space
NEVER = -1e4  # score of special tokens and bytes, which must not match text
ASCII = [chr(code) for code in range(33, 127)]
THREADS = 4  # fixed, because the result of SentencePiece depends on it


def train_tokenizer(
    lines: Iterable[str], config: TokenizerConfig, *, verbatim: bool = False
) -> SubwordTokenizer:
    """Train on `lines` (read once); `verbatim` keeps whitespace and starts rows with `<s>`."""
    normalizer = _normalizer(config, verbatim)
    lines = (normalizer.normalize_str(line) if normalizer else line for line in lines)
    train = {"unigram": _train_unigram, "bpe": _train_bpe, "char": _train_char}[config.kind]
    pipeline = train(lines, config, verbatim)
    if normalizer is not None:
        pipeline.normalizer = normalizer
    special = [AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS.values()]
    pipeline.add_special_tokens(special)
    pipeline.post_processor = _ends(pipeline, verbatim)
    return SubwordTokenizer(pipeline)


def _normalizer(config: TokenizerConfig, verbatim: bool) -> Any | None:
    steps: list[Any] = []
    if config.normalization != "none":
        steps.append(normalizers.NFC() if config.normalization == "nfc" else normalizers.NFKC())
    if not verbatim:
        steps += [normalizers.Replace(Regex(r"\s{2,}|[^\S ]"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps) if steps else None


def _ends(pipeline: Any, verbatim: bool) -> Any:
    """Add special tokens for `AutoTokenizer`: `</s>` after a sentence, `<s>` before other text."""
    token = "<s>" if verbatim else "</s>"
    single, pair = ("<s> $A", "<s> $A $B") if verbatim else ("$A </s>", "$A </s> $B </s>")
    return processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(token, pipeline.token_to_id(token))]
    )


def _train_unigram(lines: Iterable[str], config: TokenizerConfig, verbatim: bool) -> Any:
    pipeline = Pipeline(_as_unigram(_train_sentencepiece(lines, config, verbatim)))
    if verbatim:
        newline = pre_tokenizers.Split("\n", "isolated")
        metaspace = pre_tokenizers.Metaspace(prepend_scheme="never")
        pipeline.pre_tokenizer = pre_tokenizers.Sequence([newline, metaspace])
    else:
        pipeline.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    steps = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    pipeline.decoder = decoders.Sequence(steps if verbatim else [*steps, _strip_first_space()])
    return pipeline


def _train_sentencepiece(lines: Iterable[str], config: TokenizerConfig, verbatim: bool) -> bytes:
    special: dict[str, Any] = {}
    for index, (name, token) in enumerate(SPECIAL_TOKENS.items()):
        special |= {name.replace("_token", "_id"): index, name.replace("_token", "_piece"): token}
    # SentencePiece reads lines, so a newline must be a user-defined symbol.
    parts = (part for line in lines for part in line.split("\n") if part)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=parts,
            model_writer=model,
            model_type="unigram",
            vocab_size=config.vocab_size,
            hard_vocab_limit=False,
            character_coverage=config.coverage,
            required_chars="".join(ASCII),
            user_defined_symbols=["\n"] if verbatim else [],
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=not verbatim,
            add_dummy_prefix=not verbatim,
            max_sentence_length=1 << 20,
            num_threads=THREADS,
            minloglevel=2,
            **special,
        )
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            "data.tokenizer.vocab_size", f"no vocabulary of {config.vocab_size}: {reason}"
        ) from error
    return model.getvalue()


def _as_unigram(model: bytes) -> Any:
    """Convert a SentencePiece model to the `tokenizers` library."""
    trained = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocabulary = []
    for i in range(trained.vocab_size()):
        unmatched = trained.is_control(i) or trained.is_unknown(i) or trained.is_byte(i)
        # Six decimals survive the conversion to JSON.
        score = NEVER if unmatched else round(trained.get_score(i), 6)
        vocabulary.append((trained.id_to_piece(i), score))
    return models.Unigram(vocabulary, unk_id=trained.unk_id(), byte_fallback=True)


def _train_bpe(lines: Iterable[str], config: TokenizerConfig, verbatim: bool) -> Any:
    pipeline = Pipeline(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=not verbatim)
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pipeline.train_from_iterator(lines, trainer)
    byte_level = decoders.ByteLevel()
    pipeline.decoder = (
        byte_level if verbatim else decoders.Sequence([byte_level, _strip_first_space()])
    )
    return pipeline


def _train_char(lines: Iterable[str], config: TokenizerConfig, verbatim: bool) -> Any:
    counts = Counter[str]()
    for line in lines:
        counts.update(line)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    tokens = [*SPECIAL_TOKENS.values(), *ranked][: config.vocab_size]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pipeline = Pipeline(models.BPE(vocabulary, [], unk_token=SPECIAL_TOKENS["unk_token"]))
    pipeline.decoder = decoders.Fuse()
    return pipeline


def _strip_first_space() -> Any:
    """Remove the space that is prepended to the first word."""
    return decoders.Strip(content=" ", left=1, right=0)
