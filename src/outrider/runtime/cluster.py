"""Ray, on this machine alone or on the cluster that `RAY_ADDRESS` names.

A Ray of this machine alone listens at no address that others reach, shows no dashboard, tells
nobody that it runs, and is stopped in the end.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outrider.errors import MissingExtraError, ResourceError

__all__ = ["running_ray"]


@contextmanager
def running_ray(purpose: str, *, log_to_driver: bool = False, **alone: Any) -> Iterator[Any]:
    """Start Ray, or join it, for as long as the block runs.

    Args:
        purpose: What needs it, as the user asked for it.
        log_to_driver: Show on stderr what other processes print.
        **alone: For a Ray that is started, not joined.
    """
    joined = bool(os.environ.get("RAY_ADDRESS"))
    # Read as Ray is imported: one that is no part of a cluster has the loopback address.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "01"[joined])
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("Ray", "ray", purpose) from None
    started = {} if joined else {"include_dashboard": False, **alone}
    try:
        ray.init(logging_level="ERROR", log_to_driver=log_to_driver, **started)
    except Exception as error:  # Ray has no class of its own for it
        raise ResourceError(f"Ray could not be started or joined: {error}") from None
    try:
        yield ray
    finally:
        ray.shutdown()
