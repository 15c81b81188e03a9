"""Our model over the weights of one of transformers'."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from outrider.errors import UnsupportedError
from outrider.formats.folder import READERS, Part, reader_of
from outrider.formats.readers.weights import Stored
from outrider.formats.safetensors import Weight
from outrider.torch.models import LanguageModel, Seq2Seq
from outrider.torch.models.folder import build_model
from outrider.torch.transformers.prompt import Prompt

__all__ = ["compare", "view_of"]

PROBE = 16
"""Tokens of the text by which two engines are compared."""
AGREEMENT = 1e-3
"""By how much of the largest score they may differ."""


def view_of(model: PreTrainedModel) -> Seq2Seq | LanguageModel:
    """Build our model over the weights of theirs; on a CPU they are shared."""
    kind, name = model.config.model_type, type(model).__name__
    if kind not in READERS:
        raise UnsupportedError(f"{name}: Outrider knows {', '.join(READERS)}, not {kind}")
    reader, values = reader_of(kind), model.config.to_dict()
    config = reader.import_config(values)
    theirs = Stored(
        {
            key: Weight("float32", weight.detach().cpu().numpy())
            for key, weight in model.state_dict().items()
            if weight.is_floating_point()
        }
    )
    part = Part(Path(name), config, reader.import_weights(theirs, config, values), theirs)
    return build_model(part, device=model.device, copy=False)


def compare(target: Seq2Seq | LanguageModel, prompt: Prompt) -> None:
    """Refuse a model that does more than its config says, such as one with hooks or adapters."""
    config = target.config
    length = min(PROBE, config.max_positions, config.vocab_size - 1)
    # Some families count their positions past padding, which no text holds.
    tokens = [token for token in range(length + 1) if token != config.pad_token_id][:length]
    theirs_V = prompt.ask(0, tokens)
    tokens_1T = torch.tensor([tokens], device=theirs_V.device)
    with torch.inference_mode():
        if isinstance(target, LanguageModel):
            hidden_1TD = target.hidden(tokens_1T)
        else:
            assert prompt.memory_BSD is not None
            keep_BS = prompt.keep_BS
            keep_1S = None if keep_BS is None else keep_BS[:1]
            hidden_1TD = target.decode(tokens_1T, prompt.memory_BSD[:1], keep_1S)
        ours_V = target.logits(hidden_1TD)[0, -1]
    if not torch.allclose(ours_V, theirs_V, atol=float(AGREEMENT * theirs_V.abs().max())):
        raise UnsupportedError(
            f"{type(prompt.model).__name__} computes something else than its config says, so its "
            "drafts cannot be verified"
        )
