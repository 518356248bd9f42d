"""What the server counts, for Prometheus. The only place that imports prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from npad.serve.models import ServedModel

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # upper bounds of a histogram's buckets


class Metrics(Collector):
    """What the server has done since it started, what its models do, and what its process takes.

    Args:
        models: by id; their threads count for themselves.
    """

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self.models, self.in_progress = models, 0
        self._requests = Counter(
            "npad_requests", "Answers by route and status.", ["route", "status"], registry=None
        )
        self._seconds = Histogram(
            "npad_request_seconds",
            "Seconds from a request to its answer's end, by route.",
            ["route"],
            buckets=SECONDS,
            registry=None,
        )
        self._registry = CollectorRegistry()
        for collector in (self._requests, self._seconds, self, ProcessCollector(registry=None)):
            self._registry.register(collector)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def render(self) -> bytes:
        """Return everything in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the requests in progress, and what the models' threads have counted."""
        yield GaugeMetricFamily(
            "npad_requests_in_progress", "Requests being answered.", self.in_progress
        )
        by_model = ["model"]
        waiting = GaugeMetricFamily(
            "npad_queue_length", "Requests that wait for a model.", labels=by_model
        )
        batches = CounterMetricFamily(
            "npad_batches", "Batches that a model has run.", labels=by_model
        )
        batched = CounterMetricFamily(
            "npad_batched_requests", "Requests in these batches.", labels=by_model
        )
        calls = CounterMetricFamily(
            "npad_model_calls", "Model calls by model and kind.", labels=["model", "kind"]
        )
        for name, served in self.models.items():
            waiting.add_metric([name], len(served.thread))
            batches.add_metric([name], served.thread.batches)
            batched.add_metric([name], served.thread.batched)
            for kind, count in vars(served.thread.calls).items():
                calls.add_metric([name, kind], count)
        yield from (waiting, batches, batched, calls)
