"""A run whose processes Ray Train places: on this machine, or on the cluster of `RAY_ADDRESS`.

Every process does what it would do under torchrun. When one of them dies, Ray starts all again, and
the run goes on from its last checkpoint. The folders of the run must be the same for all.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.data.prepare import prepare
from outrider.errors import ConfigError, OutriderError, ResourceError
from outrider.run_config import RunConfig
from outrider.runtime.cluster import running_ray
from outrider.torch.training.build import run_task
from outrider.torch.training.check import check_run
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.run import train_run

__all__ = ["train_on_ray"]

RESTARTS = 3
"""How often all processes are started again because one of them died."""


def train_on_ray(config: RunConfig, processes: int, *, restart: bool = False) -> Path:
    """Train a run on so many processes and return its model folder; it reports on stderr."""
    folder = RunFolder(Path(config.folder).resolve())
    if restart:  # not by the processes, which may be started several times
        with folder.locked():
            folder.clear()
    # What is wrong with config or data is said here, and not by processes that are started again.
    check_run(config, processes=processes)
    prepare(config.data, task=run_task(config), progress=sys.stderr.isatty())
    asked = {"config": config.model_dump(mode="json"), "cwd": str(Path.cwd())}
    notes = folder.path / "ray"  # what Ray Train keeps for itself
    with running_ray("--ray", log_to_driver=True, num_cpus=processes) as ray:
        from ray.train import FailureConfig, ScalingConfig
        from ray.train import RunConfig as RayRun
        from ray.train.torch import TorchTrainer

        shutil.rmtree(notes, ignore_errors=True)
        gpu = config.train.device != "cpu" and _enough_gpus(ray, processes)
        trainer = TorchTrainer(
            _train,
            train_loop_config=asked,
            scaling_config=ScalingConfig(num_workers=processes, use_gpu=gpu),
            run_config=RayRun(
                name="train",
                storage_path=str(notes),
                failure_config=FailureConfig(max_failures=RESTARTS),
            ),
        )
        try:
            trainer.fit()
        except Exception as error:
            raise _explained(error) from None
        finally:
            shutil.rmtree(notes, ignore_errors=True)
    return folder.model


def _train(asked: dict[str, Any]) -> None:
    """Train in one of the processes, which torch.distributed joins already."""
    os.chdir(asked["cwd"])
    main = os.environ["RANK"] == "0"
    config = RunConfig.model_validate(asked["config"])
    train_run(config, console=Console(stderr=True, quiet=not main))


def _enough_gpus(ray: Any, processes: int) -> bool:
    found = int(ray.cluster_resources().get("GPU", 0))
    if 0 < found < processes:
        raise ConfigError("--ray", f"got {processes} processes, but Ray has {found} GPUs")
    return found > 0


def _explained(error: BaseException) -> BaseException:
    """Find what one of our processes raised in what Ray makes of it."""
    causes = [error, *getattr(error, "worker_failures", {}).values()]
    while causes:
        cause = causes.pop()
        if isinstance(cause, OutriderError):
            return cause
        inner = (getattr(cause, name, None) for name in ("cause", "__cause__", "_base_exc"))
        causes += [one for one in inner if isinstance(one, BaseException)]
    return ResourceError(f"a process of Ray Train ended {RESTARTS + 1} times: {error}")
