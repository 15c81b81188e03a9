"""The same app in many processes: Ray Serve starts replicas, watches them, and has as many as due.

Every replica holds the models, and knows nothing of the others: what a request is answered does not
depend on which one answers. Ray's proxy takes a request to one that is free; one that dies is
replaced.
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
from outrider.serving.limits import give_memory_back
from outrider.serving.registry import read_spec
from outrider.serving.run import Service

__all__ = ["NAME", "run_replicas"]

NAME = "outrider"
PURPOSE = "outrider serve --ray"
HEADROOM = 256 << 20
"""Bytes that a replica takes beside its weights."""
CHECK = 2.0
"""Seconds between two looks at a replica."""


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

    With `RAY_ADDRESS` set, replicas run on that cluster; otherwise Ray is started on this machine
    alone, and stopped in the end.

    Args:
        service: What each replica serves; `place` may say its threads, which are otherwise one.
        host: Address to listen at.
        port: Port to listen at.
        least: Replicas when nobody asks.
        most: Replicas under load.
        ready: Called once the first ones answer.
    """
    if least > most:
        raise ConfigError("--replicas", f"got {least}-{most}, expected the smaller number first")
    threads = service.place.get("threads") or 1
    service = dataclasses.replace(service, place={**service.place, "threads": threads})
    with running_ray(PURPOSE):
        serve, ends = _ray_serve(), threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):  # after Ray, which has handlers of its own
            signal.signal(number, lambda *_: ends.set())
        try:
            serve.start(http_options={"host": host, "port": port})
            deployed = serve.deployment(**_options(service, least, most))
            app = serve.ingress(_builder(service))
            serve.run(deployed(app()).bind(), name=NAME, route_prefix="/")
            ready()
            ends.wait()
        finally:
            if os.environ.get("RAY_ADDRESS"):
                serve.delete(NAME)
            else:
                serve.shutdown()


def _options(service: Service, least: int, most: int) -> dict[str, Any]:
    """Say how many replicas there are, and what each takes."""
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
            "num_cpus": service.place["threads"],
            "memory": min(weights, service.memory or weights) + HEADROOM,
        },
        "health_check_period_s": CHECK,
        "graceful_shutdown_timeout_s": service.limits.seconds + 1,
    }


def _builder(service: Service) -> Callable[[], FastAPI]:
    """Return a plain function, which is all that Ray takes for a builder."""

    def build() -> FastAPI:
        give_memory_back()
        return service.build()

    return build


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError:
        raise MissingExtraError("Ray Serve", "ray", PURPOSE) from None
    return serve
