"""A histogram that costs a bisection an observation, where prometheus_client's takes a lock and walks its buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString


class Histogram:
    """Counts of values by bucket, each up to and including its bound. Owned by one thread, the event loop's."""

    __slots__ = ("_bounds", "_counts", "_labels", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = sorted(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._labels = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def observe_many(self, values: Iterable[float]) -> None:
        bounds, counts = self._bounds, self._counts
        total = 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self.sum += total

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus's buckets: (upper bound, values up to it), the last one without bound."""
        return list(zip(self._labels, map(float, accumulate(self._counts)), strict=True))
