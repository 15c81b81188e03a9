"""A backend with tensor arguments, for tests that compare numbers; usable in decoding loops."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from outrider.decoding.queries import Argmax, Chosen, Forbidden, Logits
from outrider.torch.backend import TorchBackend
from outrider.torch.models.folder import parts_of

__all__ = ["TensorCalls", "TensorDraft", "native_calls", "torch_calls"]


class TensorDraft(NamedTuple):
    tokens_BK: Tensor
    ids_BKC: Tensor
    prob_BKC: Tensor
    confidence_BK: Tensor


class TensorCalls:
    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def extend(self, tokens, state, query=None, *, count_B=None, last=False) -> Any:
        """Return all logits, or the answer to `query`."""
        if query is not None:
            return self.backend.extend(tokens, state, query, last=last)
        counts = [tokens.shape[1]] * len(tokens) if count_B is None else count_B.tolist()
        fed = [row[:count] for row, count in zip(tokens.tolist(), counts, strict=True)]
        return torch.from_numpy(self.backend.extend(fed, state, Logits(), last=last))

    def likeliest(self, tokens, state, forbidden) -> list[list[int]]:
        found: Chosen = self.backend.extend(tokens, state, Argmax(Forbidden(tuple(forbidden))))
        return found.tokens

    def draft(self, last_B1, state, tokens, *, temperature=1.0, uniform_BK=None) -> TensorDraft:
        numbers = None if uniform_BK is None else uniform_BK.tolist()
        newest = last_B1[:, 0].tolist()
        found = self.backend.drafts.draft(
            newest, state, [tokens] * len(newest), temperature=temperature, uniform=numbers
        )
        ids_BKC, prob_BKC = map(torch.from_numpy, found.probabilities)
        return TensorDraft(
            torch.tensor(found.tokens), ids_BKC, prob_BKC, torch.tensor(found.confidence)
        )

    def predict(self, last_B1, state, known_BK) -> tuple[Tensor, Tensor]:
        newest = last_B1[:, 0].tolist()
        found = self.backend.drafts.predict(newest, state, known_BK.tolist())
        return torch.tensor(found[0]), torch.tensor(found[1])

    def ctc(self, state, known_BU=None) -> Tensor:
        known = None if known_BU is None else known_BU.tolist()
        return torch.from_numpy(self.backend.slots.fill(state, Logits(), known))


def torch_calls(*inputs: Any, **options: Any) -> TensorCalls:
    return TensorCalls(TorchBackend(*inputs, **options))


def native_calls(model: Any, drafter: Any = None, ctc: Any = None, **options: Any) -> TensorCalls:
    from outrider.backends.native import NativeBackend

    return TensorCalls(NativeBackend(parts_of(model, drafter, ctc), **options))
