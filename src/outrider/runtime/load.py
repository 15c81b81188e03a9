"""`outrider.load`: a folder becomes an object that translates or generates."""

from pathlib import Path

import torch

from outrider.bounds import check_bound
from outrider.data.tokenizer import Tokenizer, load_tokenizer
from outrider.data.tokenizer.pair import SOURCE_FILE, PairTokenizer
from outrider.errors import ModelError
from outrider.hub import model_folder
from outrider.models import LanguageModel, Seq2Seq, load_model
from outrider.models.ctc import load_ctc
from outrider.models.folder import load_drafter
from outrider.runtime.engine import build_backend, choose_device, choose_engine
from outrider.runtime.generator import Generator
from outrider.runtime.options import model_defaults, model_ends
from outrider.runtime.translator import Translator

__all__ = ["load"]


def load(
    name: str | Path,
    *,
    device: str = "auto",
    dtype: str | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Translator | Generator:
    """Load a model: a `Translator` for an encoder-decoder, a `Generator` for a language model.

    A drafter (`drafter/`) or CTC decoder (`ctc/`) that lies with it is loaded too.

    Args:
        name: A model folder (ours or Marian's), or the id of a Hub model.
        device: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, `mps`.
        dtype: float32, bfloat16, float16 or int8. By default int8 where the native core computes,
            float32 elsewhere.
        backend: `native` (outrider-native, CPU only), `torch`, or `auto`: native where it is
            installed and no other dtype is asked for. `OUTRIDER_BACKEND` changes the default.
        threads: CPU threads of this process; None leaves them alone.
    """
    place = choose_device(device)
    engine = choose_engine(backend, dtype, place)
    if threads is not None:
        torch.set_num_threads(check_bound("threads", threads))
    folder = model_folder(name)
    model = load_model(folder, dtype="float32" if engine.native else engine.dtype, device=place)
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the model only {model.config.vocab_size}; they do not belong together"
        )
    if isinstance(model, Seq2Seq):
        _check_source(folder, model, tokenizer)
    ctc = load_ctc(folder, model)
    drafter = load_drafter(folder, model, ctc)
    ends = model_ends(folder)
    computer = build_backend(engine, model, drafter=drafter, ctc=ctc, threads=threads, ends=ends)
    defaults = model_defaults(folder, computer)
    if isinstance(model, LanguageModel):
        return Generator(computer, tokenizer, defaults=defaults)
    return Translator(computer, tokenizer, longest=model.config.longest_source, defaults=defaults)


def _check_source(folder: Path, model: Seq2Seq, tokenizer: Tokenizer) -> None:
    """A pretrained encoder is read to by its own tokenizer, any other by that of the target."""
    encoder = model.pretrained
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
