from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.parser import text_string_to_metric_families

from streamgen.engine.client import EngineStats
from streamgen.observability import buckets
from streamgen.observability.histogram import Histogram
from streamgen.observability.metrics import Metrics
from streamgen.types import FinishReason

STATS = EngineStats(
    running=2,
    waiting=1,
    kv_cache_usage=0.25,
    prompt_tokens=70,
    generation_tokens=11,
    preemptions=3,
    prefix_cache_queries=100,
    prefix_cache_hits=30,
    steps=5,
)


def attached(**kwargs) -> Metrics:
    metrics = Metrics(**kwargs)
    metrics.attach(lambda: STATS, model_name="m", max_model_len=4096, cache={"block_size": 16})
    return metrics


@dataclass
class Scrape:
    samples: dict
    types: dict

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]


def scrape(metrics: Metrics) -> Scrape:
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(body.decode()))
    samples = [sample for family in families for sample in family.samples]
    keyed = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(keyed) == len(samples)
    return Scrape(keyed, {family.name: family.type for family in families})


def http(metrics: Metrics, **kwargs) -> None:
    values = {"handler": "/health", "method": "GET", "status": 200, "seconds": 0.1}
    metrics.http_request(**(values | {"request_bytes": 3, "response_bytes": 4} | kwargs))


def test_engine_figures_are_read_when_asked_and_under_both_names():
    got = scrape(attached())
    labels = {"model_name": "m", "engine": "0"}
    for prefix in ("vllm:", "streamgen:"):
        assert got.value(prefix + "num_requests_running", **labels) == 2
        assert got.value(prefix + "num_requests_waiting", **labels) == 1
        assert got.value(prefix + "kv_cache_usage_perc", **labels) == 0.25
        assert got.value(prefix + "prompt_tokens_total", **labels) == 100
        assert got.value(prefix + "prompt_tokens_cached_total", **labels) == 30
        assert got.value(prefix + "generation_tokens_total", **labels) == 11
        assert got.value(prefix + "num_preemptions_total", **labels) == 3
        assert got.value(prefix + "prefix_cache_queries_total", **labels) == 100
        assert got.value(prefix + "prefix_cache_hits_total", **labels) == 30
        assert got.value(prefix + "engine_sleep_state", sleep_state="awake", **labels) == 1
        assert got.value(prefix + "cache_config_info", engine="0", block_size="16") == 1
    assert got.value("vllm:gpu_cache_usage_perc", **labels) == 0.25


def test_public_boards_find_every_name():
    metrics = attached()
    http(metrics)
    got = scrape(metrics)
    histograms = """time_to_first_token_seconds inter_token_latency_seconds time_per_output_token_seconds
        request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
        request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds request_prompt_tokens
        request_generation_tokens request_max_num_generation_tokens request_params_n request_params_max_tokens
        iteration_tokens_total"""
    for name in histograms.split():
        assert got.types["vllm:" + name] == "histogram"
    assert got.types["vllm:request_success"] == got.types["vllm:corrupted_requests"] == "counter"
    assert got.value("http_requests_total", handler="/health", method="GET", status="2xx") == 1
    assert got.value("http_request_size_bytes_sum", handler="/health") == 3
    assert got.value("http_response_size_bytes_sum", handler="/health") == 4
    assert got.value("http_request_duration_seconds_count", handler="/health", method="GET") == 1
    assert "process_resident_memory_bytes" in got.types or "python_info" in got.types


def test_aliases_can_be_switched_off():
    assert not any(name.startswith("vllm:") for name in scrape(attached(vllm_aliases=False)).types)


def test_before_the_model_is_loaded_http_is_counted_already():
    metrics = Metrics()
    http(metrics)
    got = scrape(metrics)
    assert got.value("http_requests_total", handler="/health", method="GET", status="2xx") == 1
    assert "vllm:num_requests_running" not in got.types


def test_a_finished_request_is_in_every_histogram_that_it_reached():
    metrics = attached()
    metrics.first_token(0.03)
    metrics.step(100, 3)
    metrics.gaps([0.02, 0.03])
    metrics.request_finished(
        FinishReason.STOP,
        e2e=2.5,
        queue=0.5,
        prefill=0.5,
        decode=1.5,
        prompt_tokens=10,
        generation_tokens=8,
        longest=4,
        n=2,
    )
    metrics.request_finished("abort", e2e=0.1, prompt_tokens=10, generation_tokens=0, max_tokens=7)
    metrics.request_corrupted()
    got = scrape(metrics)
    labels = {"model_name": "m", "engine": "0"}

    def sum_and_count(name):
        return got.value(f"vllm:{name}_sum", **labels), got.value(f"vllm:{name}_count", **labels)

    assert sum_and_count("time_to_first_token_seconds") == (0.03, 1)
    assert sum_and_count("inter_token_latency_seconds") == (0.05, 2)
    assert sum_and_count("time_per_output_token_seconds") == (0.05, 2)
    assert sum_and_count("iteration_tokens_total") == (103, 1)
    assert sum_and_count("e2e_request_latency_seconds") == (2.6, 2)
    assert sum_and_count("request_queue_time_seconds") == (0.5, 1)
    assert sum_and_count("request_inference_time_seconds") == (2.0, 1)
    assert sum_and_count("request_time_per_output_token_seconds") == (0.5, 1)
    assert sum_and_count("request_generation_tokens") == (8, 2)
    assert sum_and_count("request_max_num_generation_tokens") == (4, 2)
    assert sum_and_count("request_params_n") == (3, 2)
    assert sum_and_count("request_params_max_tokens") == (7, 1)
    assert got.value("vllm:request_success_total", finished_reason="stop", **labels) == 1
    assert got.value("vllm:request_success_total", finished_reason="abort", **labels) == 1
    assert got.value("vllm:request_success_total", finished_reason="error", **labels) == 0
    assert got.value("vllm:corrupted_requests_total", **labels) == 1


def test_G2_two_apps_in_a_process_share_no_series():
    one, two = attached(), attached()
    http(one)
    assert one.registry is not two.registry
    assert ("http_requests_total" in {name for name, _ in scrape(one).samples}) is True
    assert ("http_requests_total" in {name for name, _ in scrape(two).samples}) is False


def test_G2_an_engine_that_is_started_again_takes_the_place_of_the_old_one():
    metrics = attached()
    metrics.attach(lambda: STATS, model_name="other", max_model_len=8192, cache={"block_size": 32})
    got = scrape(metrics)
    assert got.value("vllm:num_requests_running", model_name="other", engine="0") == 2
    assert ("vllm:num_requests_running", frozenset({("model_name", "m"), ("engine", "0")})) not in got.samples


@pytest.mark.parametrize("seconds", [200.0, 1799.0])
def test_G3_long_requests_are_told_apart(seconds):
    metrics = attached()
    metrics.request_finished(
        "stop", e2e=seconds, queue=0, prefill=0, decode=seconds, prompt_tokens=1, generation_tokens=9
    )
    http(metrics, seconds=seconds)
    got = scrape(metrics)
    for name, labels in (
        ("vllm:e2e_request_latency_seconds", {"model_name": "m", "engine": "0"}),
        ("vllm:request_decode_time_seconds", {"model_name": "m", "engine": "0"}),
        ("http_request_duration_seconds", {"handler": "/health", "method": "GET"}),
    ):
        bounds = sorted(
            float(dict(key)["le"])
            for sample, key in got.samples
            if sample == name + "_bucket" and set(labels.items()) <= key
        )
        above = next(bound for bound in bounds if bound >= seconds)
        assert above != float("inf")
        assert got.value(name + "_bucket", le=str(above), **labels) == 1
        assert bounds[-2] >= 1800


def test_G3_token_gaps_are_told_apart_by_the_millisecond():
    metrics = attached()
    metrics.gaps([0.0008, 0.002, 0.004, 0.009])
    got = scrape(metrics)
    counts = [
        got.value("vllm:inter_token_latency_seconds_bucket", le=le, model_name="m", engine="0")
        for le in ("0.001", "0.0025", "0.005", "0.01")
    ]
    assert counts == [1, 2, 3, 4]


def test_G3_token_counts_reach_the_models_length():
    assert buckets.token_counts(4096) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert buckets.token_counts(1) == (1,)
    assert buckets.token_counts(131_072)[-1] == 100_000


def test_G5_no_client_can_make_series():
    metrics = attached()
    for handler in ("/health", "other"):
        for method in ("GET", "other"):
            http(metrics, handler=handler, method=method)
    metrics.request_finished("other", e2e=1, prompt_tokens=1, generation_tokens=1)
    http(metrics, status=799)
    before = scrape(metrics)
    for i in range(10_000):
        http(metrics, handler=f"/v1/models/{i}", method=f"M{i}", status=1000 + i)
        metrics.request_finished(f"reason {i}", e2e=1, prompt_tokens=1, generation_tokens=1)
    after = scrape(metrics)
    assert len(after.samples) <= len(before.samples) + 1
    assert after.value("http_requests_total", handler="other", method="other", status="other") == 10_000
    assert after.value("streamgen:http_responses_total", code="other") == 10_001
    assert after.value("vllm:request_success_total", finished_reason="other", model_name="m", engine="0") == 10_001


def test_a_model_name_cannot_break_the_exposition():
    metrics = Metrics()
    name = 'a"b\\c\nd{x="y"} 1'
    metrics.attach(lambda: STATS, model_name=name, max_model_len=64)
    assert scrape(metrics).value("vllm:num_requests_running", model_name=name, engine="0") == 2


@given(st.lists(st.floats(0, 1e4)), st.lists(st.sampled_from([0.5, 1.0, 2.5, 10.0, 100.0]), min_size=1, unique=True))
def test_histogram_counts_as_prometheus_clients_does(values, bounds):
    theirs = PrometheusHistogram("x", "x", registry=None, buckets=sorted(bounds))
    ours, batched = Histogram(bounds), Histogram(bounds)
    for value in values:
        theirs.observe(value)
        ours.observe(value)
    batched.observe_many(values)
    samples = next(iter(theirs.collect())).samples
    expected = [(sample.labels["le"], sample.value) for sample in samples if sample.name == "x_bucket"]
    assert ours.cumulative() == batched.cumulative() == expected
    assert ours.count == batched.count == len(values)
    assert ours.sum == batched.sum == pytest.approx(sum(values))
