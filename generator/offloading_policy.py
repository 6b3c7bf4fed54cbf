"""A cache policy for vLLM's own KV offloading: chunks leave by what an injected ranking says they are worth.

vLLM's ``CachePolicy`` is a class to derive from, so this module imports vLLM when it is read. Only vLLM asks for it, by
name (services/vllm_plugin.py).
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, pairwise
from math import gcd
from typing import Protocol

from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus, order_request_keys

# Entries that are void may make up this share of the heap before it is swept.
_SLACK = 2
_SMALL = 64

_Entry = tuple[float, int, bytes]
"""Priority, number of the last use, key: in the order in which chunks leave."""


class ChunkRanking(Protocol):
    """What chunks are worth by what is heard of them: the higher a chunk's priority, the longer it stays.

    A clock ages what is not used: evictions move it on, and with it what chunks are given from then on.
    """

    def computed(self, key: bytes, cached_tokens: int, new_tokens: int) -> float:
        """Count a pass of ``new_tokens`` behind ``cached_tokens`` that computed the chunk: its priority."""

    def reused(self, key: bytes) -> float:
        """Count a request that found the chunk: its priority."""

    def evicted(self, key: bytes, priority: float) -> None:
        """Forget a chunk that was evicted at this priority, and move the clock on."""

    def forget(self, key: bytes) -> None:
        """Forget a chunk that has left in another way, or never came."""

    def clear(self) -> None:
        """Forget everything, and set the clock back."""


class _Chunk:
    """A chunk in the cache: vLLM's record of it, its place in the order of eviction, and what it stands behind.

    ``children`` counts chunks in the cache that are known to stand right behind it. ``entry`` is its valid entry among
    the leaves, None for none.
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
    def may_leave(self) -> bool:
        """Whether no transfer uses it and nothing stands behind it."""
        return self.status.ref_cnt == 0 and not self.children


class RankedCachePolicy(CachePolicy):  # type: ignore[misc]  # mypy does not follow vLLM
    """The chunks of vLLM's offloading cache: of those that may leave, the one of lowest priority goes first.

    Among equals it is the one that was not used for longest, and within a prompt the one nearest to its end.

    What it can know. A key is a hash, from which neither place nor parent can be read. But a request tells the end of
    each of its chunks in the prompt, so what stands in front of the chunks that it misses is known when they are
    offered, and which chunk stands behind which when it has finished. A pass is what one step of the engine offers at
    once: a prompt that is prefilled in pieces counts as several. Chunks that only the GPU's cache still had were not
    computed, but nobody says so, and they count as if they were.

    Frequency counts requests, once each: the one that stored a chunk, and those that loaded it or found it here when
    they came to store it. What vLLM found in the GPU's own cache in front of what it loaded from here is not reported.

    A chunk whose successor is here does not leave, since without it the successor cannot be found. That holds from the
    end of the first request that went through both; until then only the order among equals speaks for it. Where vLLM
    does not tell positions, nothing is known of parents, and chunks cost what they would at the head of a prompt.
    """

    def __init__(self, cache_capacity: int, ranking: ChunkRanking) -> None:
        super().__init__(cache_capacity)
        self._ranking = ranking
        self._chunks: dict[bytes, _Chunk] = {}
        # Priority and last use of chunks on offer: the hook that knows the request comes before the one that stores.
        self._offered: dict[bytes, tuple[float, int]] = {}
        self._leaves: list[_Entry] = []
        self._uses = count(1)
        # All positions are multiples of it, and prompts are offered from their first chunk on.
        self._chunk_tokens = 0

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """What vLLM notes of a chunk, None if it is not here."""
        chunk = self._chunks.get(key)
        return None if chunk is None else chunk.status

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Count the pass that computed these chunks, which are not here."""
        missed = order_request_keys([list(keys)], req_context)
        ends = {end for key in missed if (end := req_context.get_offload_key_position(key)) is not None}
        self._chunk_tokens = gcd(self._chunk_tokens, *ends)
        cached_tokens = min(ends, default=self._chunk_tokens) - self._chunk_tokens
        new_tokens = (len(ends) or len(missed)) * max(1, self._chunk_tokens)
        for key in reversed(missed):
            self._offered[key] = self._ranking.computed(key, cached_tokens, new_tokens), next(self._uses)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        """Take a chunk in; one that was not offered counts as computed at the head of a prompt."""
        standing = self._offered.pop(key, None)
        if standing is None:
            standing = self._ranking.computed(key, 0, max(1, self._chunk_tokens)), next(self._uses)
        self._chunks[key] = entered = _Chunk(key, chunk, *standing)
        self._enter(entered)

    def remove(self, key: OffloadKey) -> None:
        """Take out a chunk that could not be stored. Raises KeyError if it is not here."""
        self._detach(self._chunks.pop(key))
        self._ranking.forget(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:  # noqa: ARG002
        """Count a request that found these chunks; one that is not stored yet cannot have been found."""
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
        """Count what a request reused, learn which chunk stands behind which, and forget what found no room."""
        for keys in key_groups:
            self._link(keys, req_context)
            for key in keys:
                if self._offered.pop(key, None) is not None:
                    self._ranking.forget(key)
        found = [key for key in order_request_keys(key_groups, req_context) if key in reused_keys]
        self.touch(found, req_context)

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """Take exactly ``n`` chunks out, or None, and nothing has changed, if not as many may leave."""
        victims: list[_Chunk] = []
        spared: list[_Chunk] = []
        while len(victims) < n and (chunk := self._lowest()) is not None:
            if chunk.key in protected:
                spared.append(chunk)
                continue
            victims.append(chunk)
            # Its parent may be a leaf now, and go in the same batch.
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
        """Forget all chunks, whoever uses them."""
        self._chunks.clear()
        self._offered.clear()
        self._leaves.clear()
        self._ranking.clear()

    def mark_evictable(self, key: OffloadKey) -> None:
        """Hear that no transfer uses a chunk any more."""
        self._enter(self._chunks[key])

    def _link(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        for parent_key, key in pairwise(keys):
            parent, chunk = self._chunks.get(parent_key), self._chunks.get(key)
            if parent is None or chunk is None or chunk.parent is parent:
                continue
            parent_end, end = (req_context.get_offload_key_position(each) for each in (parent_key, key))
            if parent_end is None or end is None or end - parent_end != self._chunk_tokens:
                continue
            # An earlier parent has been out of the cache since.
            chunk.parent = parent
            parent.children += 1

    def _detach(self, chunk: _Chunk) -> None:
        """Count a chunk out among its parent's children; the parent may become a leaf."""
        if chunk.parent is not None:
            chunk.parent.children -= 1
            self._enter(chunk.parent)

    def _enter(self, chunk: _Chunk) -> None:
        """Let a chunk be evicted if it may leave; an earlier entry is void."""
        if chunk.may_leave:
            chunk.entry = (chunk.priority, chunk.used, chunk.key)
            heappush(self._leaves, chunk.entry)
            if len(self._leaves) > _SMALL + _SLACK * len(self._chunks):
                self._leaves = [entry for entry in self._leaves if self._owner(entry) is not None]
                heapify(self._leaves)

    def _lowest(self) -> _Chunk | None:
        """The chunk to leave first, taken out of the leaves; None if none may leave."""
        while self._leaves:
            chunk = self._owner(heappop(self._leaves))
            if chunk is not None:
                chunk.entry = None
                # A transfer or a new child is not told to the heap: whoever ends it enters the chunk again.
                if chunk.may_leave:
                    return chunk
        return None

    def _owner(self, entry: _Entry) -> _Chunk | None:
        """The chunk whose valid entry this is."""
        chunk = self._chunks.get(entry[2])
        return chunk if chunk is not None and chunk.entry is entry else None
