"""A cache policy for vLLM's own KV offloading, which evicts chunks in the order of an injected ranking.

vLLM's ``CachePolicy`` is a base class, so importing this module imports vLLM. Only vLLM loads it, by name
(contrib/vllm/ragtree_vllm/plugin.py).
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, pairwise
from math import gcd
from typing import Protocol

from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus, order_request_keys

# The heap is swept when it has more than _SMALL + _SLACK * chunks entries, void ones included.
_SLACK = 2
_SMALL = 64

_Entry = tuple[float, int, bytes]
"""Priority, number of the last use, key. Chunks are evicted in this order."""


class ChunkRanking(Protocol):
    """Assigns priorities to chunks from the events of the cache. Chunks of higher priority stay longer.

    Evictions advance a clock, which raises the priorities assigned from then on. So unused chunks age.
    """

    def computed(self, key: bytes, cached_tokens: int, new_tokens: int) -> float:
        """Record that a pass of ``new_tokens`` behind ``cached_tokens`` computed the chunk. Returns its priority."""

    def reused(self, key: bytes) -> float:
        """Record that a request found the chunk. Returns its priority."""

    def evicted(self, key: bytes, priority: float) -> None:
        """Forget a chunk that was evicted at this priority, and advance the clock."""

    def forget(self, key: bytes) -> None:
        """Forget a chunk that was removed without eviction, or never stored."""

    def clear(self) -> None:
        """Forget all chunks, and reset the clock."""


class _Chunk:
    """A chunk in the cache: vLLM's record of it, its priority and last use, and its parent in the prompt.

    ``children`` counts the cached chunks that are known to follow it directly. ``entry`` is its valid entry in the heap
    of leaves, if any.
    """

    __slots__ = ("children", "entry", "key", "parent", "priority", "status", "used")

    def __init__(self, key: bytes, status: ChunkStatus, priority: float, used: int) -> None:
        self.key = key
        self.status = status
        self.priority = priority
        self.used = used
        self.parent: _Chunk | None = None
        self.children = 0
        self.entry: _Entry | None = None

    @property
    def evictable(self) -> bool:
        """Whether no transfer uses the chunk and no cached chunk follows it."""
        return self.status.ref_cnt == 0 and not self.children


class RankedCachePolicy(CachePolicy):  # type: ignore[misc]  # mypy does not follow vLLM
    """A policy for vLLM's offloading cache that evicts the evictable chunk of lowest priority first.

    Among equal priorities, the least recently used chunk goes first, and within a prompt the one nearest its end.

    Positions and parents: a key is a hash, which reveals neither. But a request states where each of its chunks ends in
    the prompt. So the number of tokens in front of missed chunks is known when they are offered, and the parents of
    chunks are known when the request finishes. If vLLM states no positions, parents are unknown, and a chunk costs what
    it would at the head of a prompt.

    Cost: a pass is what one engine step offers at once, so a prompt that is prefilled in pieces counts as several
    passes. vLLM does not report which chunks were in the GPU's cache and so were not computed; they count as computed.

    Frequency: each request counts once. It counts for the chunks that it stored, that it loaded, and that it found here
    when it was about to store them. Hits in the GPU's cache, in front of what a request loads from here, are not
    reported.

    A chunk whose successor is cached is not evicted, because the successor could not be found without it. This holds
    from the end of the first request that used both. Until then, only the order among equal priorities protects it.
    """

    def __init__(self, cache_capacity: int, ranking: ChunkRanking) -> None:
        super().__init__(cache_capacity)
        self._ranking = ranking
        self._chunks: dict[bytes, _Chunk] = {}
        # Priority and last use of offered chunks. vLLM passes the request to an earlier hook than the one that stores.
        self._offered: dict[bytes, tuple[float, int]] = {}
        self._leaves: list[_Entry] = []
        self._uses = count(1)
        # The greatest common divisor of all positions. Prompts are offered from their first chunk on.
        self._chunk_tokens = 0

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """The record that vLLM keeps of a chunk, or None if the chunk is not cached."""
        chunk = self._chunks.get(key)
        return None if chunk is None else chunk.status

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Record the pass that computed these chunks, which are not cached yet."""
        missed = order_request_keys([list(keys)], req_context)
        ends = {end for key in missed if (end := req_context.get_offload_key_position(key)) is not None}
        self._chunk_tokens = gcd(self._chunk_tokens, *ends)
        cached_tokens = min(ends, default=self._chunk_tokens) - self._chunk_tokens
        new_tokens = (len(ends) or len(missed)) * max(1, self._chunk_tokens)
        for key in reversed(missed):
            self._offered[key] = self._ranking.computed(key, cached_tokens, new_tokens), next(self._uses)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        """Add a chunk. If it was not offered, it counts as computed at the head of a prompt."""
        standing = self._offered.pop(key, None)
        if standing is None:
            standing = self._ranking.computed(key, 0, max(1, self._chunk_tokens)), next(self._uses)
        self._chunks[key] = entered = _Chunk(key, chunk, *standing)
        self._enter(entered)

    def remove(self, key: OffloadKey) -> None:
        """Remove a chunk that could not be stored. Raises KeyError if it is not cached."""
        self._detach(self._chunks.pop(key))
        self._ranking.forget(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:  # noqa: ARG002
        """Record that a request found these chunks. Chunks that are not stored yet are skipped."""
        for key in reversed(list(keys)):
            chunk = self._chunks.get(key)
            if chunk is not None and chunk.status.is_ready:
                chunk.priority, chunk.used = self._ranking.reused(key), next(self._uses)
                self._enter(chunk)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],  # noqa: ARG002
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        """Record what a request reused and which chunk follows which. Forget offered chunks that were not stored."""
        for keys in key_groups:
            self._link(keys, req_context)
            for key in keys:
                if self._offered.pop(key, None) is not None:
                    self._ranking.forget(key)
        found = [key for key in order_request_keys(key_groups, req_context) if key in reused_keys]
        self.touch(found, req_context)

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """Evict exactly ``n`` chunks. If fewer are evictable, evicts none and returns None."""
        victims: list[_Chunk] = []
        spared: list[_Chunk] = []
        while len(victims) < n and (chunk := self._lowest()) is not None:
            if chunk.key in protected:
                spared.append(chunk)
                continue
            victims.append(chunk)
            # The parent may be a leaf now, and be evicted in the same batch.
            self._detach(chunk)
        for chunk in spared:
            self._enter(chunk)
        if len(victims) < n:
            for chunk in reversed(victims):
                if chunk.parent is not None:
                    chunk.parent.children += 1
                self._enter(chunk)
            return None
        for chunk in victims:
            del self._chunks[chunk.key]
            self._ranking.evicted(chunk.key, chunk.priority)
        return [(chunk.key, chunk.status) for chunk in victims]

    def clear(self) -> None:
        """Forget all chunks, including those in use."""
        self._chunks.clear()
        self._offered.clear()
        self._leaves.clear()
        self._ranking.clear()

    def mark_evictable(self, key: OffloadKey) -> None:
        """Record that no transfer uses a chunk any more."""
        self._enter(self._chunks[key])

    def _link(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        for parent_key, key in pairwise(keys):
            parent, chunk = self._chunks.get(parent_key), self._chunks.get(key)
            if parent is None or chunk is None or chunk.parent is parent:
                continue
            parent_end, end = (req_context.get_offload_key_position(each) for each in (parent_key, key))
            if parent_end is None or end is None or end - parent_end != self._chunk_tokens:
                continue
            # An earlier parent has been evicted since.
            chunk.parent = parent
            parent.children += 1

    def _detach(self, chunk: _Chunk) -> None:
        """Remove a chunk from its parent's children. The parent may become a leaf."""
        if chunk.parent is not None:
            chunk.parent.children -= 1
            self._enter(chunk.parent)

    def _enter(self, chunk: _Chunk) -> None:
        """Enter a chunk into the heap if it is evictable. Its earlier entry becomes void."""
        if chunk.evictable:
            chunk.entry = (chunk.priority, chunk.used, chunk.key)
            heappush(self._leaves, chunk.entry)
            if len(self._leaves) > _SMALL + _SLACK * len(self._chunks):
                self._leaves = [entry for entry in self._leaves if self._owner(entry) is not None]
                heapify(self._leaves)

    def _lowest(self) -> _Chunk | None:
        """Pop the evictable chunk to evict first, or None if there is none."""
        while self._leaves:
            chunk = self._owner(heappop(self._leaves))
            if chunk is not None:
                chunk.entry = None
                # Transfers and new children do not void an entry. When they end, the chunk is entered again.
                if chunk.evictable:
                    return chunk
        return None

    def _owner(self, entry: _Entry) -> _Chunk | None:
        """The chunk that this entry is the valid one of, or None."""
        chunk = self._chunks.get(entry[2])
        return chunk if chunk is not None and chunk.entry is entry else None
