"""The one door from `load` to PyTorch; nothing else of the runtime imports it."""

from collections.abc import Sequence

import torch

from outrider.formats.folder import Parts
from outrider.torch.backend import TorchBackend
from outrider.torch.models.folder import build_ctc, build_drafter, build_model

__all__ = ["build_torch"]


def build_torch(
    parts: Parts,
    *,
    dtype: str,
    device: str,
    threads: int | None = None,
    ends: Sequence[int] = (),
) -> TorchBackend:
    """Build PyTorch models from what a folder holds, and let them compute."""
    if threads is not None:
        torch.set_num_threads(threads)
    model = build_model(parts.model, dtype=dtype, device=device)
    ctc = None if parts.ctc is None else build_ctc(parts.ctc, model)
    drafter = None if parts.drafter is None else build_drafter(parts.drafter, model, ctc)
    return TorchBackend(model, drafter=drafter, ctc=ctc, frozen=True, ends=ends)
