"""What Prometheus is told: vLLM's metrics under `streamgen:` and, by default, also under `vllm:`; and HTTP's.

    metrics = Metrics()                                    # one an app; its registry is its own
    metrics.attach(engine.stats, model_name="m", max_model_len=4096, cache={"block_size": "16"})
    metrics.first_token(seconds)                           # a request's first token is out
    metrics.step(prompt_tokens, generation_tokens)         # once a step
    metrics.gaps(seconds)                                  # one for each token that had one before it
    metrics.request_finished("stop", e2e=…, queue=…, …)    # once a request
    metrics.request_corrupted()
    metrics.http_request(handler="/v1/models", method="GET", status=200, seconds=…, request_bytes=…, response_bytes=…)
    body, content_type = metrics.render()

All of it happens on the event loop, so that nothing is locked. Token totals, queue lengths and cache figures are not
counted here at all: they are read from the engine's own statistics when Prometheus asks. No label's value comes
from a request: what is not in a closed set is counted as "other".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from streamgen.observability import buckets
from streamgen.observability.histogram import Histogram
from streamgen.observability.http_metrics import HANDLERS, OTHER, HttpMetrics

OWN, VLLM = "streamgen:", "vllm:"
FINISH_REASONS = ("stop", "length", "abort", "error", OTHER)
SLEEP_STATES = {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}

_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...] | None]] = {
    "time_to_first_token_seconds": ("Time from arrival to the first token.", buckets.FIRST_TOKEN),
    "inter_token_latency_seconds": ("Time between the tokens of a sequence.", buckets.TOKEN_GAP),
    "request_time_per_output_token_seconds": ("A request's mean time a token, after the first.", buckets.TOKEN_GAP),
    "e2e_request_latency_seconds": ("Time from arrival to the last token.", buckets.REQUEST),
    "request_queue_time_seconds": ("Time a request waited.", buckets.REQUEST),
    "request_prefill_time_seconds": ("Time from the end of waiting to the first token.", buckets.REQUEST),
    "request_decode_time_seconds": ("Time from the first token to the last.", buckets.REQUEST),
    "request_inference_time_seconds": ("Time from the end of waiting to the last token.", buckets.REQUEST),
    "iteration_tokens_total": ("Tokens computed in a step.", buckets.STEP_TOKENS),
    "request_params_n": ("Answers asked for at once.", buckets.SEQUENCES),
    "request_prompt_tokens": ("Tokens of a prompt.", None),
    "request_generation_tokens": ("Tokens that a request generated.", None),
    "request_max_num_generation_tokens": ("Tokens of a request's longest answer.", None),
    "request_params_max_tokens": ("Most tokens that a request asked for.", None),
}
"""Help and bounds of each histogram; None for token counts, whose bounds end at the model's length."""

_NEWER_NAMES = {
    "time_per_output_token_seconds": "inter_token_latency_seconds",
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
}
"""What older boards call the same thing; under `vllm:` only."""

_LABELS = ("model_name", "engine")
_T = TypeVar("_T")


class Statistics(Protocol):
    """What is read of an engine when Prometheus asks: `EngineStats` has it."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_cache_usage(self) -> float: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def generation_tokens(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def prefix_cache_queries(self) -> int: ...
    @property
    def prefix_cache_hits(self) -> int: ...


class Metrics(Collector):
    """The instruments of one app. Owned by the event loop.

    `registry` is a new one unless given: two apps in a process share nothing. `handlers` are the values that the label
    of that name may have.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        model_name: str = "",
        max_model_len: int = 131_072,
        vllm_aliases: bool = True,
        handlers: Collection[str] = HANDLERS,
    ) -> None:
        self._prefixes = (OWN, VLLM) if vllm_aliases else (OWN,)
        self._labels = (model_name, "0")
        self._statistics: Callable[[], Statistics] | None = None
        self._cache: dict[str, str] = {}
        self._finished = dict.fromkeys(FINISH_REASONS, 0)
        self._corrupted = 0
        self._histograms = {
            name: Histogram(buckets.token_counts(max_model_len) if bounds is None else bounds)
            for name, (_, bounds) in _HISTOGRAMS.items()
        }
        self._first_token = self._histograms["time_to_first_token_seconds"]
        self._gap = self._histograms["inter_token_latency_seconds"]
        self._step_tokens = self._histograms["iteration_tokens_total"]
        self._http = HttpMetrics(handlers)
        self.registry = CollectorRegistry() if registry is None else registry
        self.registry.register(self)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    def attach(
        self,
        statistics: Callable[[], Statistics],
        *,
        model_name: str,
        max_model_len: int,
        cache: Mapping[str, object] | None = None,
    ) -> None:
        """The model is loaded. `cache` describes the KV cache, as labels of `cache_config_info`."""
        self._statistics = statistics
        self._labels = (model_name, "0")
        self._cache = {name: str(value) for name, value in (cache or {}).items()}
        for name, (_, bounds) in _HISTOGRAMS.items():
            if bounds is None:
                self._histograms[name] = Histogram(buckets.token_counts(max_model_len))

    def first_token(self, seconds: float) -> None:
        """A request's first token is out, `seconds` after its arrival."""
        self._first_token.observe(seconds)

    def step(self, num_prompt_tokens: int, num_generation_tokens: int) -> None:
        """A step is done."""
        self._step_tokens.observe(num_prompt_tokens + num_generation_tokens)

    def gaps(self, gaps: Iterable[float]) -> None:
        """Seconds since the token before, one for each token that has one before it."""
        self._gap.observe_many(gaps)

    def request_finished(
        self,
        reason: str,
        *,
        e2e: float,
        queue: float | None = None,
        prefill: float | None = None,
        decode: float | None = None,
        prompt_tokens: int,
        generation_tokens: int,
        longest: int | None = None,
        n: int = 1,
        max_tokens: int | None = None,
    ) -> None:
        """A request is over. Times are in seconds; None for a phase that it did not reach.

        `generation_tokens` are those of all its `n` sequences together, `longest` those of its longest one.
        """
        self._finished[reason if reason in self._finished else OTHER] += 1
        longest = generation_tokens if longest is None else longest
        inference = None if prefill is None else prefill + (decode or 0.0)
        per_token = decode / (longest - 1) if decode is not None and longest > 1 else None
        for name, value in (
            ("e2e_request_latency_seconds", e2e),
            ("request_queue_time_seconds", queue),
            ("request_prefill_time_seconds", prefill),
            ("request_decode_time_seconds", decode),
            ("request_inference_time_seconds", inference),
            ("request_time_per_output_token_seconds", per_token),
            ("request_prompt_tokens", prompt_tokens),
            ("request_generation_tokens", generation_tokens),
            ("request_max_num_generation_tokens", longest),
            ("request_params_n", n),
            ("request_params_max_tokens", max_tokens),
        ):
            if value is not None:
                self._histograms[name].observe(value)

    def request_corrupted(self) -> None:
        """A request failed because its logits were not finite."""
        self._corrupted += 1

    def http_request(
        self, *, handler: str, method: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        """An HTTP exchange is over."""
        self._http.observe(handler, method, status, seconds, request_bytes, response_bytes)

    def render(self) -> tuple[bytes, str]:
        """The exposition in Prometheus's text format, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    def describe(self) -> list[Metric]:
        """Nothing: the registry then does not collect at registration, before there is an engine."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._http.collect()
        now = None if self._statistics is None else self._statistics()
        for prefix in self._prefixes:
            if now is not None:
                yield from self._engine_families(prefix, now)
            yield from self._request_families(prefix)

    def _engine_families(self, prefix: str, now: Statistics) -> Iterator[Metric]:
        gauges = {
            "num_requests_running": ("Requests in the running batch.", now.running),
            "num_requests_waiting": ("Requests that wait.", now.waiting),
            "kv_cache_usage_perc": ("Part of the KV cache in use, 0 to 1.", now.kv_cache_usage),
        }
        counters = {
            "prompt_tokens": ("Prompt tokens, those from the prefix cache included.", _all_prompt_tokens(now)),
            "prompt_tokens_cached": ("Prompt tokens from the prefix cache.", now.prefix_cache_hits),
            "generation_tokens": ("Tokens generated.", now.generation_tokens),
            "num_preemptions": ("Preemptions.", now.preemptions),
            "prefix_cache_queries": ("Tokens looked up in the prefix cache.", now.prefix_cache_queries),
            "prefix_cache_hits": ("Tokens found in the prefix cache.", now.prefix_cache_hits),
        }
        for name, (text, value) in self._with_older_names(prefix, gauges):
            gauge = GaugeMetricFamily(prefix + name, text, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(prefix + name, text, labels=_LABELS)
            counter.add_metric(self._labels, value)
            yield counter
        sleep = GaugeMetricFamily(
            prefix + "engine_sleep_state", "1 for the state that the engine is in.", labels=(*_LABELS, "sleep_state")
        )
        for state, value in SLEEP_STATES.items():
            sleep.add_metric((*self._labels, state), value)
        yield sleep
        info = GaugeMetricFamily(
            prefix + "cache_config_info", "What the KV cache is like.", labels=("engine", *self._cache)
        )
        info.add_metric((self._labels[1], *self._cache.values()), 1)
        yield info

    def _request_families(self, prefix: str) -> Iterator[Metric]:
        finished = CounterMetricFamily(
            prefix + "request_success",
            "Requests that are over, by how they ended.",
            labels=(*_LABELS, "finished_reason"),
        )
        for reason, count in self._finished.items():
            finished.add_metric((*self._labels, reason), count)
        yield finished
        corrupted = CounterMetricFamily(
            prefix + "corrupted_requests", "Requests whose logits were not finite.", labels=_LABELS
        )
        corrupted.add_metric(self._labels, self._corrupted)
        yield corrupted
        for name, (text, _) in self._with_older_names(prefix, _HISTOGRAMS):
            histogram = self._histograms[_NEWER_NAMES.get(name, name)]
            family = HistogramMetricFamily(prefix + name, text, labels=_LABELS)
            family.add_metric(self._labels, histogram.cumulative(), histogram.sum)
            yield family

    @staticmethod
    def _with_older_names(prefix: str, families: Mapping[str, _T]) -> Iterator[tuple[str, _T]]:
        yield from families.items()
        if prefix == VLLM:
            for older, newer in _NEWER_NAMES.items():
                if newer in families:
                    yield older, families[newer]


def _all_prompt_tokens(statistics: Statistics) -> int:
    return statistics.prompt_tokens + statistics.prefix_cache_hits
