"""What Prometheus is told: how much, how long, how full; never a word of a user, never a key.

`prometheus-client` has no dependencies of its own and knows the format, its escapes and histograms.
What the engine knows anyway is read when somebody asks for it, and costs nothing before.
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

__all__ = ["Metrics", "router"]

router = APIRouter(tags=["operation"])

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The figures of one app."""

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

    def note(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request; what is no route of ours is counted as one."""
        route = route_of(scope)
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)


class _Models(Collector):
    """What the engine knows, read when it is asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of every model."""
        shelf = self._engine.shelf
        yield CounterMetricFamily(
            "outrider_model_loads", "Models loaded since the start.", value=shelf.loads
        )
        up = GaugeMetricFamily("outrider_model_loaded", "Whether it is loaded.", labels=["model"])
        size = GaugeMetricFamily("outrider_model_bytes", "Weights on disk.", labels=["model"])
        for name, spec in shelf.specs.items():
            up.add_metric([name], name in shelf.loaded)
            size.add_metric([name], spec.weights)
        yield from (up, size)
        gauges = {
            "outrider_queue_requests": "Requests that were let in and are not done.",
            "outrider_queue_tokens": "Tokens that those may still take.",
            "outrider_rows": "Pieces of texts that are being decoded.",
            "outrider_speed_tokens": "Tokens a second, of those that requests reserve.",
        }
        counters = {
            "outrider_rounds": "Rounds of the session.",
            "outrider_pieces": "Pieces of texts decoded.",
            "outrider_tokens": "Tokens written.",
            "outrider_cancelled": "Requests whose clients left, or whose time was over.",
            "outrider_draft_rounds": "Blocks that were drafted and verified.",
            "outrider_draft_tokens": "Tokens that came of those.",
            "outrider_plain_rows": "Pieces decoded without drafting.",
        }
        found: dict[str, Metric] = {
            name: GaugeMetricFamily(name, text, labels=["model"]) for name, text in gauges.items()
        }
        found |= {
            name: CounterMetricFamily(name, text, labels=["model"])
            for name, text in counters.items()
        }
        for model, loaded in list(shelf.loaded.items()):
            driver, books, stats = loaded.driver, loaded.admission, loaded.driver.stats
            values = (
                *(len(books), books.tokens, driver.running, books.speed),
                *(driver.rounds, driver.pieces, driver.tokens, driver.cancelled),
                *(stats.rounds, stats.tokens, stats.plain_rows),
            )
            for family, value in zip(found.values(), values, strict=True):
                assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
                family.add_metric([model], value)
        yield from found.values()


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return the figures in the text format of Prometheus."""
    found: Metrics = request.app.state.metrics
    return Response(generate_latest(found.registry), media_type=CONTENT_TYPE_LATEST)
