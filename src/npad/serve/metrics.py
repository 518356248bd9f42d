"""Counters in the text format of Prometheus."""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from npad.serve.models import ServedModel

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # upper bounds of a histogram's buckets
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What the server has done since it started."""

    def __init__(self) -> None:
        self.in_progress = 0
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()  # by route and status
        self._buckets: dict[str, list[int]] = {}  # by route, not cumulative
        self._seconds: Counter[str] = Counter()  # by route
        self._calls: Counter[tuple[str, str]] = Counter()  # by model and kind

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        with self._lock:
            self._requests[route, status] += 1
            buckets = self._buckets.setdefault(route, [0] * (len(SECONDS) + 1))
            buckets[bisect.bisect_left(SECONDS, seconds)] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]

    def called(self, model: str, search: int, rescoring: int) -> None:
        """Count the model calls of an answer."""
        with self._lock:
            self._calls[model, "search"] += search
            self._calls[model, "rescoring"] += rescoring

    def render(self, models: Iterable[ServedModel]) -> str:
        """Return all counters as text."""
        with self._lock:
            return "\n".join([*self._lines(list(models)), ""])

    def _lines(self, models: list[ServedModel]) -> Iterator[str]:
        yield from _head("npad_requests_total", "counter", "Answers by route and status.")
        for (route, status), count in sorted(self._requests.items()):
            yield f'npad_requests_total{{route="{route}",status="{status}"}} {count}'
        yield from _head("npad_requests_in_progress", "gauge", "Requests being answered.")
        yield f"npad_requests_in_progress {self.in_progress}"
        name = "npad_request_seconds"
        yield from _head(name, "histogram", "Seconds from a request to its answer, by route.")
        for route, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*map(str, SECONDS), "+Inf"), buckets, strict=True):
                total += count
                yield f'{name}_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'{name}_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'{name}_count{{route="{route}"}} {total}'
        yield from _head("npad_model_calls_total", "counter", "Model calls by model and kind.")
        for (model, kind), count in sorted(self._calls.items()):
            yield f'npad_model_calls_total{{model="{_escaped(model)}",kind="{kind}"}} {count}'
        yield from _head("npad_queue_length", "gauge", "Requests that wait for a model.")
        for served in models:
            yield f'npad_queue_length{{model="{_escaped(served.id)}"}} {len(served.worker)}'
        yield from _head("npad_batches_total", "counter", "Batches that a model has run.")
        for served in models:
            count = served.worker.batches
            yield f'npad_batches_total{{model="{_escaped(served.id)}"}} {count}'
        yield from _head("npad_batched_requests_total", "counter", "Requests in these batches.")
        for served in models:
            count = served.worker.batched
            yield f'npad_batched_requests_total{{model="{_escaped(served.id)}"}} {count}'


def _head(name: str, kind: str, help_: str) -> tuple[str, str]:
    return f"# HELP {name} {help_}", f"# TYPE {name} {kind}"


def _escaped(label: str) -> str:
    """Return a label's value as Prometheus quotes it."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
