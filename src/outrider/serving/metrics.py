"""Prometheus metrics, without user data and keys.

Counters of the engine are read when `/metrics` is requested.
"""

from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.types import Scope

from outrider.serving.engine import Engine
from outrider.serving.log import route_of

router = APIRouter(tags=["operation"])

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Metrics of one app."""

    def __init__(self, engine: Engine) -> None:
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

    def record(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request; unknown routes are counted together."""
        route = route_of(scope)
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)


class _Models(Collector):
    """Counters of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of every model."""
        registry = self._engine.registry
        yield CounterMetricFamily(
            "outrider_model_loads", "Models loaded since the start.", value=registry.loads
        )
        up = GaugeMetricFamily("outrider_model_loaded", "Whether it is loaded.", labels=["model"])
        size = GaugeMetricFamily("outrider_model_bytes", "Weights on disk.", labels=["model"])
        for name, spec in registry.specs.items():
            up.add_metric([name], name in registry.loaded)
            size.add_metric([name], spec.weights)
        yield from (up, size)
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
        families: dict[str, Metric] = {
            name: GaugeMetricFamily(name, text, labels=["model"]) for name, text in gauges.items()
        }
        families |= {
            name: CounterMetricFamily(name, text, labels=["model"])
            for name, text in counters.items()
        }
        for model, loaded in list(registry.loaded.items()):
            thread, admission, stats = loaded.thread, loaded.admission, loaded.thread.stats
            values = (
                *(len(admission), admission.tokens, thread.running, admission.speed),
                *(thread.rounds, thread.pieces, thread.tokens, thread.cancelled),
                *(stats.rounds, stats.tokens, stats.plain_rows),
            )
            for family, value in zip(families.values(), values, strict=True):
                assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
                family.add_metric([model], value)
        yield from families.values()


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return the metrics in the text format of Prometheus."""
    app_metrics: Metrics = request.app.state.metrics
    return Response(generate_latest(app_metrics.registry), media_type=CONTENT_TYPE_LATEST)
