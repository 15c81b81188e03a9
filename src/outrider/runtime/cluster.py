"""Ray on this machine, or on the cluster at `RAY_ADDRESS`.

A local Ray listens on the loopback address only, without dashboard and usage statistics, and is
stopped at the end.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outrider.errors import MissingExtraError, ResourceError


@contextmanager
def running_ray(purpose: str, *, log_to_driver: bool = False, **alone: Any) -> Iterator[Any]:
    """Start Ray, or join it, for as long as the block runs.

    Args:
        purpose: The feature that needs Ray, for error messages.
        log_to_driver: Show the output of other processes on stderr.
        **alone: Options of `ray.init` when Ray is started, not joined.
    """
    joined = bool(os.environ.get("RAY_ADDRESS"))
    # Read when Ray is imported: without a cluster it uses the loopback address.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "01"[joined])
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("Ray", "ray", purpose) from error
    started = {} if joined else {"include_dashboard": False, **alone}
    try:
        ray.init(logging_level="ERROR", log_to_driver=log_to_driver, **started)
    except Exception as error:  # Ray raises many classes here
        raise ResourceError(f"Ray could not be started or joined: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
