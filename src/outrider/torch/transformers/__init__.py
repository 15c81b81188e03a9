"""Tandem decoding for models of transformers.

    from outrider.torch.transformers import tandem

    model = MarianMTModel.from_pretrained("Helsinki-NLP/opus-mt-zh-en")
    model.generate(**inputs, custom_generate=tandem("FOLDER"), num_beams=1)

returns the text of `model.generate(**inputs, num_beams=1)`, in fewer passes: the drafter in FOLDER
drafts a block of tokens, and the model's own weights verify it in one pass.

Verification: the caches of transformers have one length per batch, but rows accept different
numbers of tokens. Outrider's caches have a length per row. So the encoder's output is taken from
`generate`, and Outrider's decoder continues with the weights of the model. They are shared on a
CPU, except those stored in another layout (queries, keys and values are one matrix here), and
copied again when they change.

Exactness: logits processors and stopping criteria are those that `generate` prepared, applied to
the text of each row. Two implementations sum the same float32 numbers in different orders. If the
best two tokens are within that rounding error, transformers' forward scores this text and decides.
In half precision such ties are frequent, so it is refused, as are all options that this loop does
not honour.
"""

import sys
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from outrider.errors import ConfigError, ModelError
from outrider.files.hub import model_folder
from outrider.torch.models import Drafter, LanguageModel, Seq2Seq
from outrider.torch.models.folder import load_ctc, load_drafter
from outrider.torch.transformers.loop import TandemLoop, build_view, check_same_logits
from outrider.torch.transformers.options import Prompt, check_dropped, check_model, check_options

__all__ = ["Tandem", "tandem"]

Target = Seq2Seq | LanguageModel
BLOCK = 8
"""Default number of drafted tokens."""


def tandem(folder: str | Path, *, draft_tokens: int | None = None) -> "Tandem":
    """Return a method for `generate(..., custom_generate=...)` with the drafter of a folder.

    Args:
        folder: An Outrider model folder with a drafter, or a Hub name.
        draft_tokens: Tokens drafted per block; by default 8, or the drafter's maximum if smaller.
    """
    return Tandem(model_folder(folder), draft_tokens)


class Tandem:
    """Greedy decoding by draft and verification; see `tandem`."""

    def __init__(self, folder: Path, draft_tokens: int | None) -> None:
        self.folder, self.draft_tokens = folder, draft_tokens
        self._bound: WeakKeyDictionary[Any, tuple[Any, Target, Drafter]] = WeakKeyDictionary()

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Tensor:
        """Continue `input_ids`, with the interface of transformers' decoding methods."""
        check_dropped(sys._getframe(1).f_locals)
        check_options(generation_config, logits_processor, stopping_criteria, model_kwargs)
        check_model(model)
        prompt = Prompt.of(model, input_ids, model_kwargs)
        target, drafter = self._bind(model, prompt)
        ends = generation_config._eos_token_tensor
        loop = TandemLoop(
            target,
            drafter,
            prompt,
            block=self._block(drafter),
            limit=int(generation_config.max_length),
            ends=set() if ends is None else {int(token) for token in ends.flatten()},
            processors=logits_processor,
        )
        texts = loop.run()
        longest = max(map(len, texts))
        pad = generation_config._pad_token_tensor
        fill = 0 if pad is None else int(pad)
        filled = [[*text, *[fill] * (longest - len(text))] for text in texts]
        return torch.tensor(filled, dtype=input_ids.dtype, device=input_ids.device)

    def _block(self, drafter: Drafter) -> int:
        longest, wanted = drafter.config.block, self.draft_tokens
        if wanted is not None and not 1 <= wanted <= longest:
            message = f"got {wanted}, but this drafter drafts 1 to {longest} tokens at once"
            raise ConfigError("draft_tokens", message)
        return wanted or min(BLOCK, longest)

    def _bind(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Target, Drafter]:
        """Return Outrider's model over these weights, and its drafter; cached until they change."""
        now = [(weight.data_ptr(), weight._version) for weight in model.state_dict().values()]
        if (bound := self._bound.get(model)) is not None and bound[0] == now:
            return bound[1], bound[2]
        target = build_view(model)
        check_same_logits(target, prompt)
        drafter = load_drafter(self.folder, target, load_ctc(self.folder, target))
        if drafter is None:
            raise ModelError(f"{self.folder}: has no drafter; train one with `outrider accelerate`")
        self._bound[model] = now, target, drafter
        return target, drafter
