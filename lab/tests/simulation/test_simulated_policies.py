"""The simulation-only policies keep the contract, and their decisions match results computed by hand."""

import pytest
from policy_cases import ask, evicted_by, priority, wait
from policy_cases import tree_of as tree_under
from policy_contract import PolicyContract

from cachectl.policies.lookahead import Lookahead
from cachectl.tree.knowledge_tree import KnowledgeTree
from ragtree_lab.simulation.policies import create_simulated_policy


def tree_of(name: str, gpu: int) -> KnowledgeTree:
    return tree_under(create_simulated_policy(name, Lookahead()), gpu)


class TestSimulatedPolicies(PolicyContract):
    @pytest.fixture(scope="class", params=["LFU", "HYBRID", "LACR", "LACR-NORMALISED"])
    def make_policy(self, request):
        return lambda lookahead, _: create_simulated_policy(request.param, lookahead)


def test_lfu_evicts_the_least_frequent_then_the_least_recent():
    #  request   a  a  a  b  c  c  b        frequency: a 3, b 2, c 2; c used in 6, b in 7
    tree = tree_of("LFU", 3)
    for path in "aaabccb":
        ask(tree, path)
    # d, e and f have frequency 1 and stay the least frequent, so a is never evicted.
    assert [evicted_by(tree, path) for path in "def"] == ["c", "d", "e"]
    # f is requested twice more: f 3, b 2. Now b is evicted, then the newest document.
    assert [evicted_by(tree, path) for path in "ffgh"] == ["", "", "b", "g"]


def test_hybrid_weighs_frequency_by_0_6_and_recency_by_0_4():
    # GPU of 3: each insertion is a third of a turnover, and 0.4/3 = 0.1333. Turnovers count earlier insertions.
    #   a   0.6 + 0      a   1.2 + 0.1333      b   0.6 + 0.1333      c   0.6 + 0.2667
    tree = tree_of("HYBRID", 3)
    for path in "aabc":
        ask(tree, path)
    assert [priority(tree, path) for path in "abc"] == pytest.approx([4 / 3, 11 / 15, 13 / 15])
    # a's second use is worth 0.6 / 0.1333 = 4.5 insertions. New documents score, after 3, 4, 5 ... insertions:
    #   d 1.0   e 1.1333   f 1.2667   g 1.4   h 1.5333       so a (1.3333) is evicted after f and before g.
    assert [evicted_by(tree, path) for path in "defghi"] == ["b", "c", "d", "e", "f", "a"]


def test_lacr_keeps_what_a_waiting_request_needs():
    # A request waits for a: 0.2 + 0.8.  b 0.2 · 2 = 0.4.  LRU, LFU and all other policies here would evict a.
    tree = tree_of("LACR", 2)
    for path in "abb":
        ask(tree, path)
    wait(tree, "a")
    assert priority(tree, "a") == pytest.approx(1.0)
    assert evicted_by(tree, "c") == "b"
    # No request waits for a any more: a 0.2, c 0.2, and a is older.
    tree.reconsider(tree.policy.lookahead.leave("waits for a"))
    assert evicted_by(tree, "d") == "a"


@pytest.mark.parametrize(("waiting", "victim"), [("ab", "b"), ("ba", "a")])
def test_lacr_weighs_nearer_requests_more(waiting, victim):
    # The first queued request adds 0.8 · 1/1, the second 0.8 · 1/2.
    tree = tree_of("LACR", 2)
    for path in "ab":
        ask(tree, path)
    wait(tree, *waiting)
    assert sorted(priority(tree, path) for path in "ab") == pytest.approx([0.6, 1.0])
    assert evicted_by(tree, "c") == victim


@pytest.mark.parametrize(
    ("waiting", "victim"),
    [
        # b 0.2 + 0.8 · 1 = 1.0 in all cases.
        (["b", "ax", "ay"], "a"),  # a 0.2 + 0.8 · (1/2 + 1/3) = 0.8667
        (["b", "ax", "ay", "az"], "b"),  # a 0.2 + 0.8 · (1/2 + 1/3 + 1/4) = 1.0667
    ],
)
def test_lacr_sums_all_requests_that_wait_for_a_document(waiting, victim):
    tree = tree_of("LACR", 2)
    for path in "ab":
        ask(tree, path)
    wait(tree, *waiting)
    assert evicted_by(tree, "c") == victim


@pytest.mark.parametrize(("uses", "victim"), [(4, "a"), (6, "b")])
def test_lacr_weighs_past_use_by_0_2(uses, victim):
    # b is used once, and a request waits for it: 0.2 + 0.8 = 1.0. None waits for a: 0.2 · 4 = 0.8, or 0.2 · 6 = 1.2.
    tree = tree_of("LACR", 2)
    for path in "a" * uses + "b":
        ask(tree, path)
    wait(tree, "b")
    assert evicted_by(tree, "c") == victim


@pytest.mark.parametrize(("uses", "policy", "victim"), [(6, "LACR", "b"), (6, "LACR-NORMALISED", "a")])
def test_normalised_lacr_never_lets_the_past_outweigh_what_the_queue_needs_next(uses, policy, victim):
    # a: 0.2 · 6 = 1.2, or 0.2 · 6/6 = 0.2.  b: 0.2 · 1 + 0.8 · 1 = 1.0, or 0.2 · 1/6 + 0.8 = 0.83.
    tree = tree_of(policy, 2)
    for path in "a" * uses + "b":
        ask(tree, path)
    wait(tree, "b")
    assert evicted_by(tree, "c") == victim


def test_normalised_lacr_divides_by_the_greatest_frequency_so_far():
    # Priorities are times that frequency. b waits behind d: 0.2 · 1 + 0.8 · 1/2 · F, with F = 1, and 3 once a has 3.
    tree = tree_of("LACR-NORMALISED", 3)
    ask(tree, "b")
    wait(tree, "d", "b")
    assert priority(tree, "b") == pytest.approx(0.6)
    for path in "aaa":
        ask(tree, path)
    assert [priority(tree, path) for path in "ab"] == pytest.approx([0.6, 1.4])
