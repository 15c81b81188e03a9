"""Instruction sets: restrict all engines to one, to simulate an older machine."""

from collections.abc import Mapping

from outrider.errors import ConfigError

_PEERS = {
    "avx2": ("AVX2", "AVX2", "AVX2"),
    "avxvnni": ("AVX2", "AVX2_VNNI", "AVX2_E1"),
    "avx512": ("AVX512", "AVX512_CORE", "AVX512"),
    "vnni": ("AVX512", "AVX512_CORE_VNNI", "AVX512_E1"),
    "amx": ("AVX512", "AVX512_CORE_AMX", "AVX512_E4"),
}
"""The equivalents for CTranslate2, oneDNN and MKL; the first two alone do not restrict MKL."""


def check_isa(names: list[str]) -> list[str]:
    """Require instruction sets that this machine supports."""
    from outrider.backends.native import instruction_sets

    supported = instruction_sets()
    for name in names:
        if name not in supported:
            raise ConfigError("--isa", f"got {name!r}; this machine has {', '.join(supported)}")
    return names


def environment(isa: str | None) -> Mapping[str, str]:
    """Return environment variables that restrict ours and other engines to this set."""
    if isa is None:
        return {}
    ours = {"OUTRIDER_ISA": isa}
    if isa not in _PEERS:
        return ours  # ARM and portable: no equivalents
    names = ("CT2_FORCE_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
    return ours | dict(zip(names, _PEERS[isa], strict=True))
