"""Log of requests as lines of JSON, and Prometheus metrics; both without user data and keys."""

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.types import Scope

from outrider.serving.engine import Engine

requests = logging.getLogger("outrider.requests")

QUIET = ("/health", "/ready", "/metrics")
"""Paths that are polled; only their failures are logged."""


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        values: dict[str, Any] = {
            "time": f"{stamp}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
        }
        values |= getattr(record, "values", None) or {"event": record.getMessage()}
        return json.dumps(values, ensure_ascii=False)


def start_logging(stream: TextIO | None = None, level: str = "info") -> None:
    """Write the logs of Outrider and uvicorn as lines of JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines())
    for name in ("outrider", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


router = APIRouter(tags=["operation"])

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Log and metrics of one app."""

    def __init__(self, engine: Engine) -> None:
        self._refused, self._logged = 0, 0.0
        self.registry = CollectorRegistry()
        self.registry.register(_Models(engine))
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "outrider_requests", "Requests answered.", ["route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "outrider_request_seconds",
            "Time from a request's first byte to the answer's last.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        labels = ["api", "pair"]
        self._answered = Counter(
            "outrider_answered", "Answered requests.", labels, registry=self.registry
        )
        self._characters = Counter(
            "outrider_characters",
            "Characters of answered requests.",
            labels,
            registry=self.registry,
        )

    def record(self, scope: Scope, status: int, seconds: float) -> None:
        """Log and count a request by its route template; its path may contain user data."""
        route = getattr(scope.get("route"), "path", None) or scope.get("overloaded")
        path = route if isinstance(route, str) else "unknown"
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)
        facts = scope.get("facts", {})
        if status < 400 and "characters" in facts:
            labels = scope["route"].tags[0], facts.get("pair") or facts["model"]
            self._answered.labels(*labels).inc()
            self._characters.labels(*labels).inc(facts["characters"])
        if "overloaded" in scope:
            self._add_refusal()
        elif path not in QUIET or status >= 400:
            values = {
                "event": "request",
                "method": scope["method"][:10],
                "route": path,
                "status": status,
                "seconds": round(seconds, 6),
                **facts,
            }
            requests.info("", extra={"values": values})

    def _add_refusal(self) -> None:
        """Count requests refused by overload, and log the count once per second."""
        self._refused += 1
        if (now := time.monotonic()) - self._logged >= 1:
            values = {"event": "overloaded", "refused": self._refused}
            requests.warning("", extra={"values": values})
            self._refused, self._logged = 0, now


_Family = GaugeMetricFamily | CounterMetricFamily


class _Models(Collector):
    """Counters of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of every model."""
        registry = self._engine.registry
        loaded = {name: float(name in registry.loaded) for name in registry.specs}
        sizes = {name: spec.weights for name, spec in registry.specs.items()}
        per_model: tuple[tuple[type[_Family], str, str, Mapping[str, float]], ...] = (
            (GaugeMetricFamily, "loaded", "Whether it is loaded.", loaded),
            (GaugeMetricFamily, "bytes", "Weights on disk.", sizes),
            (CounterMetricFamily, "loads", "Loads since the start.", registry.loads),
            (CounterMetricFamily, "unloads", "Unloads since the start.", registry.unloads),
            (CounterMetricFamily, "load_seconds", "Time of the loads.", registry.load_seconds),
        )
        for kind, name, text, values in per_model:
            family = kind(f"outrider_model_{name}", text, labels=["model"])
            for model in registry.specs:
                family.add_metric([model], values[model])
            yield family
        gauges = {
            "outrider_queue_requests": "Admitted requests that are not finished.",
            "outrider_queue_tokens": "Tokens reserved by admitted requests.",
            "outrider_rows": "Pieces of texts that are being decoded.",
            "outrider_speed_tokens": "Reserved tokens processed per second.",
        }
        counters = {
            "outrider_rounds": "Decoding steps.",
            "outrider_pieces": "Pieces of texts decoded.",
            "outrider_tokens": "Tokens generated.",
            "outrider_cancelled": "Requests cancelled by disconnection or deadline.",
            "outrider_draft_rounds": "Draft blocks verified.",
            "outrider_draft_tokens": "Tokens of those blocks.",
            "outrider_plain_rows": "Pieces decoded without drafting.",
        }
        families: dict[str, _Family] = {
            name: GaugeMetricFamily(name, text, labels=["model"]) for name, text in gauges.items()
        }
        families |= {
            name: CounterMetricFamily(name, text, labels=["model"])
            for name, text in counters.items()
        }
        for model, one in list(registry.loaded.items()):
            thread, admission, stats = one.thread, one.admission, one.thread.stats
            counts = (
                *(len(admission), admission.tokens, thread.running, admission.speed),
                *(thread.rounds, thread.pieces, thread.tokens, thread.cancelled),
                *(stats.rounds, stats.tokens, stats.plain_rows),
            )
            for family, value in zip(families.values(), counts, strict=True):
                family.add_metric([model], value)
        yield from families.values()


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return the metrics in the text format of Prometheus."""
    app_metrics: Metrics = request.app.state.metrics
    return Response(generate_latest(app_metrics.registry), media_type=CONTENT_TYPE_LATEST)
