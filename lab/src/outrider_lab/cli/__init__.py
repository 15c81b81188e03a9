"""Commands of `outrider lab`, found through the entry point `outrider.commands`."""

__all__ = ["TABLE"]

COMMANDS = {
    "compare": "compare:compare",
    "bench train": "bench_train:bench_train",
    "bench decode": "bench_decode:bench_decode",
    "bench session": "bench_session:bench_session",
    "bench serve": "bench_serve:bench_serve",
    "bench service": "bench_service:bench_service",
    "bench start": "bench_start:bench_start",
    "bench attention": "bench_attention:bench_attention",
    "bench jobs": "bench_jobs:bench_jobs",
    "bench modes": "bench_modes:bench_modes",
    "bench exact": "bench_modes:bench_exact",
}
GROUPS = {"bench": "Measure speed, quality and exactness side by side."}
TABLE = ("outrider_lab.cli", COMMANDS, GROUPS)
"""The package of the modules, the command words, and the help of each group."""
