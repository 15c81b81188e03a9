"""The int8 core of Outrider: what `outrider.backends.native` computes with."""

from outrider_native._core import Model, PackedFile, Question, State, checksum, instruction_sets

__all__ = ["Model", "PackedFile", "Question", "State", "checksum", "instruction_sets"]
