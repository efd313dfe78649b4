"""How much is kept for readers that may come back, and whose turn it is to go when that is too much. Pure.

The bound is for all tenants together. Whoever keeps the most makes room, which is always one that has more than an
equal share: what others keep within theirs is safe from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K")


@dataclass(slots=True)
class _Tenant(Generic[K]):
    num_bytes: int = 0
    sizes: dict[K, int] = field(default_factory=dict)
    """By key, the oldest first."""


class Shares(Generic[K]):
    """The books of one store, which says what it adds, removes, and how that grows. Owned by the store."""

    def __init__(self, *, max_items: int, max_bytes: int) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._owners: dict[K, str] = {}
        self._tenants: dict[str, _Tenant[K]] = {}

    def add(self, key: K, tenant: str, num_bytes: int) -> None:
        assert key not in self._owners
        self._owners[key] = tenant
        self._tenants.setdefault(tenant, _Tenant()).sizes[key] = 0
        self.grow(key, num_bytes)

    def grow(self, key: K, by: int) -> None:
        """`by` may be negative: a full buffer drops more than it takes."""
        tenant = self._tenants[self._owners[key]]
        tenant.sizes[key] += by
        tenant.num_bytes += by
        self.num_bytes += by

    def remove(self, key: K) -> None:
        self.grow(key, -self._tenants[self._owners[key]].sizes[key])
        owner = self._owners.pop(key)
        del self._tenants[owner].sizes[key]
        if not self._tenants[owner].sizes:
            del self._tenants[owner]

    def to_make_room(self, cause: K) -> list[K]:
        """What may go, the oldest first, one of which must; empty if there is room. Of equals, the tenant of `cause`
        makes room: it is the one that wants it.
        """
        by_bytes = self.num_bytes > self.max_bytes
        if not by_bytes and len(self._owners) <= self.max_items:
            return []
        tenant = self._owners.get(cause)
        largest = max(
            self._tenants.items(),
            key=lambda item: (item[1].num_bytes if by_bytes else len(item[1].sizes), item[0] == tenant),
        )[1]
        return list(largest.sizes)

    def check(self) -> None:
        """The invariants: sums add up."""
        assert self.num_bytes == sum(tenant.num_bytes for tenant in self._tenants.values())
        assert all(tenant.num_bytes == sum(tenant.sizes.values()) for tenant in self._tenants.values())
        assert all(tenant.sizes for tenant in self._tenants.values())
        assert sum(len(tenant.sizes) for tenant in self._tenants.values()) == len(self._owners)
