"""FORESIGHT keeps what is used again: through scans, for waiting requests, and across evictions."""

from random import Random, seed

import pytest
from controller_integrity import check_integrity
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_cases import ask, begin, priority, tree_of
from policy_contract import NAMESPACE

from cachectl.nodes.keys import path_keys
from cachectl.policies import create_policy
from cachectl.policies.foresight import Foresight
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.kv import HeldNode
from protocol.tiers import Tier


def foresight_of(gpu: int, host: int = 0, policy: str = "FORESIGHT", instances=("one",)) -> KnowledgeTree:
    return tree_of(policy, gpu, host, instances=instances)


def found(tree: KnowledgeTree, *path: str, tokens: int = 1, instance: str = "one") -> int:
    """Serve a request. Returns the number of documents found."""
    return sum(step.source is not None for step in ask(tree, path, instance, tokens).documents)


def kept(tree: KnowledgeTree, *path: str) -> bool:
    return len(tree.lookup.match(NAMESPACE, path, "one")) == len(path)


def worth(tree: KnowledgeTree, *path: str) -> float:
    return priority(tree, path)


def wait(tree: KnowledgeTree, name: str, *path: str) -> None:
    tree.policy.lookahead.enter(name, path_keys(NAMESPACE, path))


def new_documents(tree: KnowledgeTree, many: int, prefix: str = "once") -> None:
    """Request new documents, once each."""
    for number in range(many):
        found(tree, f"{prefix} {tree.grants.tick} {number}")


def policy_of(tree: KnowledgeTree) -> Foresight:
    assert isinstance(tree.policy, Foresight)
    return tree.policy


# Scans


WORKING = [f"often {number}" for number in range(20)]


def warmed(policy: str) -> KnowledgeTree:
    """A tree with room for 25 documents, after 600 requests for 20 of them and 150 for others."""
    tree = foresight_of(25, policy=policy)
    random = Random(1)
    for _ in range(600):
        found(tree, random.choice(WORKING))
        if random.random() < 0.25:
            new_documents(tree, 1)
    return tree


def found_again(tree: KnowledgeTree) -> float:
    """Request the working set once more. Returns the share that is found."""
    return sum(found(tree, document) for document in WORKING) / len(WORKING)


def test_a_scan_does_not_flush_the_working_set():
    shares = {}
    for policy in ("LRU", "FORESIGHT"):
        tree = warmed(policy)
        new_documents(tree, 200)
        shares[policy] = found_again(tree)
    assert shares["LRU"] == 0
    assert shares["FORESIGHT"] >= 0.9


def test_the_working_set_is_hit_during_a_scan():
    shares = {}
    for policy in ("LRU", "FORESIGHT"):
        tree = warmed(policy)
        hits = 0
        for _ in range(10):
            for document in WORKING:
                # 60 documents come between two uses, more than there is room for.
                new_documents(tree, 3)
                hits += found(tree, document)
        shares[policy] = hits / 200
    # Some are still cached in the first round.
    assert shares["LRU"] < 0.05
    assert shares["FORESIGHT"] >= 0.9


def test_a_new_working_set_is_adopted():
    tree = warmed("FORESIGHT")
    others = [f"other {number}" for number in range(20)]
    random = Random(2)
    for _ in range(3000):
        found(tree, random.choice(others))
    assert sum(kept(tree, document) for document in others) >= 18


# Lookahead


@pytest.mark.parametrize("host", [0, 3])
def test_a_document_that_a_waiting_request_needs_is_kept(host):
    tree = foresight_of(3, host)
    found(tree, "needed")
    wait(tree, "waiting", "needed")
    new_documents(tree, 200)
    for _ in range(50):
        found(tree, "popular"), found(tree, "also popular"), found(tree, "popular too")
    assert [copy.cache.tier for copy in tree.lookup.match(NAMESPACE, ["needed"], "one")] == [Tier.GPU]
    assert found(tree, "needed") == 1


def test_a_path_that_a_waiting_request_needs_is_kept():
    tree = foresight_of(3)
    found(tree, "a", "b")
    wait(tree, "waiting", "a", "b")
    new_documents(tree, 100)
    assert kept(tree, "a", "b")


def test_the_document_needed_soonest_is_worth_most():
    tree = foresight_of(5)
    for document in "abcd":
        found(tree, document)
    for document in "bac":
        wait(tree, f"waits for {document}", document)
    assert worth(tree, "b") > worth(tree, "a") > worth(tree, "c") > worth(tree, "d")


def test_a_document_returns_to_its_worth_when_no_request_waits_for_it():
    tree = foresight_of(5)
    found(tree, "a")
    before = worth(tree, "a")
    wait(tree, "waiting", "a")
    assert worth(tree, "a") > before
    tree.reconsider(tree.policy.lookahead.leave("waiting"))
    assert worth(tree, "a") == before


# Priorities


def test_a_document_is_worth_less_the_longer_it_is_unused():
    tree = foresight_of(100)
    found(tree, "a")
    seen = [worth(tree, "a")]
    for _ in range(5):
        new_documents(tree, 10)
        seen.append(worth(tree, "a"))
    assert seen == sorted(seen, reverse=True)
    assert seen[0] > seen[-1]


def test_a_document_with_a_higher_cost_per_token_is_worth_more():
    # 9 s per request and 1 s per token, so a token of a short document costs more.
    tree = KnowledgeTree(
        create_policy("FORESIGHT", Lookahead()),
        KvStorage(Capacities(100)),
        ["one"],
        TreeCosts(lambda cached, new: 9.0 + new),
    )
    found(tree, "short", tokens=1)
    found(tree, "long", tokens=9)
    assert worth(tree, "short") > worth(tree, "long")


@pytest.mark.parametrize("composes", [True, False])
def test_a_document_that_another_node_could_donate_is_worth_less_where_prompts_are_composed(composes):
    tree = KnowledgeTree(
        create_policy("FORESIGHT", Lookahead()),
        KvStorage(Capacities(100)),
        ["one"],
        TreeCosts(lambda cached, new: float(new)),
        composes=composes,
    )
    found(tree, "a", "x")
    alone = worth(tree, "a", "x")
    found(tree, "b", "x")
    both = worth(tree, "a", "x")
    assert both < alone - 1.0 if composes else both > alone - 1.0
    # Once it is the only one again, it is worth as much as before, but for the time that has passed.
    tree.delete("b", NAMESPACE)
    assert worth(tree, "a", "x") > alone - 1.0


def test_a_newcomer_of_low_worth_is_not_kept():
    tree = foresight_of(2)
    for _ in range(20):
        found(tree, "a"), found(tree, "b")
    assert begin(tree, ["newcomer"]).documents[0].kept is None
    assert kept(tree, "a")
    assert kept(tree, "b")


def test_an_evicted_path_that_returns_is_worth_more_than_a_new_one():
    tree = foresight_of(2)
    for _ in range(10):
        found(tree, "back")
    while kept(tree, "back"):
        for _ in range(5):
            found(tree, "a"), found(tree, "b")
    assert path_keys(NAMESPACE, ["back"])[0] not in tree.registry.nodes
    # With room again, both are kept. Only the history tells them apart.
    tree.clear()
    found(tree, "new")
    found(tree, "back")
    new = worth(tree, "new")
    tree.clear()
    found(tree, "back")
    found(tree, "another")
    assert worth(tree, "back") > max(new, worth(tree, "another"))


def test_a_document_popular_on_other_paths_is_worth_more_than_an_unknown_one():
    tree = foresight_of(1000)
    random = Random(3)
    # Common documents are requested again in second place, rare ones never are.
    for number in range(1500):
        found(tree, f"first {random.randrange(40)}", f"common {random.randrange(3)}")
        found(tree, f"first {random.randrange(40)}", f"rare {number}")
    found(tree, "unseen", "common 1")
    found(tree, "unseen", "rare and new")
    assert worth(tree, "unseen", "common 1") > worth(tree, "unseen", "rare and new")


def test_a_restored_document_is_kept_while_there_is_room_and_evicted_first():
    tree = foresight_of(3)
    assert tree.insert(HeldNode(NAMESPACE, ("restored",), 1), tree.tiers.gpu("one"))
    assert kept(tree, "restored")
    found(tree, "a"), found(tree, "b")
    assert kept(tree, "restored")
    found(tree, "c")
    assert not kept(tree, "restored")
    check_integrity(tree)


# Determinism


def decisions(salt: int) -> list[tuple]:
    # Seeding the global generator must make no difference.
    seed(salt)
    tree = foresight_of(30, 40)
    random = Random(4)
    seen = []
    for _ in range(800):
        grant = begin(tree, [f"{int(random.paretovariate(0.6)) % 200}", f"{int(random.paretovariate(1))}"])
        tree.grants.complete(grant, kept=True, unwritten=())
        seen.append((grant.documents, grant.moves))
    return seen


def test_the_same_requests_give_the_same_decisions():
    assert decisions(1) == decisions(2)


# Memory


def test_the_horizon_is_a_share_of_the_time_in_which_misses_fill_all_tiers():
    tree = foresight_of(600, 400)
    new_documents(tree, 100)
    # One token per request and room for 1,000 tokens: a fifth of 1,000 requests.
    assert policy_of(tree)._horizon == pytest.approx(200)


def test_the_horizon_has_a_minimum():
    tree = foresight_of(10)
    new_documents(tree, 100)
    assert policy_of(tree)._horizon == 32


def examples_and_histories_after(requests, room: int) -> tuple[int, int]:
    """The numbers of open examples and of histories after these requests."""
    tree = foresight_of(room)
    for path in requests:
        found(tree, *path)
    policy = policy_of(tree)
    return len(policy._waiting), len(policy._histories)


def test_memory_is_bounded_by_the_tree_and_not_by_the_requests():
    waiting, histories = examples_and_histories_after(([f"{number}", f"{number} too"] for number in range(3000)), 100)
    assert histories <= 100 + max(500, 2 * 100) + 2
    assert waiting <= 2 * histories


def test_long_requests_leave_no_backlog_of_examples():
    # Thirty documents per request, as in traces of conversations.
    waiting, histories = examples_and_histories_after(
        ([f"{number} {depth}" for depth in range(30)] for number in range(600)), 30
    )
    assert waiting <= histories


def test_traffic_without_misses_leaves_no_backlog_of_examples():
    # Fifty documents in a tree with room for a thousand: no misses after the first, and no evictions.
    random = Random(5)
    waiting, histories = examples_and_histories_after(([f"{random.randrange(50)}"] for _ in range(3000)), 1000)
    assert histories == 50
    assert waiting <= 2 * histories + 64


def test_tree_and_histories_agree_on_resident_paths():
    tree = foresight_of(8, 8)
    random = Random(6)
    for _ in range(400):
        found(tree, *[f"{int(random.paretovariate(0.8)) % 30}" for _ in range(3)])
        histories = policy_of(tree)._histories
        residents = {history.key for history in histories._table if history.resident}
        assert residents == set(tree.registry.nodes)
        assert all(node.history is histories.get(key) for key, node in tree.registry.nodes.items())
    tree.clear()
    assert not any(history.resident for history in policy_of(tree)._histories._table)


def test_a_document_deleted_in_use_and_stored_again_is_resident_once():
    tree = foresight_of(10)
    found(tree, "a")
    old = begin(tree, ["a"])
    tree.delete("a")
    found(tree, "a")
    assert not kept(tree, "a")
    tree.grants.complete(old, kept=True, unwritten=())
    found(tree, "a")
    history = policy_of(tree)._histories.get(path_keys(NAMESPACE, ["a"])[0])
    assert history.resident
    assert kept(tree, "a")
    tree.clear()
    assert not history.resident
    assert (history.uses, len(policy_of(tree)._histories)) == (4, 1)
    check_integrity(tree)


@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4), min_size=1, max_size=60),
    st.integers(0, 6),
    st.integers(0, 6),
)
@settings(max_examples=examples(50), deadline=None)
def test_two_instances_with_repeated_documents_keep_integrity(paths, gpu, host):
    tree = foresight_of(gpu, host, instances=("one", "two"))
    for number, path in enumerate(paths):
        found(tree, *path, instance=("one", "two")[number % 2])
        check_integrity(tree)
    residents = {history.key for history in policy_of(tree)._histories._table if history.resident}
    assert residents == set(tree.registry.nodes)
