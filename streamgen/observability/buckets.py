"""Bucket bounds of the histograms: those of vLLM, so that the quantiles of public dashboards mean the same here."""

from __future__ import annotations

FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""Seconds from a request's arrival to its first token."""

TOKEN_GAP = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
"""Seconds between tokens."""

REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Seconds of a whole request, and of each of its phases."""

HTTP = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 480.0, 1920.0)
"""Seconds of an HTTP exchange: a health check takes milliseconds, a stream may take half an hour."""

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens in one step."""

SEQUENCES = (1, 2, 5, 10, 20)
"""Answers asked for at once."""


def token_counts(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, … up to the model's length."""
    counts: list[int] = []
    magnitude = 1
    while True:
        for digit in (1, 2, 5):
            if digit * magnitude > max_model_len:
                return tuple(counts)
            counts.append(digit * magnitude)
        magnitude *= 10
