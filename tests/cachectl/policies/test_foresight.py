"""FORESIGHT keeps what is used again: through scans, for the requests that wait, and across evictions."""

from random import Random, seed

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.comparison import PolicyBenchmark
from benchmarks.simulation.simulator import SimulatedService
from benchmarks.workloads.synthetic import SyntheticSettings, SyntheticWorkload
from cachectl.costs.device_profile import DeviceProfile
from cachectl.policies import create_policy
from cachectl.policies.foresight import Foresight
from cachectl.policies.lookahead import Lookahead
from cachectl.tree.grant import Grant
from cachectl.tree.integrity import check_integrity
from cachectl.tree.keys import path_keys
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.node import PathDocument
from cachectl.tree.tier_manager import Capacities
from protocol.kv import HeldNode
from protocol.tiers import Tier

NAMESPACE = "tenant"


def a_second_a_token(cached: int, new: int) -> float:
    return float(new)


def tree_of(gpu: int, host: int = 0, policy: str = "FORESIGHT", instances=("one",)) -> KnowledgeTree:
    return KnowledgeTree(create_policy(policy, Lookahead()), Capacities(gpu, host), instances, a_second_a_token)


def begin(tree: KnowledgeTree, path, tokens: int = 1, instance: str = "one") -> Grant:
    documents = [PathDocument(content, tokens) for content in path]
    return tree.grants.admit(str(tree.grants.tick), NAMESPACE, documents, path_keys(NAMESPACE, path), 0, instance, 0.0)


def ask(tree: KnowledgeTree, *path: str, tokens: int = 1, instance: str = "one") -> int:
    """Serve a request; the documents that it finds."""
    grant = begin(tree, path, tokens, instance)
    tree.grants.complete(grant, kept=True)
    return sum(step.source is not None for step in grant.documents)


def kept(tree: KnowledgeTree, *path: str) -> bool:
    return len(tree.lookup.match(NAMESPACE, path, "one")) == len(path)


def worth(tree: KnowledgeTree, *path: str) -> float:
    """What the last document of a path in the tree is worth now."""
    [copy, *_] = tree.registry.nodes[path_keys(NAMESPACE, path)[-1]].copies.values()
    return tree.policy.current(copy)


def wait(tree: KnowledgeTree, name: str, *path: str) -> None:
    tree.policy.lookahead.enter(name, path_keys(NAMESPACE, path))


def ever_new(tree: KnowledgeTree, many: int, prefix: str = "once") -> None:
    """Documents that are asked for once each."""
    for number in range(many):
        ask(tree, f"{prefix} {tree.grants.tick} {number}")


def policy_of(tree: KnowledgeTree) -> Foresight:
    assert isinstance(tree.policy, Foresight)
    return tree.policy


# Scans


WORKING = [f"often {number}" for number in range(20)]


def warmed(policy: str) -> KnowledgeTree:
    """A tree with room for 25 documents, after 600 requests for 20 of them, and one in four for something else."""
    tree = tree_of(25, policy=policy)
    random = Random(1)
    for _ in range(600):
        ask(tree, random.choice(WORKING))
        if random.random() < 0.25:
            ever_new(tree, 1)
    return tree


def found(tree: KnowledgeTree) -> float:
    """The share of the working set that is asked for once more and found."""
    return sum(ask(tree, document) for document in WORKING) / len(WORKING)


def test_a_scan_does_not_flush_what_is_used_again():
    shares = {}
    for policy in ("LRU", "FORESIGHT"):
        tree = warmed(policy)
        ever_new(tree, 200)
        shares[policy] = found(tree)
    assert shares["LRU"] == 0
    assert shares["FORESIGHT"] >= 0.9


def test_hits_go_on_during_a_scan():
    shares = {}
    for policy in ("LRU", "FORESIGHT"):
        tree = warmed(policy)
        hits = 0
        for _ in range(10):
            for document in WORKING:
                # Twenty times three documents come between two uses: more than there is room for.
                ever_new(tree, 3)
                hits += ask(tree, document)
        shares[policy] = hits / 200
    # In the first round some are there yet.
    assert shares["LRU"] < 0.05
    assert shares["FORESIGHT"] >= 0.9


def test_a_working_set_that_changes_is_taken_in():
    tree = warmed("FORESIGHT")
    others = [f"other {number}" for number in range(20)]
    random = Random(2)
    for _ in range(3000):
        ask(tree, random.choice(others))
    assert sum(kept(tree, document) for document in others) >= 18


# What waits


@pytest.mark.parametrize("host", [0, 3])
def test_what_a_waiting_request_needs_survives(host):
    tree = tree_of(3, host)
    ask(tree, "needed")
    wait(tree, "waiting", "needed")
    ever_new(tree, 200)
    for _ in range(50):
        ask(tree, "popular"), ask(tree, "also popular"), ask(tree, "popular too")
    assert [copy.cache.tier for copy in tree.lookup.match(NAMESPACE, ["needed"], "one")] == [Tier.GPU]
    assert ask(tree, "needed") == 1


def test_a_whole_path_survives_that_a_waiting_request_needs():
    tree = tree_of(3)
    ask(tree, "a", "b")
    wait(tree, "waiting", "a", "b")
    ever_new(tree, 100)
    assert kept(tree, "a", "b")


def test_of_what_waiting_requests_need_the_nearest_is_worth_most():
    tree = tree_of(5)
    for document in "abcd":
        ask(tree, document)
    for document in "bac":
        wait(tree, f"waits for {document}", document)
    assert worth(tree, "b") > worth(tree, "a") > worth(tree, "c") > worth(tree, "d")


def test_what_nobody_waits_for_any_more_is_worth_what_it_was():
    tree = tree_of(5)
    ask(tree, "a")
    before = worth(tree, "a")
    wait(tree, "waiting", "a")
    assert worth(tree, "a") > before
    tree.reconsider(tree.policy.lookahead.leave("waiting"))
    assert worth(tree, "a") == before


# What a document is worth


def test_a_document_is_worth_less_the_longer_nobody_asks_for_it():
    tree = tree_of(100)
    ask(tree, "a")
    seen = [worth(tree, "a")]
    for _ in range(5):
        ever_new(tree, 10)
        seen.append(worth(tree, "a"))
    assert seen == sorted(seen, reverse=True)
    assert seen[0] > seen[-1]


def test_a_document_that_costs_more_by_the_token_is_worth_more():
    # Nine seconds a request, and a second a token: a short document pays the request's share alone.
    tree = KnowledgeTree(
        create_policy("FORESIGHT", Lookahead()), Capacities(100), ["one"], lambda cached, new: 9.0 + new
    )
    ask(tree, "short", tokens=1)
    ask(tree, "long", tokens=9)
    assert worth(tree, "short") > worth(tree, "long")


def test_a_newcomer_that_is_worth_no_more_is_not_kept():
    tree = tree_of(2)
    for _ in range(20):
        ask(tree, "a"), ask(tree, "b")
    assert begin(tree, ["newcomer"]).documents[0].kept is None
    assert kept(tree, "a")
    assert kept(tree, "b")


def test_a_path_that_was_evicted_and_is_back_is_worth_more_than_a_new_one():
    tree = tree_of(2)
    for _ in range(10):
        ask(tree, "back")
    while kept(tree, "back"):
        for _ in range(5):
            ask(tree, "a"), ask(tree, "b")
    assert path_keys(NAMESPACE, ["back"])[0] not in tree.registry.nodes
    # With room again, both are kept: only what was remembered tells them apart.
    tree.clear()
    ask(tree, "new")
    ask(tree, "back")
    new = worth(tree, "new")
    tree.clear()
    ask(tree, "back")
    ask(tree, "another")
    assert worth(tree, "back") > max(new, worth(tree, "another"))


def test_a_document_that_is_popular_elsewhere_may_be_told_from_one_that_nobody_knows():
    tree = tree_of(1000)
    random = Random(3)
    # Whatever stands second is asked for again if it is common, and never if it is not.
    for number in range(1500):
        ask(tree, f"first {random.randrange(40)}", f"common {random.randrange(3)}")
        ask(tree, f"first {random.randrange(40)}", f"rare {number}")
    ask(tree, "unseen", "common 1")
    ask(tree, "unseen", "rare and new")
    assert worth(tree, "unseen", "common 1") > worth(tree, "unseen", "rare and new")


def test_what_came_from_a_restart_is_kept_while_there_is_room_and_goes_first():
    tree = tree_of(3)
    assert tree.insert(HeldNode(NAMESPACE, ("restored",), 1), Tier.GPU, "one")
    assert kept(tree, "restored")
    ask(tree, "a"), ask(tree, "b")
    assert kept(tree, "restored")
    ask(tree, "c")
    assert not kept(tree, "restored")
    check_integrity(tree)


# The same again


def decisions(salt: int) -> list[tuple]:
    # The random numbers of others make no difference.
    seed(salt)
    tree = tree_of(30, 40)
    random = Random(4)
    seen = []
    for _ in range(800):
        grant = begin(tree, [f"{int(random.paretovariate(0.6)) % 200}", f"{int(random.paretovariate(1))}"])
        tree.grants.complete(grant, kept=True)
        seen.append((grant.documents, grant.moves))
    return seen


def test_the_same_requests_give_the_same_decisions():
    assert decisions(1) == decisions(2)


# Against others


def test_it_finds_more_tokens_than_pgdsf_on_zipfs_law():
    # The margin is 8 to 15 % with other seeds, and 15 % with this one.
    workload = SyntheticWorkload(
        "zipf", SyntheticSettings(requests=6000, documents=2000, top_k=2, mean_tokens=500, alpha=0.9), seed=1
    )
    benchmark = PolicyBenchmark(DeviceProfile.shipped("a10g-7b"), Capacities(100_000), SimulatedService())
    foresight, pgdsf = (benchmark.simulate(workload, name, lambda *_: None) for name in ("FORESIGHT", "PGDSF"))
    assert foresight.token_hit_rate >= 1.05 * pgdsf.token_hit_rate
    assert foresight.mean_ttft_s < pgdsf.mean_ttft_s


# What it remembers


def test_soon_is_a_share_of_the_time_in_which_misses_fill_all_places():
    tree = tree_of(600, 400)
    ever_new(tree, 100)
    # A token a request, and room for 1,000 tokens: a fifth of 1,000 requests.
    assert policy_of(tree)._horizon == pytest.approx(200)


def test_soon_is_not_shorter_than_some_requests():
    tree = tree_of(10)
    ever_new(tree, 100)
    assert policy_of(tree)._horizon == 32


def expectations_after(requests, room: int) -> tuple[int, int]:
    """What waits to be learnt from, and paths remembered, after these requests."""
    tree = tree_of(room)
    for path in requests:
        ask(tree, *path)
    policy = policy_of(tree)
    return len(policy._waiting), len(policy._histories)


def test_what_it_remembers_goes_with_the_tree_and_not_with_the_requests():
    waiting, histories = expectations_after(([f"{number}", f"{number} too"] for number in range(3000)), 100)
    assert histories <= 100 + max(500, 2 * 100) + 2
    assert waiting <= 2 * histories


def test_long_requests_do_not_expect_more_than_is_learnt_from():
    # Thirty documents a request, as in traces of conversations.
    waiting, histories = expectations_after(([f"{number} {cache}" for cache in range(30)] for number in range(600)), 30)
    assert waiting <= histories


def test_traffic_that_fits_does_not_pile_up_expectations():
    # Fifty documents in a tree that has room for a thousand: nothing is missed any more, and nothing is evicted.
    random = Random(5)
    waiting, histories = expectations_after(([f"{random.randrange(50)}"] for _ in range(3000)), 1000)
    assert histories == 50
    assert waiting <= 2 * histories + 64


def test_the_tree_and_the_histories_agree_on_who_is_resident():
    tree = tree_of(8, 8)
    random = Random(6)
    for _ in range(400):
        ask(tree, *[f"{int(random.paretovariate(0.8)) % 30}" for _ in range(3)])
        histories = policy_of(tree)._histories
        residents = {history.key for history in histories._table if history.resident}
        assert residents == set(tree.registry.nodes)
        assert all(node.history is histories.get(key) for key, node in tree.registry.nodes.items())
    tree.clear()
    assert not any(history.resident for history in policy_of(tree)._histories._table)


def test_a_document_that_was_deleted_in_use_and_came_back_is_resident_once():
    tree = tree_of(10)
    ask(tree, "a")
    old = begin(tree, ["a"])
    tree.delete("a")
    ask(tree, "a")
    assert not kept(tree, "a")
    tree.grants.complete(old, kept=True)
    ask(tree, "a")
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
@settings(max_examples=50, deadline=None)
def test_two_instances_with_repeated_documents_hold_together(paths, gpu, host):
    tree = tree_of(gpu, host, instances=("one", "two"))
    for number, path in enumerate(paths):
        ask(tree, *path, instance=("one", "two")[number % 2])
        check_integrity(tree)
    residents = {history.key for history in policy_of(tree)._histories._table if history.resident}
    assert residents == set(tree.registry.nodes)
