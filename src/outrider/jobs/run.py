"""A job from its first missing shard to its last."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from outrider.data.progress import show_stages
from outrider.errors import DataError
from outrider.jobs.folder import JobFolder
from outrider.jobs.unit import Unit
from outrider.jobs.workers import Run

__all__ = ["finish_units"]


def finish_units(
    folder: JobFolder,
    units: Sequence[Unit],
    workers: AbstractContextManager[Run],
    *,
    damaged: Mapping[str, str],
    stage: str,
    progress: bool,
) -> None:
    """Let workers do what is missing.

    What cannot be read is set aside, the rest goes on, and all that was set aside is an error in
    the end.

    Args:
        folder: Where finished shards lie.
        units: All of the job.
        workers: Entered only if something is missing.
        damaged: What is wrong with which files of the input.
        stage: Name of the progress bar.
        progress: Whether to show it.
    """
    folder.begin(units)
    missing = folder.missing(units)
    faults = {unit: damaged[unit.input] for unit in missing if unit.input in damaged}
    for unit, fault in faults.items():
        folder.set_aside(unit, fault)
    whole = [unit for unit in missing if unit not in faults]
    if whole:
        with show_stages(progress) as stages, workers as run:
            advance = stages.start(stage, sum(unit.rows for unit in whole))
            for outcome in run(whole, advance):
                folder.store.check_alone()
                if outcome.fault:
                    folder.set_aside(outcome.unit, outcome.fault)
                    faults[outcome.unit] = outcome.fault
    if faults:
        names = ", ".join(sorted({unit.input for unit in faults}))
        raise DataError(
            f"{next(iter(faults.values()))}; set aside {len(faults)} of {len(units)} shards "
            f"(of {names}), the others are kept in {folder.store}: mend the input and run again"
        )
