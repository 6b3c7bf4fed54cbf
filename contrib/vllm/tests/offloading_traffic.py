"""Prompts as vLLM's offloading scheduler reports them, served by its own manager and a transparent ranking."""

from collections.abc import Sequence
from hashlib import blake2b

from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.arc import ARCCachePolicy
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

from ragtree_vllm.offloading_policy import RankedCachePolicy

CHUNK_TOKENS = 32


class Uses:
    """A simple ranking: a chunk's priority is its number of uses, and there is no clock.

    ``passes`` are the recorded passes; ``gone`` are the evicted chunks with their priorities.
    """

    def __init__(self) -> None:
        self.uses: dict[bytes, int] = {}
        self.passes: list[tuple[int, int]] = []
        self.gone: list[tuple[bytes, float]] = []

    def computed(self, key: bytes, cached_tokens: int, new_tokens: int) -> float:
        self.passes.append((cached_tokens, new_tokens))
        self.uses.setdefault(key, 0)
        return self.reused(key)

    def reused(self, key: bytes) -> float:
        self.uses[key] += 1
        return float(self.uses[key])

    def evicted(self, key: bytes, priority: float) -> None:
        self.gone.append((key, priority))
        self.forget(key)

    def forget(self, key: bytes) -> None:
        self.uses.pop(key, None)

    def clear(self) -> None:
        self.uses.clear()


class UsesCachePolicy(RankedCachePolicy):
    """The policy with the ranking ``Uses``."""

    def __init__(self, cache_capacity: int) -> None:
        self.ranking = Uses()
        super().__init__(cache_capacity, self.ranking)


POLICIES: dict[str, type[CachePolicy]] = {"lru": LRUCachePolicy, "arc": ARCCachePolicy, "ranked": UsesCachePolicy}


def prompt(*parts: object) -> list[OffloadKey]:
    """The keys of a prompt's chunks. Each is the hash of all parts up to its own."""
    keys = []
    digest = b""
    for part in parts:
        digest = blake2b(repr(part).encode(), key=digest, digest_size=16).digest()
        keys.append(make_offload_key(digest, 0))
    return keys


def request(keys: Sequence[OffloadKey]) -> ReqContext:
    """A request for the prompt of these chunks, which states where each of them ends."""
    context = ReqContext(req_id="r")
    for number, key in enumerate(keys, start=1):
        context.set_offload_key_position(key, number * CHUNK_TOKENS)
    return context


def stored(policy: CachePolicy, keys: Sequence[OffloadKey]) -> list[ChunkStatus]:
    """Store a prompt's chunks in a policy, ready and idle."""
    policy.on_store_miss(keys, request(keys))
    statuses = []
    for number, key in enumerate(keys):
        status = ChunkStatus(number)
        policy.insert(key, status)
        status.ref_cnt = 0
        policy.mark_evictable(key)
        statuses.append(status)
    policy.on_request_finished([keys], set(keys), set(), request(keys))
    return statuses


def manager(policy: str, chunks: int, module: str | None = None) -> CPUOffloadingManager:
    """vLLM's own manager with one of ``POLICIES``, or with a class of a module."""
    return CPUOffloadingManager(chunks, "UsesCachePolicy" if policy == "ranked" else policy, module or __name__)


def serve(manager: CPUOffloadingManager, keys: Sequence[OffloadKey]) -> int:
    """Serve a request from start to end, on a GPU that caches nothing. Returns the number of chunks found."""
    context = request(keys)
    manager.on_new_request(context)
    found = 0
    while found < len(keys) and manager.lookup(keys[found], context) is LookupResult.HIT:
        found += 1
    manager.prepare_load(keys[:found], context)
    manager.complete_load(keys[:found], context)
    if found < len(keys):
        output = manager.prepare_store(keys[found:], context)
        if output is not None:
            manager.complete_store(output.keys_to_store, context)
    manager.on_request_finished(context)
    return found
