"""Resumable requests, by the session and id that created them, bounded in time, number and bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from streamgen.errors import InvalidRequestError, NotFoundError, ReplayGoneError
from streamgen.server.kept_shares import Shares
from streamgen.server.ws_relay import Relay

Key: TypeAlias = tuple[str, str]
"""(session, id)"""


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater: TypeAlias = Callable[[float, Callable[[], None]], Timer]


@dataclass(slots=True)
class _Entry:
    relay: Relay
    tenant: str
    timer: Timer | None = None
    """Runs while nobody reads the request, or once it has ended."""


class ResumeStore:
    """Owned by the event loop. A request stays for `grace` seconds after its reader went or its last frame was sent."""

    def __init__(self, *, call_later: CallLater, grace: float, max_requests: int, max_bytes: int) -> None:
        self._call_later = call_later
        self._grace = grace
        self.shares: Shares[Key] = Shares(max_items=max_requests, max_bytes=max_bytes)
        self._entries: dict[Key, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: Key, relay: Relay, tenant: str) -> None:
        """Keep a request that begins. An ended one of the same key makes room for it."""
        self._discard(key)
        assert relay.replay is not None
        self._entries[key] = _Entry(relay, tenant)
        self.shares.add(key, tenant, relay.replay.num_bytes)
        relay.on_growth = partial(self._grown, key)
        self._make_room(key)

    def claim(self, key: Key, tenant: str, after: int) -> Relay:
        """The request, for a new reader that has its frames up to `after`.

        Raises NotFoundError, also for another tenant's request: whether it exists is none of theirs to know.
        Raises ReplayGoneError if frames behind `after` have been dropped; it can then never be resumed and is aborted.
        """
        entry = self._entries.get(key)
        if entry is None or entry.tenant != tenant:
            raise NotFoundError("There is no such request to resume, or it was kept no longer.", "id")
        replay = entry.relay.replay
        assert replay is not None
        if after > replay.last:
            raise InvalidRequestError(f"after is {after}, but the last frame so far is {replay.last}.", "after")
        if after + 1 < replay.first:
            if entry.relay.sink is None:
                self._discard(key)
            raise ReplayGoneError(f"Frames {after + 1} to {replay.first - 1} are no longer kept.", "after")
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        return entry.relay

    def release(self, key: Key) -> bool:
        """Nobody reads the request any more, or it has ended: its time begins to run. False if it is kept no longer."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        if entry.timer is not None:
            entry.timer.cancel()
        entry.timer = self._call_later(self._grace, lambda: self._discard(key))
        return True

    def clear(self) -> None:
        """Abort and forget everything."""
        for key in list(self._entries):
            self._discard(key)

    def _discard(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        if entry.timer is not None:
            entry.timer.cancel()
        self.shares.remove(key)
        entry.relay.forget()

    def _grown(self, key: Key, by: int) -> None:
        self.shares.grow(key, by)
        self._make_room(key)

    def _make_room(self, cause: Key) -> None:
        """Drop, of whose turn it is, the oldest of those that have ended, then of those without a reader, then of the
        others. One that is read goes on; it can only be resumed no more.
        """
        while candidates := self.shares.to_make_room(cause):
            self._discard(min(candidates, key=self._worth))

    def _worth(self, key: Key) -> tuple[bool, bool]:
        entry = self._entries[key]
        return (not entry.relay.ended, entry.timer is None)
