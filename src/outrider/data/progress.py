"""Progress bars on stderr, one for each stage."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

Advance = Callable[[int], None]


class _Speed(ProgressColumn):
    """Rows per second."""

    def render(self, task: Task) -> Text:
        seconds = task.finished_time or task.elapsed
        speed = task.completed / seconds if seconds else 0
        return Text(f"{speed:>9,.0f} rows/s" if speed else "", style="progress.data.speed")


class _Rows(ProgressColumn):
    """Finished rows of the total."""

    def render(self, task: Task) -> Text:
        total = "" if task.total is None else f" of {task.total:,.0f}"
        return Text(f"{task.completed:>12,.0f}{total} rows")


class Stages:
    """Starts a bar for each stage of a preparation."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def start(self, name: str, total: int | None = None) -> Advance:
        """Add a bar and return the function that advances it by some rows."""
        task = self._progress.add_task(name, total=total)
        return lambda rows: self._progress.advance(task, rows)

    def finish(self) -> None:
        """Stop the newest bar where it is."""
        task = self._progress.tasks[-1]
        self._progress.update(task.id, total=task.completed)


@contextmanager
def show_stages(visible: bool) -> Iterator[Stages]:
    """Show progress bars on stderr."""
    columns = (
        TextColumn("{task.description:<16}", markup=False),
        BarColumn(),
        _Rows(),
        _Speed(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=Console(stderr=True, markup=False), disable=not visible
    ) as progress:
        yield Stages(progress)
