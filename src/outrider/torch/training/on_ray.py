"""Train a run on Ray: on this machine, or on the cluster of `RAY_ADDRESS`.

Every process runs as under torchrun. If one of them dies, Ray restarts all, and the run resumes
from its last checkpoint. All processes must see the same folders.
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
from outrider.torch.training.check import check_run
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.kinds import kind_of
from outrider.torch.training.run import train_run

RESTARTS = 3
"""How often all processes are restarted after one has died."""


def train_on_ray(config: RunConfig, processes: int, *, restart: bool = False) -> Path:
    """Train a run on this many processes and return its model folder; reports on stderr."""
    folder = RunFolder(Path(config.folder).resolve())
    if restart:  # once, not at every restart of the processes
        with folder.locked():
            folder.clear()
    # Errors of config or data are raised here, not by processes that Ray would restart.
    check_run(config, processes=processes)
    prepare(config.data, task=kind_of(config).task, progress=sys.stderr.isatty())
    arguments = {"config": config.model_dump(mode="json"), "cwd": str(Path.cwd())}
    ray_folder = folder.path / "ray"  # Ray Train's own files
    with running_ray("--ray", log_to_driver=True, num_cpus=processes) as ray:
        from ray.train import FailureConfig, ScalingConfig
        from ray.train import RunConfig as RayRun
        from ray.train.torch import TorchTrainer

        shutil.rmtree(ray_folder, ignore_errors=True)
        gpu = config.train.device != "cpu" and _enough_gpus(ray, processes)
        trainer = TorchTrainer(
            _train,
            train_loop_config=arguments,
            scaling_config=ScalingConfig(num_workers=processes, use_gpu=gpu),
            run_config=RayRun(
                name="train",
                storage_path=str(ray_folder),
                failure_config=FailureConfig(max_failures=RESTARTS),
            ),
        )
        try:
            trainer.fit()
        except Exception as error:
            raise _find_cause(error) from error
        finally:
            shutil.rmtree(ray_folder, ignore_errors=True)
    return folder.model


def _train(arguments: dict[str, Any]) -> None:
    """Train in one process of Ray Train."""
    os.chdir(arguments["cwd"])
    main = os.environ["RANK"] == "0"
    config = RunConfig.model_validate(arguments["config"])
    train_run(config, console=Console(stderr=True, quiet=not main))


def _enough_gpus(ray: Any, processes: int) -> bool:
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if 0 < gpus < processes:
        raise ConfigError("--ray", f"got {processes} processes, but Ray has {gpus} GPUs")
    return gpus > 0


def _find_cause(error: BaseException) -> BaseException:
    """Return our error among the causes of Ray's error."""
    causes = [error, *getattr(error, "worker_failures", {}).values()]
    while causes:
        cause = causes.pop()
        if isinstance(cause, OutriderError):
            return cause
        inner = (getattr(cause, name, None) for name in ("cause", "__cause__", "_base_exc"))
        causes += [error for error in inner if isinstance(error, BaseException)]
    return ResourceError(f"a process of Ray Train ended {RESTARTS + 1} times: {error}")
