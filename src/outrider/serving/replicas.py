"""Replicas of the app with Ray Serve.

Each replica loads the models. Replicas are independent, and a response does not depend on the
replica. Ray routes requests, scales the number of replicas and replaces failed ones.
"""

import dataclasses
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from outrider.errors import ConfigError, MissingExtraError
from outrider.runtime.cluster import running_ray
from outrider.serving.limits import limit_malloc_threshold
from outrider.serving.registry import read_spec
from outrider.serving.run import Service

NAME = "outrider"
PURPOSE = "outrider serve --ray"
HEADROOM = 256 << 20
"""Bytes that a replica needs in addition to its weights."""
CHECK = 2.0
"""Seconds between two health checks of a replica."""


def run_replicas(
    service: Service,
    *,
    host: str,
    port: int,
    least: int,
    most: int,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Replicas run on the cluster at `RAY_ADDRESS`, or on a local Ray that is stopped at the end.

    Args:
        service: Configuration of each replica, by default with one thread.
        host: Address to listen at.
        port: Port to listen at.
        least: Fewest replicas.
        most: Most replicas.
        ready: Called when the first replicas are ready.
    """
    if least > most:
        raise ConfigError("--replicas", f"got {least}-{most}, expected the smaller number first")
    threads = service.load_options.get("threads") or 1
    load_options = {**service.load_options, "threads": threads}
    service = dataclasses.replace(service, load_options=load_options)
    with running_ray(PURPOSE):
        serve, stop = _ray_serve(), threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):  # after Ray, which installs its own handlers
            signal.signal(number, lambda *_: stop.set())
        try:
            serve.start(http_options={"host": host, "port": port})
            deployed = serve.deployment(**_options(service, least, most))
            app = serve.ingress(_builder(service))
            serve.run(deployed(app()).bind(), name=NAME, route_prefix="/")
            ready()
            stop.wait()
        finally:
            if os.environ.get("RAY_ADDRESS"):
                serve.delete(NAME)
            else:
                serve.shutdown()


def _options(service: Service, least: int, most: int) -> dict[str, Any]:
    """Return the number of replicas and the resources of each, for Ray."""
    weights = sum(read_spec(model).weights for model in service.models)
    return {
        "name": NAME,
        "max_ongoing_requests": service.limits.connections,
        "autoscaling_config": {
            "min_replicas": least,
            "max_replicas": most,
            "target_ongoing_requests": service.limits.rows,
        },
        "ray_actor_options": {
            "num_cpus": service.load_options["threads"],
            "memory": min(weights, service.memory or weights) + HEADROOM,
        },
        "health_check_period_s": CHECK,
        "graceful_shutdown_timeout_s": service.limits.seconds + 1,
    }


def _builder(service: Service) -> Callable[[], FastAPI]:
    """Return a plain function, as Ray requires."""

    def build() -> FastAPI:
        limit_malloc_threshold()
        return service.build()

    return build


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise MissingExtraError("Ray Serve", "ray", PURPOSE) from error
    return serve
