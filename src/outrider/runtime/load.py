"""`outrider.load`: a folder becomes an object that translates or generates."""

from pathlib import Path

import torch

from outrider.backends.torch import TorchBackend
from outrider.data.tokenizer import Tokenizer, load_tokenizer
from outrider.data.tokenizer_pair import SOURCE_FILE, PairTokenizer
from outrider.errors import ConfigError, ModelError
from outrider.models import LanguageModel, Seq2Seq, load_model
from outrider.models.ctc import load_ctc
from outrider.models.folder import DTYPES, load_drafter
from outrider.runtime.folder import model_folder
from outrider.runtime.generator import Generator
from outrider.runtime.options import model_defaults
from outrider.runtime.translator import Translator

__all__ = ["load"]


def load(
    name: str | Path, *, device: str = "auto", dtype: str = "float32", threads: int | None = None
) -> Translator | Generator:
    """Load a model: a `Translator` for an encoder-decoder, a `Generator` for a language model.

    A drafter (`drafter/`) or CTC decoder (`ctc/`) that lies with it is loaded too.

    Args:
        name: A model folder (ours or Marian's), or the id of a Hub model.
        device: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, `mps`.
        dtype: float32, bfloat16 or float16.
        threads: CPU threads PyTorch uses in this process; None leaves them alone.
    """
    place = _device(device)
    if dtype not in DTYPES:
        raise ConfigError("dtype", f"got {dtype!r}, expected one of {', '.join(DTYPES)}")
    if threads is not None:
        if threads < 1:
            raise ConfigError("threads", f"got {threads}, expected 1 or more")
        torch.set_num_threads(threads)
    folder = model_folder(name)
    model = load_model(folder, dtype=dtype, device=place)
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
    backend = TorchBackend(model, drafter=drafter, ctc=ctc, frozen=True)
    defaults = model_defaults(folder, backend)
    if isinstance(model, LanguageModel):
        return Generator(backend, tokenizer, defaults=defaults)
    return Translator(backend, tokenizer, longest=model.config.longest_source, defaults=defaults)


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


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(name)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError):
        raise ConfigError(
            "device", f"got {name!r}, which this machine does not have; try auto or cpu"
        ) from None
    return place
