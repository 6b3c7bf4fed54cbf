"""Chunks outside a tree are ranked as nodes in it: by the policy's own formula, with its clock."""

import pytest

from cachectl.policies.gdsf import GreedyDualSizeFrequency
from cachectl.policies.lookahead import Lookahead
from cachectl.policies.pgdsf import PrefixAwareGreedyDual
from cachectl.standalone.chunk_ranking import PolicyChunkRanking


def ranking(policy=PrefixAwareGreedyDual) -> PolicyChunkRanking:
    # 2 s a token, and a hundredth more for each one in front.
    return PolicyChunkRanking(policy(Lookahead()), lambda cached, new: new * (2 + cached / 100))


def test_pgdsf_is_the_mean_cost_of_a_token_times_the_requests():
    chunks = ranking()
    assert chunks.computed(b"a", 0, 64) == 2
    assert chunks.reused(b"a") == 4
    # A second computation, at 4 s a token: 3 s on the mean.
    assert chunks.computed(b"a", 200, 16) == 9


def test_the_policy_is_the_given_one():
    chunks = ranking(GreedyDualSizeFrequency)
    assert [chunks.computed(b"a", 0, 64), chunks.reused(b"a")] == [1, 2]


def test_evictions_move_the_clock_on_and_never_back():
    chunks = ranking()
    chunks.evicted(b"a", chunks.computed(b"a", 0, 1) + 5)
    assert chunks.computed(b"b", 0, 1) == 7 + 2
    chunks.evicted(b"b", 1)
    assert chunks.computed(b"c", 0, 1) == 7 + 2


@pytest.mark.parametrize("leave", [lambda chunks: chunks.evicted(b"a", 0), lambda chunks: chunks.forget(b"a")])
def test_what_has_left_begins_anew(leave):
    chunks = ranking()
    chunks.computed(b"a", 400, 1)
    leave(chunks)
    with pytest.raises(KeyError):
        chunks.reused(b"a")
    assert chunks.computed(b"a", 0, 1) == 2


def test_cleared_it_knows_nothing_and_its_clock_stands_at_0():
    chunks = ranking()
    chunks.evicted(b"a", chunks.computed(b"a", 0, 1))
    chunks.computed(b"b", 0, 1)
    chunks.clear()
    with pytest.raises(KeyError):
        chunks.reused(b"b")
    assert chunks.computed(b"b", 0, 1) == 2
