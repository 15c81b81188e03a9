"""`outrider.load`: a folder becomes an object that translates or generates."""

from pathlib import Path
from typing import TYPE_CHECKING

from outrider.backends.native import NativeBackend
from outrider.bounds import check_bound
from outrider.errors import ConfigError, ModelError
from outrider.files.hub import model_folder
from outrider.formats.folder import read_parts
from outrider.formats.readers import bergamot
from outrider.formats.readers.shortlist import Shortlist, read_shortlist
from outrider.formats.spec import LanguageModelSpec, ModelSpec, Seq2SeqSpec
from outrider.runtime.engine import build_backend, choose_device, choose_engine
from outrider.runtime.generator import Generator
from outrider.runtime.options import (
    forced_first,
    model_defaults,
    model_ends,
    model_split,
    source_languages,
    warn_unapplied,
)
from outrider.runtime.translator import Translator
from outrider.text.prompt_template import source_frame
from outrider.text.tokenizer import Tokenizer, load_tokenizer
from outrider.text.tokenizer.pair import SOURCE_FILE, PairTokenizer
from outrider.text.tokenizer.subword import SubwordTokenizer

if TYPE_CHECKING:
    from outrider.torch.backend import TorchBackend

__all__ = ["load"]


def load(
    name: str | Path,
    *,
    device: str = "auto",
    dtype: str | None = None,
    backend: str | None = None,
    threads: int | None = None,
    shortlist: bool = False,
    source_language: str | None = None,
    target_language: str | None = None,
) -> Translator | Generator:
    """Load a model: a `Translator` for an encoder-decoder, a `Generator` for a language model.

    A drafter (`drafter/`) or CTC decoder (`ctc/`) that lies with it is loaded too.

    Args:
        name: A model folder (ours, Marian's, CTranslate2's or Bergamot's), an `.argosmodel` file,
            or the id of a Hub model.
        device: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, `mps`.
        dtype: float32, bfloat16, float16 or int8. By default int8 where the native core computes,
            float32 elsewhere.
        backend: `native` (outrider-native, CPU only), `torch`, or `auto`: native where it is
            installed and no other dtype is asked for. `OUTRIDER_BACKEND` changes the default.
        threads: CPU threads of this process; None leaves them alone.
        shortlist: Let the lexical shortlist of a Bergamot folder (`lex.*.bin`) say which words may
            follow a source, as Firefox does: faster, and a few texts differ.
        source_language: What a multilingual model reads, as it names it (`eng_Latn`, `en_XX`).
        target_language: What it writes; `Translator.between` changes both.
    """
    engine = choose_engine(backend, dtype, choose_device(device))
    if threads is not None:
        check_bound("threads", threads)
    folder = model_folder(name)
    parts = read_parts(folder)
    config, tokenizer = parts.model.config, load_tokenizer(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the model only {config.vocab_size}; they do not belong together"
        )
    computer = build_backend(
        engine,
        parts,
        threads=threads,
        ends=model_ends(folder),
        shortlist=_read_shortlist(folder, config) if shortlist else None,
    )
    defaults = model_defaults(folder, computer)
    warn_unapplied(folder)
    if isinstance(config, LanguageModelSpec):
        if source_language or target_language:
            key = "source_language" if source_language else "target_language"
            raise ConfigError(key, "has no effect on a language model; leave it out")
        adds_start = _adds_start(config, tokenizer)
        return Generator(computer, tokenizer, defaults=defaults, adds_start=adds_start)
    assert isinstance(config, Seq2SeqSpec)
    _check_source(folder, computer, tokenizer)
    frame = source_frame(
        tokenizer,
        start=computer.start,
        end=computer.eos if config.source_end else None,
        forced=forced_first(folder, computer.vocab_size),
    )
    longest = computer.config.longest_source
    return Translator(
        computer,
        tokenizer,
        longest=longest,
        frame=frame.between(source_language, target_language),
        defaults=defaults,
        split=model_split(folder),
        right_to_left=config.right_to_left,
        reads=source_languages(folder),
    )


def _read_shortlist(folder: Path, config: ModelSpec) -> Shortlist:
    (path,) = bergamot.find_files(folder, "lex.*.bin")
    if path is None or not isinstance(config, Seq2SeqSpec):
        raise ConfigError("shortlist", f"{folder} holds no lex.*.bin; leave shortlist out")
    vocab_size = config.vocab_size - 1  # without the start token
    return read_shortlist(path, vocab_size=vocab_size, shared=config.share_embeddings)


def _adds_start(config: LanguageModelSpec, tokenizer: Tokenizer) -> bool:
    """Whether the start token stands before every text, or the tokenizer decides and leaves it."""
    if config.add_bos_token is not None or not isinstance(tokenizer, SubwordTokenizer):
        return bool(config.add_bos_token)
    return bool(tokenizer.around[0])


def _check_source(
    folder: Path, computer: "NativeBackend | TorchBackend", tokenizer: Tokenizer
) -> None:
    """A pretrained encoder is read to by its own tokenizer, any other by that of the target."""
    encoder = None if isinstance(computer, NativeBackend) else computer.model.pretrained
    if (encoder is not None) != isinstance(tokenizer, PairTokenizer):
        what = "lacks" if encoder is not None else "has no pretrained encoder, but has"
        raise ModelError(f"{folder}: {what} {SOURCE_FILE}; this is not a whole model folder")
    if encoder is None or not isinstance(tokenizer, PairTokenizer):
        return
    words, source = encoder.model.config.vocab_size, tokenizer.source
    if source.vocab_size > words or source.end_id != encoder.end:
        raise ModelError(
            f"{folder}: {SOURCE_FILE} ({source.vocab_size} tokens, end {source.end_id}) does not "
            f"belong to the encoder ({words} tokens, end {encoder.end})"
        )
