"""The block drafter (`model.py`)."""

from outrider.torch.models.drafter.base import ParallelDecoder, Tables, TrainingSlots
from outrider.torch.models.drafter.model import BlockDraft, Drafter

__all__ = ["BlockDraft", "Drafter", "ParallelDecoder", "Tables", "TrainingSlots"]
