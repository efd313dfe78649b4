"""HTTP exchanges by handler, method and status: names and groups are those of the usual FastAPI instrumentator."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from http import HTTPStatus

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric, SummaryMetricFamily

from streamgen.observability.buckets import HTTP
from streamgen.observability.histogram import Histogram

OTHER = "other"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
HANDLERS = frozenset(
    {
        *("/", "/static", "/health", "/ready", "/metrics", "/stats", "/tokenize", "/detokenize"),
        *("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{id}", "/v1/streams/{id}", "/v1/ws"),
    }
)
CODES = frozenset({*map(int, HTTPStatus), 499})
"""499 is nginx's, for a client that left before its answer."""


class HttpMetrics:
    """Counts and times of exchanges. All label values are from closed sets, so that no client can make series.

    `http_requests` groups statuses as 2xx, 4xx, …, as boards expect; `streamgen:http_responses` has the exact code.
    """

    def __init__(self, handlers: Collection[str] = HANDLERS) -> None:
        self._handlers = frozenset(handlers)
        self._requests: dict[tuple[str, str, str], int] = {}
        self._responses: dict[str, int] = {}
        self._seconds: dict[tuple[str, str], Histogram] = {}
        self._sizes: dict[str, list[int]] = {}

    def observe(
        self, handler: str, method: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        handler = handler if handler in self._handlers else OTHER
        method = method if method in METHODS else OTHER
        code, group = (str(status), f"{status // 100}xx") if status in CODES else (OTHER, OTHER)
        key = (handler, method, group)
        self._requests[key] = self._requests.get(key, 0) + 1
        self._responses[code] = self._responses.get(code, 0) + 1
        if (handler, method) not in self._seconds:
            self._seconds[handler, method] = Histogram(HTTP)
        self._seconds[handler, method].observe(seconds)
        sizes = self._sizes.setdefault(handler, [0, 0, 0])
        sizes[0] += 1
        sizes[1] += request_bytes
        sizes[2] += response_bytes

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("http_requests", "HTTP exchanges.", labels=("handler", "method", "status"))
        for key, count in self._requests.items():
            requests.add_metric(key, count)
        yield requests
        responses = CounterMetricFamily("streamgen:http_responses", "HTTP exchanges by exact status.", labels=("code",))
        for code, count in self._responses.items():
            responses.add_metric((code,), count)
        yield responses
        seconds = HistogramMetricFamily(
            "http_request_duration_seconds", "Time of HTTP exchanges, streams included.", labels=("handler", "method")
        )
        for labels, histogram in self._seconds.items():
            seconds.add_metric(labels, histogram.cumulative(), histogram.sum)
        yield seconds
        received = SummaryMetricFamily("http_request_size_bytes", "Bytes of request bodies.", labels=("handler",))
        sent = SummaryMetricFamily("http_response_size_bytes", "Bytes of response bodies.", labels=("handler",))
        for handler, (count, request_bytes, response_bytes) in self._sizes.items():
            received.add_metric((handler,), count, request_bytes)
            sent.add_metric((handler,), count, response_bytes)
        yield received
        yield sent
