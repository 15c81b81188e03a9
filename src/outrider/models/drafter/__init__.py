"""The block drafter: its weights, and the ways to run it (`model.py`)."""

from outrider.models.drafter.base import Ahead, Tables
from outrider.models.drafter.layers import Slots
from outrider.models.drafter.model import BlockDraft, Drafter

__all__ = ["Ahead", "BlockDraft", "Drafter", "Slots", "Tables"]
