"""A job has ended when every rank has answered it, and it has failed if it failed on one."""

import pytest

pytest.importorskip("vllm")

import msgspec

from generator.connector.scheduler.rank_results import RankResults
from generator.connector.step_jobs import JobResults, LoadResult, StepResults
from generator.tiers.base import StoredNode, TierContents
from protocol.kv import KvMemory, KvNode, KvRead, LostCopy, Pages
from protocol.tiers import Tier

MEMORY = KvMemory("weights", "boot", 4, 64, 10, 20, 30, 4e9, 2e9, "cpu", "here")
ONE, TWO = (StoredNode(KvNode(key, "n", (key,), 0, 8), Pages((number,), number)) for number, key in enumerate("ab"))


def join(ranks: RankResults, rank: int, **results: object) -> JobResults:
    return ranks.join(StepResults({rank: JobResults(**results)}))


def test_a_silent_rank_has_finished_nothing():
    ranks = RankResults(2)
    answered = {"loads": {"r": LoadResult(1.0)}, "transfers": {1: True}, "purged": {2: 0}, "held": {"q": {}}}
    assert join(ranks, 0, **answered) == JobResults()
    # Other jobs of the other rank change nothing.
    assert join(ranks, 1, transfers={9: True}) == JobResults()
    assert join(ranks, 1, **answered) == JobResults(**answered)
    assert join(ranks, 0, transfers={9: True}).transfers == {9: True}


def test_ranks_may_answer_in_one_step():
    both = StepResults({0: JobResults(transfers={1: True})}).aggregate(
        StepResults({1: JobResults(transfers={1: True})})
    )
    assert RankResults(2).join(both).transfers == {1: True}


@pytest.mark.parametrize("failing", [0, 1])
def test_a_job_that_fails_on_one_rank_fails(failing):
    ranks = RankResults(2)
    lost = (LostCopy("k", Tier.DISK),)
    join(ranks, 1 - failing, transfers={1: True}, purged={2: 0}, loads={"r": LoadResult(3.0)})
    joined = join(ranks, failing, transfers={1: False}, purged={2: 4}, loads={"r": LoadResult(1.0, lost)})
    assert joined == JobResults(loads={"r": LoadResult(3.0, lost)}, transfers={1: False}, purged={2: 4})


def test_a_read_at_a_peer_is_done_when_the_slowest_rank_has_done_its_part():
    ranks = RankResults(2)
    unread = (LostCopy("k", Tier.HOST, "elsewhere"),)
    fine = LoadResult(1.0, peers=(KvRead("elsewhere", 8, 0.5), KvRead("further", 4, 0.1)))
    join(ranks, 0, loads={"r": fine})
    failed = LoadResult(1.0, (), True, unread, (KvRead("elsewhere", 4, 0.75, failed=True),))
    (load,) = join(ranks, 1, loads={"r": failed}).loads.values()
    assert load.failed
    assert load.unread == unread
    assert load.peers == (KvRead("elsewhere", 4, 0.75, failed=True), KvRead("further", 4, 0.1))


def test_a_node_is_in_a_tier_if_it_is_there_on_every_rank():
    ranks = RankResults(2)
    join(ranks, 0, held={"q": {Tier.HOST: TierContents((ONE, TWO), 3), Tier.DISK: TierContents((ONE,))}})
    joined = join(ranks, 1, held={"q": {Tier.HOST: TierContents((TWO,), 5), Tier.DISK: TierContents(())}})
    assert joined.held == {"q": {Tier.HOST: TierContents((TWO,), 5), Tier.DISK: TierContents(())}}
    assert ranks.take_partial() == [(Tier.HOST, ONE), (Tier.DISK, ONE)]
    assert ranks.take_partial() == []


def test_the_memory_is_what_every_rank_has():
    ranks = RankResults(2)
    slower = msgspec.structs.replace(MEMORY, boot="other", host_pages=15, disk_bytes_per_s=1e9)
    join(ranks, 1, memory=slower)
    joined = join(ranks, 0, memory=MEMORY)
    assert joined.memory == msgspec.structs.replace(
        MEMORY, page_bytes=128, host_pages=15, host_bytes_per_s=8e9, disk_bytes_per_s=2e9
    )
