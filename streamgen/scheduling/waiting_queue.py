"""The order in which waiting requests are admitted."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamgen.config import SchedulingPolicy
    from streamgen.scheduling.request import Request


class WaitingQueue(Protocol):
    """A policy: whom to `pick` next, told by `charge` what each tenant has used."""

    def add(self, request: Request) -> None: ...
    def remove(self, request: Request) -> None: ...
    def pick(self) -> Request | None:
        """The request to admit next. It stays in the queue until it is removed."""

    def charge(self, tenant: str, tokens: int) -> None:
        """A tenant's requests computed so many tokens."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...


def rank(request: Request) -> tuple[int, int]:
    """Lower goes first: by priority, then by arrival, which a preempted request has kept."""
    return (request.priority, request.arrival)


class OrderedQueue:
    """Requests by priority and arrival. First come, first served is the case in which all priorities are equal."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=rank)

    def remove(self, request: Request) -> None:
        index = bisect_left(self._requests, rank(request), key=rank)
        assert self._requests[index] is request
        del self._requests[index]

    def pick(self) -> Request | None:
        return self._requests[0] if self._requests else None

    def charge(self, tenant: str, tokens: int) -> None:
        """Neither policy looks at what a tenant has used."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


def create_queue(policy: SchedulingPolicy) -> WaitingQueue:
    assert policy in ("fcfs", "priority")
    return OrderedQueue()
