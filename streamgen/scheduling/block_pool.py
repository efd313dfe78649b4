"""The KV pool's blocks: which are free, which are held, which may be found again by their content."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PADDING_BLOCK = 0
"""Padded rows write here. It belongs to nobody and is never handed out."""


class CachedContent(NamedTuple):
    """What a published block holds: `block_hash` names the whole prefix that ends with `token_ids`."""

    block_hash: bytes
    token_ids: tuple[int, ...]


class BlockPool:
    """Counts references to blocks and remembers the content of full ones.

    A block is always in exactly one state:

    - in use:   referenced by at least one request;
    - deferred: given back by everyone, but a launched step still touches it;
    - cached:   given back, its content published, to be found again or evicted, the least recently used first;
    - free:     none of these.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 2, "the padding block and at least one to use"
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._deferred_counts = [0] * num_blocks
        self._contents: list[CachedContent | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        # A stack: what was freed last is the likeliest to be still in the processor's caches.
        self._free = list(range(num_blocks - 1, PADDING_BLOCK, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self.num_deferred = 0

    @property
    def num_usable(self) -> int:
        """Blocks that requests can ever hold."""
        return self.num_blocks - 1

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out now."""
        return len(self._free) + len(self._cached)

    @property
    def num_in_use(self) -> int:
        return self.num_usable - self.num_available - self.num_deferred

    @property
    def usage(self) -> float:
        """Part of the pool that requests hold, 0 to 1."""
        return (self.num_in_use + self.num_deferred) / self.num_usable

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, evicting cached ones if no other is left. The caller has looked at `num_available`."""
        assert count <= self.num_available
        blocks = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                self._forget(block)
            self._ref_counts[block] = 1
            blocks.append(block)
        return blocks

    def find(self, block_hash: bytes, token_ids: tuple[int, ...]) -> int | None:
        """The block with this content, if it is still here.

        The tokens are compared as well: nobody gets another prompt's KV by a collision of hashes.
        """
        block = self._by_hash.get(block_hash)
        if block is None:
            return None
        content = self._contents[block]
        assert content is not None
        return block if content.token_ids == token_ids else None

    def is_idle(self, block: int) -> bool:
        """Whether nobody references the block, so that acquiring it takes one of those available."""
        return self._ref_counts[block] == 0 and self._deferred_counts[block] == 0

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks that `find` returned or that another request holds."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                if self._deferred_counts[block]:
                    self.num_deferred -= 1
                else:
                    del self._cached[block]
            self._ref_counts[block] += 1

    def release(self, blocks: Sequence[int], *, deferred: bool) -> None:
        """Give a reference to each block back.

        Args:
            blocks: in the order of their tokens; the last becomes the first to be evicted, since a prefix is useful
                without its tail and never the other way round.
            deferred: a launched step still touches them; `settle` must follow when it has come back.
        """
        for block in reversed(blocks):
            assert self._ref_counts[block] > 0, f"block {block} was given back twice"
            self._ref_counts[block] -= 1
            if deferred:
                self._deferred_counts[block] += 1
            if self._ref_counts[block] == 0:
                if self._deferred_counts[block]:
                    self.num_deferred += 1
                else:
                    self._retire(block)

    def settle(self, blocks: Sequence[int]) -> None:
        """The step that touched these deferred blocks has come back."""
        for block in reversed(blocks):
            assert self._deferred_counts[block] > 0
            self._deferred_counts[block] -= 1
            if self._ref_counts[block] == 0 and self._deferred_counts[block] == 0:
                self.num_deferred -= 1
                self._retire(block)

    def publish(self, block: int, block_hash: bytes, token_ids: tuple[int, ...]) -> None:
        """Let others find a full, computed block. A second block of the same content stays private."""
        assert self._ref_counts[block] > 0
        if block_hash not in self._by_hash and self._contents[block] is None:
            self._by_hash[block_hash] = block
            self._contents[block] = CachedContent(block_hash, token_ids)

    def retract(self, block_hashes: Iterable[bytes]) -> None:
        """Let nobody find the blocks of these names again: what they hold is not to be trusted."""
        for block_hash in block_hashes:
            block = self._by_hash.get(block_hash)
            if block is None:
                continue
            self._forget(block)
            if block in self._cached:
                del self._cached[block]
                self._free.append(block)

    def forget_all(self) -> None:
        """Forget all content: the device's memory was lost, or the weights behind it changed."""
        self._by_hash.clear()
        self._contents = [None] * self.num_blocks
        self._free.extend(self._cached)
        self._cached.clear()

    def _retire(self, block: int) -> None:
        if self._contents[block] is None:
            self._free.append(block)
        else:
            self._cached[block] = None

    def _forget(self, block: int) -> None:
        content = self._contents[block]
        assert content is not None
        del self._by_hash[content.block_hash]
        self._contents[block] = None

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Assert every invariant. `holders` are the block lists of all requests."""
        expected = [0] * self.num_blocks
        for blocks in holders:
            for block in blocks:
                expected[block] += 1
        assert expected == self._ref_counts, "references differ from what requests hold"
        assert expected[PADDING_BLOCK] == 0, "somebody holds the padding block"
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached
        assert all(count >= 0 for count in self._deferred_counts)
        deferred = {b for b in range(self.num_blocks) if self._ref_counts[b] == 0 and self._deferred_counts[b] > 0}
        in_use = {b for b in range(self.num_blocks) if self._ref_counts[b] > 0}
        assert not (free | cached) & (deferred | in_use)
        assert len(deferred) == self.num_deferred
        assert len(free) + len(cached) + len(deferred) + len(in_use) == self.num_usable, "blocks were lost"
        assert all(self._contents[b] is None for b in free)
        assert all(self._contents[b] is not None for b in cached)
        published = {c.block_hash: b for b, c in enumerate(self._contents) if c is not None}
        assert published == self._by_hash
