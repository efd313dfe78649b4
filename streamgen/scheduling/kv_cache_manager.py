"""Which blocks hold a request's KV, and which of them it can share."""

from __future__ import annotations

import hashlib
import secrets
from array import array
from typing import TYPE_CHECKING

from streamgen.scheduling.block_pool import BlockPool

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamgen.scheduling.request import Request


def hash_block(parent: bytes, token_ids: Sequence[int], salt: bytes) -> bytes:
    """Name the prefix that ends with a full block: SHA-256 over its parent's name, its tokens and what else matters.

    A weaker hash would let a crafted prompt take over another one's KV.
    """
    digest = hashlib.sha256(parent)
    digest.update(array("q", token_ids).tobytes())
    digest.update(salt)
    return digest.digest()


class KVCacheManager:
    """Maps requests to blocks of the pool, and prefixes to blocks that hold them already."""

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True, root: bytes | None = None
    ) -> None:
        """Args: `root` starts every hash chain; random by default, so that names cannot be computed outside."""
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._root = secrets.token_bytes(32) if root is None else root
        self._deferred: dict[int, list[list[int]]] = {}

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def fits(self, num_tokens: int) -> bool:
        """Whether a request of this length could ever be held, alone in the pool."""
        return self.num_blocks_for(num_tokens) <= self.pool.num_usable

    def find_prefix(self, request: Request) -> list[int]:
        """Blocks that hold the longest known prefix of a request, its last token always excluded.

        The last token must be computed in any case, for its logits.
        """
        most = (request.num_known_tokens - 1) // self.block_size
        shared = self._leader_blocks(request)[:most]
        if not self.enable_prefix_caching or len(shared) == most:
            return shared
        found: list[int] = []
        for index in range(most):
            block = self.pool.find(self._hash_at(request, index), self._tokens_at(request, index))
            if block is None:
                break
            found.append(block)
        return max(found, shared, key=len)

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks would be taken from the available ones if they were acquired."""
        return sum(map(self.pool.is_idle, blocks))

    def adopt(self, request: Request, prefix: list[int]) -> None:
        """Let a request that holds nothing start behind a prefix from `find_prefix`."""
        assert not request.block_ids
        self.pool.acquire(prefix)
        request.block_ids = list(prefix)
        request.num_computed_tokens = request.num_confirmed_tokens = len(prefix) * self.block_size
        request.num_published_blocks = len(prefix)

    def num_missing(self, request: Request, num_new_tokens: int) -> int:
        """Blocks that a request lacks to compute so many more tokens."""
        return self.num_blocks_for(request.num_computed_tokens + num_new_tokens) - len(request.block_ids)

    def allocate(self, request: Request, num_new_tokens: int) -> tuple[int, ...] | None:
        """Give a request the blocks for so many more tokens; None, and nothing taken, if there are not enough."""
        missing = self.num_missing(request, num_new_tokens)
        if missing <= 0:
            return ()
        if missing > self.pool.num_available:
            return None
        blocks = self.pool.allocate(missing)
        request.block_ids.extend(blocks)
        return tuple(blocks)

    def confirm(self, request: Request, num_tokens: int) -> None:
        """The KV of a request's first `num_tokens` tokens is written: publish the blocks that became full."""
        request.num_confirmed_tokens = num_tokens
        if not self.enable_prefix_caching:
            return
        for index in range(request.num_published_blocks, num_tokens // self.block_size):
            self.pool.publish(request.block_ids[index], self._hash_at(request, index), self._tokens_at(request, index))
            request.num_published_blocks = index + 1

    def distrust(self, request: Request) -> None:
        """A request's logits were not finite: nobody else shall start from its KV, be it its own or shared."""
        self.pool.retract(request.block_hashes)

    def free(self, request: Request, *, until_step: int | None) -> None:
        """Take a request's blocks back, at once or, if a launched step touches them, when that has come back."""
        if until_step is not None and request.block_ids:
            self._deferred.setdefault(until_step, []).append(request.block_ids)
        self.pool.release(request.block_ids, deferred=until_step is not None)
        request.block_ids = []
        request.num_computed_tokens = request.num_confirmed_tokens = request.num_published_blocks = 0

    def settle(self, step: int) -> None:
        """A step has come back: blocks that waited for it are free for others now."""
        for blocks in self._deferred.pop(step, ()):
            self.pool.settle(blocks)

    def check(self, requests: Iterable[Request]) -> None:
        """Assert every invariant, given all unfinished requests."""
        requests = list(requests)
        self.pool.check(request.block_ids for request in requests)
        for request in requests:
            assert len(request.block_ids) >= self.num_blocks_for(request.num_computed_tokens)
            assert request.num_confirmed_tokens <= min(request.num_computed_tokens, request.num_known_tokens)
            assert request.num_published_blocks * self.block_size <= request.num_confirmed_tokens

    def _leader_blocks(self, request: Request) -> list[int]:
        """Blocks of the sibling that computed the same prompt, as far as they are full and confirmed."""
        leader = request.leader
        if leader is None:
            return []
        shared = min(leader.num_confirmed_tokens, leader.num_prompt_tokens)
        return leader.block_ids[: shared // self.block_size]

    def _tokens_at(self, request: Request, index: int) -> tuple[int, ...]:
        start = index * self.block_size
        return request.known_tokens(start, start + self.block_size)

    def _hash_at(self, request: Request, index: int) -> bytes:
        """Hash of a request's block, computed once; a long prompt is hashed only as far as it is looked up.

        Siblings have one prompt and one salt, so that the one which computed the prompt has hashed it for all.
        """
        hashes = request.block_hashes
        leader = request.leader
        if leader is not None:
            most = min(index + 1, request.num_prompt_tokens // self.block_size)
            hashes.extend(leader.block_hashes[len(hashes) : most])
        while len(hashes) <= index:
            parent = hashes[-1] if hashes else self._root
            hashes.append(hash_block(parent, self._tokens_at(request, len(hashes)), request.cache_salt))
        return hashes[index]
