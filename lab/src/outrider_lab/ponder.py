"""Mean number of ponder steps of a model with adaptive computation time."""

from collections.abc import Sequence

import torch

from outrider.runtime.generator import Generator
from outrider.runtime.translator import Translator
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Seq2Seq
from outrider.torch.nn.family.halting import Ponders


@torch.inference_mode()
def mean_steps(loaded: Translator | Generator, texts: Sequence[str]) -> float | None:
    """Return the mean steps per token on texts of equal length; None without ACT.

    For an encoder-decoder those of the encoder; for several layers their mean.
    """
    backend = loaded.backend
    if not isinstance(backend, TorchBackend):
        return None
    model = backend.model
    reader = model.encoder if isinstance(model, Seq2Seq) else model.decoder
    parts = [part for part in reader.modules() if isinstance(part, Ponders)]
    if not parts:
        return None
    rows = loaded.tokenizer.encode_batch(list(texts))
    if isinstance(model, Seq2Seq):
        model.encode(torch.tensor([[*row, backend.eos] for row in rows], device=backend.device))
    else:
        model.hidden(torch.tensor([[backend.start, *row] for row in rows], device=backend.device))
    pondered = [part.pondered for part in parts if part.pondered is not None]
    return float(torch.stack([record.steps_BT.mean() for record in pondered]).mean())
