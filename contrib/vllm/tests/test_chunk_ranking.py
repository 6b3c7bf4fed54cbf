"""Chunks outside a tree are ranked by a policy's formula and its clock."""

import pytest

from cachectl.policies.baselines import GreedyDualSizeFrequency, PrefixAwareGreedyDual
from cachectl.policies.lookahead import Lookahead
from ragtree_vllm.chunk_ranking import PolicyChunkRanking


def ranking(policy=PrefixAwareGreedyDual) -> PolicyChunkRanking:
    # 2 s per token, and 10 ms more for each cached token.
    return PolicyChunkRanking(policy(Lookahead()), lambda cached, new: new * (2 + cached / 100))


def test_pgdsf_priority_is_mean_cost_per_token_times_requests():
    chunks = ranking()
    assert chunks.computed(b"a", 0, 64) == 2
    assert chunks.reused(b"a") == 4
    # A second computation at 4 s per token makes the mean 3 s.
    assert chunks.computed(b"a", 200, 16) == 9


def test_the_given_policy_ranks_the_chunks():
    chunks = ranking(GreedyDualSizeFrequency)
    assert [chunks.computed(b"a", 0, 64), chunks.reused(b"a")] == [1, 2]


def test_evictions_only_advance_the_clock():
    chunks = ranking()
    chunks.evicted(b"a", chunks.computed(b"a", 0, 1) + 5)
    assert chunks.computed(b"b", 0, 1) == 7 + 2
    chunks.evicted(b"b", 1)
    assert chunks.computed(b"c", 0, 1) == 7 + 2


@pytest.mark.parametrize("leave", [lambda chunks: chunks.evicted(b"a", 0), lambda chunks: chunks.forget(b"a")])
def test_a_chunk_that_left_starts_over(leave):
    chunks = ranking()
    chunks.computed(b"a", 400, 1)
    leave(chunks)
    with pytest.raises(KeyError):
        chunks.reused(b"a")
    assert chunks.computed(b"a", 0, 1) == 2


def test_clearing_forgets_all_chunks_and_resets_the_clock():
    chunks = ranking()
    chunks.evicted(b"a", chunks.computed(b"a", 0, 1))
    chunks.computed(b"b", 0, 1)
    chunks.clear()
    with pytest.raises(KeyError):
        chunks.reused(b"b")
    assert chunks.computed(b"b", 0, 1) == 2
