"""Joins the results of an engine's tensor-parallel ranks."""

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import msgspec

from generator.connector.step_jobs import CompositionResult, JobResults, LoadResult, StepResults
from generator.tiers.base import StoredNode, TierContents
from protocol.kv import KvMemory, KvRead, Peers
from protocol.tiers import Tier

Job = TypeVar("Job", bound=Hashable)
Result = TypeVar("Result")


class RankResults:
    """Collects results until all ``ranks`` have answered a job.

    Every rank does every job on its own shard of the KV. A node is in a tier if it is there on all ranks, and a job
    that failed on one rank has failed.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._loads: dict[str, dict[int, LoadResult]] = {}
        self._composed: dict[str, dict[int, CompositionResult]] = {}
        self._transfers: dict[int, dict[int, bool]] = {}
        self._purged: dict[int, dict[int, int]] = {}
        self._held: dict[str, dict[int, dict[Tier, TierContents]]] = {}
        self._memory: dict[int, KvMemory] = {}
        self._partial: dict[tuple[str, Tier], StoredNode] = {}

    def join(self, results: StepResults) -> JobResults:
        """The jobs that all ranks have now answered."""
        for rank, answered in results.by_rank.items():
            _add(self._loads, rank, answered.loads)
            _add(self._composed, rank, answered.composed)
            _add(self._transfers, rank, answered.transfers)
            _add(self._purged, rank, answered.purged)
            _add(self._held, rank, answered.held)
            if answered.memory is not None:
                self._memory[rank] = answered.memory
        joined = JobResults(
            loads={request_id: _slowest(loads) for request_id, loads in self._take(self._loads)},
            # Of one rank: the others' host memory cannot be held.
            step_load_s=dict(chain.from_iterable(answer.step_load_s.items() for answer in results.by_rank.values())),
            composed={request_id: _on_all_ranks(composed) for request_id, composed in self._take(self._composed)},
            transfers={number: all(done) for number, done in self._take(self._transfers)},
            purged={number: sum(left) for number, left in self._take(self._purged)},
            held={name: self._on_all(held) for name, held in self._take(self._held)},
        )
        if len(self._memory) == self._ranks:
            joined.memory = _together([memory for _, memory in sorted(self._memory.items())])
            self._memory.clear()
        return joined

    def take_partial(self) -> list[tuple[Tier, StoredNode]]:
        """Nodes found on some ranks only since the last call, as after a crash between two ranks' writes."""
        partial, self._partial = self._partial, {}
        return [(tier, stored) for (_, tier), stored in partial.items()]

    def _on_all(self, held: Sequence[Mapping[Tier, TierContents]]) -> dict[Tier, TierContents]:
        """What every rank holds, in the first rank's order. Records the nodes that only some hold.

        A tier of which a rank does not say what it holds is left out: its nodes are not partial.
        """
        whole: dict[Tier, TierContents] = {}
        for tier in held[0]:
            if not all(tier in answer for answer in held):
                continue
            contents = [answer[tier] for answer in held]
            by_rank = [found.nodes for found in contents]
            common = set(by_rank[0]).intersection(*by_rank[1:])
            nodes = tuple(stored for stored in by_rank[0] if stored in common)
            whole[tier] = TierContents(nodes, max(found.highest_stamp for found in contents))
            self._partial |= {(stored.node.key, tier): stored for stored in chain(*by_rank) if stored not in common}
        return whole

    def _take(self, answers: dict[Job, dict[int, Result]]) -> list[tuple[Job, list[Result]]]:
        complete = [job for job, by_rank in answers.items() if len(by_rank) == self._ranks]
        return [(job, list(answers.pop(job).values())) for job in complete]


def _add(answers: dict[Job, dict[int, Result]], rank: int, answered: Mapping[Job, Result]) -> None:
    for job, result in answered.items():
        answers.setdefault(job, {})[rank] = result


def _slowest(loads: Sequence[LoadResult]) -> LoadResult:
    """The result of all ranks' parts of a load."""
    lost = dict.fromkeys(copy for load in loads for copy in load.lost)
    unread = dict.fromkeys(copy for load in loads for copy in load.unread)
    reads: dict[tuple[str, Tier], list[KvRead]] = {}
    for read in chain.from_iterable(load.peers for load in loads):
        reads.setdefault((read.location, read.tier), []).append(read)
    return LoadResult(
        max(load.seconds for load in loads),
        tuple(lost),
        any(load.failed for load in loads),
        tuple(unread),
        tuple(
            msgspec.structs.replace(
                parts[0],
                tokens=min(read.tokens for read in parts),
                seconds=max(read.seconds for read in parts),
                failed=any(read.failed for read in parts),
            )
            for parts in reads.values()
        ),
    )


def _on_all_ranks(composed: Sequence[CompositionResult]) -> CompositionResult:
    return next((result for result in composed if result.failed), composed[0])


def _together(memories: Sequence[KvMemory]) -> KvMemory:
    """The memory of all ranks as one: each page lies on all ranks, and all load at the speed of the slowest one."""
    ranks = len(memories)
    return msgspec.structs.replace(
        memories[0],
        page_bytes=sum(memory.page_bytes for memory in memories),
        gpu_pages=min(memory.gpu_pages for memory in memories),
        host_pages=min(memory.host_pages for memory in memories),
        disk_pages=min(memory.disk_pages for memory in memories),
        host_bytes_per_s=ranks * min(memory.host_bytes_per_s for memory in memories),
        disk_bytes_per_s=ranks * min(memory.disk_bytes_per_s for memory in memories),
        peers=Peers(
            tuple(address for memory in memories for address in memory.peers.addresses), memories[0].peers.timeout_s
        ),
    )
