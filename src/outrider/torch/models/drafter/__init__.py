"""The block drafter: its weights, and the ways to run it (`model.py`)."""

from outrider.torch.models.drafter.base import Ahead, Slots, Tables
from outrider.torch.models.drafter.model import BlockDraft, Drafter

__all__ = ["Ahead", "BlockDraft", "Drafter", "Slots", "Tables"]
