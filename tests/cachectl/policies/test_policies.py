"""Every policy keeps the contract, and each one's formula decides as it does on paper."""

from pathlib import Path

import pytest
from policy_contract import NAMESPACE, PolicyContract

from cachectl.policies import create_policy, policy_names
from cachectl.policies.lookahead import Lookahead
from cachectl.tree.grant import Grant, PathDocument
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.node import path_keys
from cachectl.tree.tier_manager import Capacities
from protocol.errors import UnknownPolicy
from protocol.kv import Move
from protocol.tiers import Tier

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "policies.md"


class TestEveryPolicy(PolicyContract):
    @pytest.fixture(scope="class", params=policy_names())
    def make_policy(self, request):
        return lambda lookahead, _: create_policy(request.param, lookahead)


# Names


def test_the_policies_are_those_that_are_documented_the_baseline_first():
    assert policy_names() == ["NONE", "LRU", "LFU", "GDSF", "PGDSF", "HYBRID", "LACR", "FORESIGHT"]


def test_the_documentation_lists_every_policy_and_the_simulators_own():
    table = [line.split("`")[1] for line in DOCUMENTATION.read_text().splitlines() if line.startswith("| `")]
    assert sorted(table) == sorted([*policy_names(), "BELADY"])


def test_a_policy_is_made_by_its_declared_name():
    assert [create_policy(name, Lookahead()).name for name in policy_names()] == policy_names()


def test_a_policy_hears_of_the_lookahead_that_it_was_made_with():
    lookahead = Lookahead()
    assert all(create_policy(name, lookahead).lookahead is lookahead for name in policy_names())


@pytest.mark.parametrize("name", ["BELADY", "lru", ""])
def test_an_unknown_name_is_refused_with_those_there_are(name):
    with pytest.raises(UnknownPolicy, match=f"'{name}'; there are {', '.join(policy_names())}") as refused:
        create_policy(name, Lookahead())
    assert refused.value.param == "policy"


def test_only_the_baseline_keeps_nothing():
    assert [name for name in policy_names() if not create_policy(name, Lookahead()).keeps] == ["NONE"]


# Formulas. All documents have one token, except for capitals, which have two.


def linear(cached: int, new: int) -> float:
    """One second a token, whatever stands in front."""
    return float(new)


def quadratic(cached: int, new: int) -> float:
    """A token costs the more the more stands in front of it: (cached + new)² − cached²."""
    return float((cached + new) ** 2 - cached**2)


def tree_of(name, gpu, host=0, cost=linear, instances=("one",)) -> KnowledgeTree:
    return KnowledgeTree(create_policy(name, Lookahead()), Capacities(gpu, host), instances, cost)


def ask(tree: KnowledgeTree, path: str, instance: str = "one") -> Grant:
    documents = [PathDocument(content, 2 if content.isupper() else 1) for content in path]
    grant = tree.grant(path, NAMESPACE, documents, path_keys(NAMESPACE, path), 0, instance, 0.0)
    tree.settle(grant, kept=True)
    return grant


def evicted_by(tree: KnowledgeTree, path: str, tier: Tier = Tier.GPU) -> str:
    """The documents that leave a tier when a path is asked for, in the order in which they go."""
    contents = {key.hex(): node.content for key, node in tree.nodes.items()}
    moves: list[Move] = ask(tree, path).moves
    return "".join(contents[move.node] for move in moves if move.source is tier and move.evict)


def priority(tree: KnowledgeTree, path: str, tier: Tier = Tier.GPU) -> float:
    node = tree.nodes[path_keys(NAMESPACE, path)[-1]]
    copy = node.copies[tree.placement.place(tier, "one")]
    return tree.policy.current(copy)


def wait(tree: KnowledgeTree, *paths: str) -> None:
    for path in paths:
        tree.policy.lookahead.enter(f"waits for {path}", path_keys(NAMESPACE, path))


def test_none_keeps_nothing_of_any_path():
    tree = tree_of("NONE", 10, 10)
    assert [ask(tree, path).steps[0].kept for path in ["ab", "ab", "a"]] == [None, None, None]
    assert not tree.nodes


def test_lru_evicts_what_was_not_used_for_longest():
    #  request   a  b  c  a        used last: b in 2, c in 3, a in 4
    tree = tree_of("LRU", 3)
    for path in "abca":
        ask(tree, path)
    assert [evicted_by(tree, path) for path in "defg"] == ["b", "c", "a", "d"]


def test_lru_keeps_a_parent_that_was_used_for_its_child():
    # a, then ab uses a again in 3, after b on its own in 2. The child goes before the parent, both used in 3.
    tree = tree_of("LRU", 3)
    for path in ["a", "b", "ac"]:
        ask(tree, path)
    assert [evicted_by(tree, path) for path in "def"] == ["b", "c", "a"]


def test_lfu_evicts_the_least_frequent_and_of_equals_the_least_recent():
    #  request   a  a  a  b  c  c  b        frequency: a 3, b 2, c 2; c used in 6, b in 7
    tree = tree_of("LFU", 3)
    for path in "aaabccb":
        ask(tree, path)
    # d, e and f come with frequency 1 and are the least frequent from then on: a stays for ever.
    assert [evicted_by(tree, path) for path in "def"] == ["c", "d", "e"]
    # f is asked for twice more: f 3, b 2. Now b goes, and then the newcomer again.
    assert [evicted_by(tree, path) for path in "ffgh"] == ["", "", "b", "g"]


def test_gdsf_lets_a_frequent_document_age():
    # Priority = Clock + Frequency.  a a a: 0 + 3.  b: 0 + 1.
    tree = tree_of("GDSF", 2)
    for path in "aaab":
        ask(tree, path)
    assert (priority(tree, "a"), priority(tree, "b")) == (3.0, 1.0)
    # c drives b (1) out: Clock 1, c 1 + 1 = 2.  d drives c (2) out: Clock 2, d 3.  e: a (3, used in 3) before d (3).
    assert [evicted_by(tree, path) for path in "cde"] == ["b", "c", "a"]
    assert tree.placement.gpu("one").clock == 3.0
    assert priority(tree, "e") == 4.0


def test_gdsf_does_not_ask_what_a_document_costs():
    # b behind a costs 3 for its one token and c only 1, but both were asked for once: the older goes.
    tree = tree_of("GDSF", 3, cost=quadratic)
    for path in ["a", "ab", "c"]:
        ask(tree, path)
    assert evicted_by(tree, "d") == "b"


def test_pgdsf_saves_the_deeper_document_for_what_its_tokens_cost():
    # a: T(0, 1)/1 = 1.  b behind a: T(1, 1)/1 = 2² − 1² = 3.  c: 1.  Priorities: a 1 · 2, b 3 · 1, c 1 · 1.
    tree = tree_of("PGDSF", 3, cost=quadratic)
    for path in ["a", "ab", "c"]:
        ask(tree, path)
    assert [priority(tree, path) for path in ["a", "ab", "c"]] == [2.0, 3.0, 1.0]
    # d drives c out, though b is older: Clock 1, d 1 + 1 = 2.
    assert evicted_by(tree, "d") == "c"
    assert priority(tree, "d") == 2.0
    # e: of the leaves b (3) and d (2) d goes; Clock 2, e 3.  f: b (3, used in 2) before e (3); Clock 3, f 4.
    # g: a is a leaf now and its 2 is the least.
    assert [evicted_by(tree, path) for path in "efg"] == ["d", "b", "a"]


def test_pgdsf_weighs_a_document_by_token_not_by_length():
    # A has two tokens, T(0, 2)/2 = 2; b has one, T(0, 1)/1 = 1, and was used later: b goes.
    tree = tree_of("PGDSF", 3, cost=quadratic)
    for path in "Ab":
        ask(tree, path)
    assert (priority(tree, "A"), priority(tree, "b")) == (2.0, 1.0)
    assert evicted_by(tree, "c") == "b"


@pytest.mark.parametrize(("uses", "victim"), [(4, "d"), (5, "a")])
def test_pgdsf_averages_over_the_requests_that_missed(uses, victim):
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


def test_pgdsf_counts_the_question_among_what_was_computed():
    # One document and a question of one token: T(0, 2)/2 = 2 a token.
    tree = tree_of("PGDSF", 2, cost=quadratic)
    grant = tree.grant("q", NAMESPACE, [PathDocument("a", 1)], path_keys(NAMESPACE, "a"), 1, "one", 0.0)
    tree.settle(grant, kept=True)
    assert priority(tree, "a") == 2.0


def test_pgdsf_has_a_clock_for_each_tier_the_greatest_priority_evicted_there():
    # GPU: 1 token, host: 2. Priorities in the GPU, as all cost 1: a a 2, b, c, d ...
    tree = tree_of("PGDSF", 1, 2)
    gpu, host = tree.placement.gpu("one"), tree.placement.host
    for path in "aa":
        ask(tree, path)
    # b drives a (2) to host, where it is worth 0 + 1 · 2: the host's clock still stands at 0.
    assert evicted_by(tree, "b") == "a"
    assert (gpu.clock, host.clock) == (2.0, 0.0)
    assert (priority(tree, "b"), priority(tree, "a", Tier.HOST)) == (3.0, 2.0)
    # c drives b (3) to host, worth 0 + 1 there.
    ask(tree, "c")
    assert (gpu.clock, host.clock) == (3.0, 0.0)
    assert priority(tree, "b", Tier.HOST) == 1.0
    # d drives c (4) to host, which drives b (1) out though a is older: clocks 4 and 1, c is worth 1 + 1 in host.
    moves = ask(tree, "d").moves
    assert [(move.source, move.target) for move in moves] == [(Tier.HOST, None), (Tier.GPU, Tier.HOST)]
    assert (gpu.clock, host.clock) == (4.0, 1.0)
    assert (priority(tree, "d"), priority(tree, "c", Tier.HOST)) == (5.0, 2.0)
    assert not tree.match(NAMESPACE, "b", "one")
    # A clock is never put back: b (5 + 1) drives d (5) out of the GPU; there a (2) is the host's oldest of its 2s.
    assert evicted_by(tree, "b", Tier.HOST) == "a"
    assert (gpu.clock, host.clock) == (5.0, 2.0)


def test_a_clock_belongs_to_an_instance():
    tree = tree_of("PGDSF", 1, instances=("one", "two"))
    for path in "ab":
        ask(tree, path, "one")
    assert (tree.placement.gpu("one").clock, tree.placement.gpu("two").clock) == (1.0, 0.0)


def test_hybrid_weighs_frequency_by_0_6_and_recency_by_0_4():
    # GPU of 3: each insertion is a third of a turnover, and 0.4/3 = 0.1333. Turnovers count what was there before.
    #   a   0.6 + 0      a   1.2 + 0.1333      b   0.6 + 0.1333      c   0.6 + 0.2667
    tree = tree_of("HYBRID", 3)
    for path in "aabc":
        ask(tree, path)
    assert [priority(tree, path) for path in "abc"] == pytest.approx([4 / 3, 11 / 15, 13 / 15])
    # a's second use is worth 0.6 / 0.1333 = 4.5 insertions. Newcomers are worth, after 3, 4, 5 ... insertions:
    #   d 1.0   e 1.1333   f 1.2667   g 1.4   h 1.5333       so a (1.3333) outlives f and goes before g.
    assert [evicted_by(tree, path) for path in "defghi"] == ["b", "c", "d", "e", "f", "a"]


def test_lacr_keeps_what_a_waiting_request_needs():
    # a 0.2 and waited for: + 0.8.  b 0.2 · 2 = 0.4.  LRU, LFU and every other policy here would let a go.
    tree = tree_of("LACR", 2)
    for path in "abb":
        ask(tree, path)
    wait(tree, "a")
    assert priority(tree, "a") == pytest.approx(1.0)
    assert evicted_by(tree, "c") == "b"
    # Nobody waits for it any more: a 0.2, c 0.2, a is older.
    tree.reconsider(tree.policy.lookahead.leave("waits for a"))
    assert evicted_by(tree, "d") == "a"


@pytest.mark.parametrize(("waiting", "victim"), [("ab", "b"), ("ba", "a")])
def test_lacr_weighs_nearer_requests_more(waiting, victim):
    # The first in line adds 0.8 · 1/1, the second 0.8 · 1/2.
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
def test_lacr_adds_up_all_that_wait_for_a_document(waiting, victim):
    tree = tree_of("LACR", 2)
    for path in "ab":
        ask(tree, path)
    wait(tree, *waiting)
    assert evicted_by(tree, "c") == victim


@pytest.mark.parametrize(("uses", "victim"), [(4, "a"), (6, "b")])
def test_lacr_weighs_past_use_by_0_2(uses, victim):
    # b is used once and waited for: 0.2 + 0.8 = 1.0. a is not waited for: 0.2 · 4 = 0.8, or 0.2 · 6 = 1.2.
    tree = tree_of("LACR", 2)
    for path in "a" * uses + "b":
        ask(tree, path)
    wait(tree, "b")
    assert evicted_by(tree, "c") == victim
