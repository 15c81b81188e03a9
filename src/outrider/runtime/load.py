"""`outrider.load`: load a model folder as a `Translator` or a `Generator`."""

from pathlib import Path
from typing import TYPE_CHECKING

from outrider.backends.native import NativeBackend
from outrider.errors import ConfigError, ModelError
from outrider.files import JsonFolder
from outrider.files.hub import model_folder
from outrider.formats.folder import Parts, read_parts
from outrider.formats.spec import LanguageModelSpec, Seq2SeqSpec
from outrider.options import THREADS, check_bound
from outrider.runtime.backend import (
    BackendChoice,
    build_backend,
    choose_backend,
    choose_device,
    lacking,
)
from outrider.runtime.options import GenerationSettings, source_languages, target_language_of
from outrider.runtime.translator import Translator
from outrider.text.prompt_template import source_frame
from outrider.text.tokenizer import Tokenizer, load_tokenizer
from outrider.text.tokenizer.pair import SOURCE_FILE, PairTokenizer
from outrider.text.tokenizer.subword import SubwordTokenizer

if TYPE_CHECKING:
    from outrider.formats.readers.bergamot import Shortlist
    from outrider.runtime.generator import Generator
    from outrider.torch.backend import TorchBackend


def load(
    name: str | Path | JsonFolder,
    *,
    device: str = "auto",
    dtype: str | None = None,
    backend: str | None = None,
    threads: int | None = None,
    shortlist: bool | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> "Translator | Generator":
    """Load a model: a `Translator` for an encoder-decoder, a `Generator` for a language model.

    A drafter (`drafter/`) or CTC decoder (`ctc/`) in the folder is loaded too.

    Args:
        name: A model folder (ours, Marian's, CTranslate2's or Bergamot's), an `.argosmodel` file,
            or the id of a Hub model.
        device: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, `mps`.
        dtype: float32, bfloat16, float16 or int8. By default int8 with the native core, float32
            with PyTorch.
        backend: `native` (outrider-native, CPU only), `torch`, or `auto`: native if it is installed
            and no other dtype is given. `OUTRIDER_BACKEND` changes the default.
        threads: CPU threads of this process; None leaves them unchanged.
        shortlist: Limit target tokens by the lexical shortlist of a Bergamot folder (`lex.*.bin`),
            as Firefox does: faster, and a few texts differ. By default the native core uses it if
            the folder has one; False scores every token.
        source_language: Source language of a multilingual model, by its own name (`eng_Latn`,
            `en_XX`).
        target_language: Target language; `Translator.between` changes both.
    """
    choice = choose_backend(backend, dtype, choose_device(device))
    if threads is not None:
        check_bound("threads", threads, THREADS)
    files = name if isinstance(name, JsonFolder) else JsonFolder(model_folder(name))
    folder, parts = files.path, read_parts(files)
    config, tokenizer = parts.model.config, load_tokenizer(files)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the model only {config.vocab_size}; they do not belong together"
        )
    settings = GenerationSettings(files)
    if shortlist is None and parts.model.files[0].match("model.*.bin"):
        shortlist = _has_shortlist(choice, parts)
    built = build_backend(
        choice,
        parts,
        threads=threads,
        ends=settings.ends,
        shortlist=_read_shortlist(parts) if shortlist else None,
    )
    defaults = settings.defaults(built)
    settings.warn_unapplied()
    if isinstance(config, LanguageModelSpec):
        if source_language or target_language:
            key = "source_language" if source_language else "target_language"
            raise ConfigError(key, "has no effect on a language model; leave it out")
        from outrider.runtime.generator import Generator

        adds_start = _adds_start(config, tokenizer)
        return Generator(built, tokenizer, defaults=defaults, adds_start=adds_start)
    assert isinstance(config, Seq2SeqSpec)
    _check_source(folder, built, tokenizer)
    frame = source_frame(
        tokenizer,
        start=built.start,
        end=built.eos if config.source_end else None,
        forced=settings.forced_first(built.vocab_size),
    )
    return Translator(
        built,
        tokenizer,
        longest=built.config.longest_source,
        frame=frame.between(source_language, target_language),
        defaults=defaults,
        split=settings.split,
        right_to_left=config.right_to_left,
        reads=source_languages(files),
        writes=target_language or target_language_of(files),
        several=target_language is not None,
    )


def _has_shortlist(choice: BackendChoice, parts: Parts) -> bool:
    """Whether a Bergamot folder has a shortlist that its backend can use."""
    return (
        choice.native
        and parts.ctc is None
        and any(parts.model.folder.glob("lex.*.bin"))
        and (choice.required or lacking(parts) is None)
    )


def _read_shortlist(parts: Parts) -> "Shortlist":
    from outrider.formats.readers import bergamot

    folder, config = parts.model.folder, parts.model.config
    (path,) = bergamot.find_files(folder, "lex.*.bin")
    if path is None or not isinstance(config, Seq2SeqSpec):
        raise ConfigError("shortlist", f"{folder} holds no lex.*.bin; leave shortlist out")
    vocab_size = config.vocab_size - 1  # without the start token
    return bergamot.read_shortlist(path, vocab_size=vocab_size, shared=config.share_embeddings)


def _adds_start(config: LanguageModelSpec, tokenizer: Tokenizer) -> bool:
    """Whether the start token precedes every text, by the config or else by the tokenizer."""
    if config.add_bos_token is not None or not isinstance(tokenizer, SubwordTokenizer):
        return bool(config.add_bos_token)
    return bool(tokenizer.around[0])


def _check_source(
    folder: Path, backend: "NativeBackend | TorchBackend", tokenizer: Tokenizer
) -> None:
    """Require a source tokenizer for a pretrained encoder, and only for one."""
    encoder = None if isinstance(backend, NativeBackend) else backend.model.pretrained
    if (encoder is not None) != isinstance(tokenizer, PairTokenizer):
        fault = "lacks" if encoder is not None else "has no pretrained encoder, but has"
        raise ModelError(f"{folder}: {fault} {SOURCE_FILE}; the model folder is incomplete")
    if encoder is None or not isinstance(tokenizer, PairTokenizer):
        return
    vocab_size, source = encoder.model.config.vocab_size, tokenizer.source
    if source.vocab_size > vocab_size or source.end_id != encoder.end:
        raise ModelError(
            f"{folder}: {SOURCE_FILE} ({source.vocab_size} tokens, end {source.end_id}) does not "
            f"belong to the encoder ({vocab_size} tokens, end {encoder.end})"
        )
