"""Every policy keeps the contract, and its formula decides as worked out by hand."""

from pathlib import Path

import pytest
from policy_cases import ask, evicted_by, priority, quadratic, tree_of
from policy_contract import NAMESPACE, PolicyContract

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy, policy_names
from cachectl.policies.lookahead import Lookahead
from protocol.errors import UnknownPolicy
from protocol.tiers import Tier

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "policies.md"


class TestEveryPolicy(PolicyContract):
    @pytest.fixture(scope="class", params=policy_names())
    def make_policy(self, request):
        return lambda lookahead, _: create_policy(request.param, lookahead)


# Names


def test_policy_names_begin_with_the_baseline():
    assert policy_names() == ["NONE", "LRU", "GDSF", "PGDSF", "FORESIGHT"]


def test_the_documentation_lists_every_policy():
    table = {line.split("`")[1] for line in DOCUMENTATION.read_text().splitlines() if line.startswith("| `")}
    assert table >= set(policy_names())


def test_a_policy_is_created_by_its_name():
    assert [create_policy(name, Lookahead()).name for name in policy_names()] == policy_names()


def test_a_policy_has_the_lookahead_that_it_was_created_with():
    lookahead = Lookahead()
    assert all(create_policy(name, lookahead).lookahead is lookahead for name in policy_names())


@pytest.mark.parametrize("name", ["BELADY", "LACR", "lru", ""])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(UnknownPolicy, match=f"'{name}'; choose one of {', '.join(policy_names())}") as refused:
        create_policy(name, Lookahead())
    assert refused.value.param == "policy"


def test_only_the_baseline_keeps_nothing():
    assert [name for name in policy_names() if not create_policy(name, Lookahead()).keeps] == ["NONE"]


# Formulas: see policy_cases for documents and costs.


def test_none_keeps_nothing_of_any_path():
    tree = tree_of("NONE", 10, 10)
    assert [ask(tree, path).documents[0].kept for path in ["ab", "ab", "a"]] == [None, None, None]
    assert not tree.registry.nodes


def test_lru_evicts_the_least_recently_used_document():
    #  request   a  b  c  a        used last: b in 2, c in 3, a in 4
    tree = tree_of("LRU", 3)
    for path in "abca":
        ask(tree, path)
    assert [evicted_by(tree, path) for path in "defg"] == ["b", "c", "a", "d"]


def test_lru_keeps_a_parent_that_was_used_for_its_child():
    # Request 3 uses a again, after b on its own in 2. The child leaves before its parent; both were used in 3.
    tree = tree_of("LRU", 3)
    for path in ["a", "b", "ac"]:
        ask(tree, path)
    assert [evicted_by(tree, path) for path in "def"] == ["b", "c", "a"]


def test_gdsf_lets_a_frequent_document_age():
    # Priority = Clock + Frequency.  a a a: 0 + 3.  b: 0 + 1.
    tree = tree_of("GDSF", 2)
    for path in "aaab":
        ask(tree, path)
    assert (priority(tree, "a"), priority(tree, "b")) == (3.0, 1.0)
    # c evicts b (1): Clock 1, c 1 + 1 = 2.  d evicts c (2): Clock 2, d 3.  e evicts a (3, used in 3) before d (3).
    assert [evicted_by(tree, path) for path in "cde"] == ["b", "c", "a"]
    assert tree.tiers.gpu("one").clock == 3.0
    assert priority(tree, "e") == 4.0


def test_gdsf_ignores_costs():
    # b behind a costs 3 for its one token and c only 1, but both were requested once: the older one leaves.
    tree = tree_of("GDSF", 3, cost=quadratic)
    for path in ["a", "ab", "c"]:
        ask(tree, path)
    assert evicted_by(tree, "d") == "b"


def test_pgdsf_keeps_a_deeper_document_because_its_tokens_cost_more():
    # a: T(0, 1)/1 = 1.  b behind a: T(1, 1)/1 = 2² − 1² = 3.  c: 1.  Priorities: a 1 · 2, b 3 · 1, c 1 · 1.
    tree = tree_of("PGDSF", 3, cost=quadratic)
    for path in ["a", "ab", "c"]:
        ask(tree, path)
    assert [priority(tree, path) for path in ["a", "ab", "c"]] == [2.0, 3.0, 1.0]
    # d evicts c, though b is older: Clock 1, d 1 + 1 = 2.
    assert evicted_by(tree, "d") == "c"
    assert priority(tree, "d") == 2.0
    # e evicts d (2) and not b (3): Clock 2, e 3.  f evicts b (3, used in 2) before e (3): Clock 3, f 4.
    # g: a is a leaf now, and its 2 is the lowest.
    assert [evicted_by(tree, path) for path in "efg"] == ["d", "b", "a"]


def test_pgdsf_weighs_cost_per_token_and_not_length():
    # A has two tokens, T(0, 2)/2 = 2; b has one, T(0, 1)/1 = 1, and was used later: b leaves.
    tree = tree_of("PGDSF", 3, cost=quadratic)
    for path in "Ab":
        ask(tree, path)
    assert (priority(tree, "A"), priority(tree, "b")) == (2.0, 1.0)
    assert evicted_by(tree, "c") == "b"


@pytest.mark.parametrize(("uses", "victim"), [(4, "d"), (5, "a")])
def test_pgdsf_averages_costs_over_misses(uses, victim):
    # d costs 1 for its token: 1 · 4, or 1 · 5.
    tree = tree_of("PGDSF", 2, cost=quadratic, instances=("one", "two"))
    for path in "d" * uses:
        ask(tree, path)
    # a is missed by instance one alone, T(0, 1)/1 = 1, and by instance two with b behind it, T(0, 2)/2 = 2. The hit
    # that follows counts as a use but not as a miss: 3 uses of (1 + 2)/2 each.
    ask(tree, "a", "one")
    ask(tree, "ab", "two")
    ask(tree, "a", "one")
    assert (priority(tree, "d"), priority(tree, "a")) == (uses, 4.5)
    assert evicted_by(tree, "c") == victim


def test_pgdsf_counts_the_question_as_computed():
    # One document and a question of one token: T(0, 2)/2 = 2 a token.
    tree = tree_of("PGDSF", 2, cost=quadratic)
    grant = tree.grants.admit("q", NAMESPACE, [PathDocument("a", 1)], path_keys(NAMESPACE, "a"), 1, "one", 0.0)
    tree.grants.complete(grant, kept=True, unwritten=())
    assert priority(tree, "a") == 2.0


def test_pgdsf_has_a_clock_for_each_tier():
    # GPU: 1 token, host: 2 tokens. All cost 1, so the priority of a after two requests is 2.
    tree = tree_of("PGDSF", 1, 2)
    gpu, host = tree.tiers.gpu("one"), tree.tiers.locations[""].host
    for path in "aa":
        ask(tree, path)
    # b evicts a (2) to host, where its priority is 0 + 1 · 2, because the host's clock is at 0.
    assert evicted_by(tree, "b") == "a"
    assert (gpu.clock, host.clock) == (2.0, 0.0)
    assert (priority(tree, "b"), priority(tree, "a", Tier.HOST)) == (3.0, 2.0)
    # c evicts b (3) to host, where its priority is 0 + 1.
    ask(tree, "c")
    assert (gpu.clock, host.clock) == (3.0, 0.0)
    assert priority(tree, "b", Tier.HOST) == 1.0
    # d evicts c (4) to host, which evicts b (1) though a is older: clocks 4 and 1, c has 1 + 1 in host.
    moves = ask(tree, "d").moves
    assert [(move.source, move.target) for move in moves] == [(Tier.HOST, None), (Tier.GPU, Tier.HOST)]
    assert (gpu.clock, host.clock) == (4.0, 1.0)
    assert (priority(tree, "d"), priority(tree, "c", Tier.HOST)) == (5.0, 2.0)
    assert not tree.lookup.match(NAMESPACE, "b", "one")
    # Clocks never go back: b (5 + 1) evicts d (5) from the GPU, which evicts a (2), the host's oldest of its 2s.
    assert evicted_by(tree, "b", Tier.HOST) == "a"
    assert (gpu.clock, host.clock) == (5.0, 2.0)


def test_pgdsf_has_a_clock_for_each_instance():
    tree = tree_of("PGDSF", 1, instances=("one", "two"))
    for path in "ab":
        ask(tree, path, "one")
    assert (tree.tiers.gpu("one").clock, tree.tiers.gpu("two").clock) == (1.0, 0.0)
