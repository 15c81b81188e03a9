"""The native core of Outrider, used by `outrider.backends.native`."""

from outrider_native._core import Engine, PackedFile, Query, State, checksum, instruction_sets

__all__ = ["Engine", "PackedFile", "Query", "State", "checksum", "instruction_sets"]
