"""`outrider train`."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.console import StoppedError, new_console

if TYPE_CHECKING:
    from outrider.run_config import RunConfig


def train(
    config: Annotated[Path, typer.Argument(help="Run config (YAML).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides, e.g. train.steps=500 data.root=corpora.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard this run's checkpoints and start over.")
    ] = False,
    ray: Annotated[
        int | None,
        typer.Option(min=1, help="Train on so many processes with Ray Train."),
    ] = None,
) -> None:
    """Train a model; resume from the last checkpoint if the run was interrupted.

    Prepares the data first if necessary. Under torchrun, trains on all its processes; with --ray on
    processes of this machine or of the cluster at RAY_ADDRESS.
    """
    main = os.environ.get("RANK", "0") == "0"
    if "RANK" in os.environ:  # torchrun; suppress PyTorch's warning about an intended DDP option
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    from outrider.config import load_config
    from outrider.run_config import RunConfig

    run = load_config(RunConfig, config, overrides or [])
    try:
        folder = _train(run, ray, restart=restart, quiet=not main)
    except KeyboardInterrupt:
        if not main:
            raise
        options = [] if ray is None else ["--ray", str(ray)]
        command = shlex.join(["outrider", "train", *options, str(config), *(overrides or [])])
        if "RANK" in os.environ:
            command += " (under torchrun, as before)"
        raise StoppedError(f"stopped; {_saved(run)}: {command}") from None
    if main:
        typer.echo(str(folder))


def _train(run: "RunConfig", ray: int | None, *, restart: bool, quiet: bool) -> Path:
    if ray is not None:
        from outrider.torch.training.on_ray import train_on_ray

        return train_on_ray(run, ray, restart=restart)
    from outrider.torch.training.run import train_run

    return train_run(run, restart=restart, console=new_console(stderr=True, quiet=quiet))


def _saved(run: "RunConfig") -> str:
    from outrider.torch.training.folder import RunFolder

    saved = RunFolder(Path(run.folder)).checkpoints.latest()
    if saved is None:
        return f"no step is saved yet (train.save_every: {run.train.save_every}); start again with"
    return f"step {saved.progress.step} is saved; this command continues from there"
