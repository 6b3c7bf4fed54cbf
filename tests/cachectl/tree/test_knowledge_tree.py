"""The knowledge tree's instances and settings."""

import pytest
from controller_integrity import check_integrity
from tree_cases import GPU, HOST, TENANT, ask, begin, found, key, take_pending_moves, tree_of

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy, policy_names
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.errors import ConfigError, UnknownInstance, UnknownPlan


def test_a_removed_instance_takes_its_gpu_and_its_plans_along():
    tree = tree_of(2, 2)
    for path in ("ab", "C"):
        ask(tree, path, "two")
    ask(tree, "d", "one")
    running = begin(tree, "aE", "two")
    staying = begin(tree, "ab", "one")
    assert tree.remove_instance("two") == [running.query_id]
    check_integrity(tree)
    assert running.completed
    assert list(tree.grants.open) == [staying.query_id]
    assert found(tree, "ab", "one") == [HOST, HOST]
    with pytest.raises(UnknownInstance):
        tree.lookup.match(TENANT, "ab", "two")
    with pytest.raises(UnknownPlan):
        tree.grants.complete(running, kept=True)
    tree.grants.complete(staying, kept=True)
    check_integrity(tree)


def test_copies_that_only_a_removed_instance_supported_leave_despite_another_plan():
    # Two was to compute a into its GPU and b into host memory. One's plan for the same path uses neither copy.
    tree = tree_of(1, 1)
    begin(tree, "ab", "two")
    begin(tree, "c", "one")
    naming = begin(tree, "ab", "one")
    assert [(step.source, step.kept) for step in naming.documents] == [(None, None), (None, None)]
    tree.remove_instance("two")
    check_integrity(tree)
    tree.grants.complete(naming, kept=True)
    check_integrity(tree)
    assert tree.tiers.locations[""].host.used == 0


def test_an_instance_added_again_starts_empty_and_without_pending_moves():
    tree = tree_of(2)
    ask(tree, "a", "two")
    tree.delete("a")
    ask(tree, "b", "two")
    tree.remove_instance("two")
    tree.tiers.add_instance("two")
    assert found(tree, "b", "two") == []
    assert tree.tiers.gpu("two").used == 0
    assert take_pending_moves(tree, "two") == []


def test_adding_a_known_instance_changes_nothing():
    tree = tree_of(2)
    ask(tree, "a")
    tree.tiers.add_instance("one")
    assert found(tree, "a") == [GPU]


def test_frequency_counts_uses_in_the_last_window():
    tree = KnowledgeTree(
        create_policy("GDSF", Lookahead()), KvStorage(Capacities(4)), ["one"], TreeCosts(lambda cached, new: 0.0), 10.0
    )

    def frequency_at(now: float) -> float:
        grant = tree.grants.admit("q", TENANT, [PathDocument("a", 1)], path_keys(TENANT, "a"), 0, "one", now)
        tree.grants.complete(grant, kept=True)
        return tree.registry.nodes[key("a")].frequency

    assert [frequency_at(now) for now in (1.0, 2.0, 9.0)] == [1.0, 2.0, 3.0]
    # Two tenths into the next window, eight tenths of the last one still count. A whole window later, none does.
    assert frequency_at(12.0) == pytest.approx(1 + 3 * 0.8)
    assert frequency_at(38.0) == 1.0


@pytest.mark.parametrize("capacities", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
@pytest.mark.parametrize("policy", policy_names())
def test_a_negative_capacity_is_refused(capacities, policy):
    with pytest.raises(ConfigError, match="must not be negative"):
        tree_of(*capacities, policy=policy)


@pytest.mark.parametrize("window_s", [0, -1.0])
def test_a_frequency_window_without_length_is_refused(window_s):
    with pytest.raises(ConfigError, match="window"):
        KnowledgeTree(
            create_policy("LRU", Lookahead()),
            KvStorage(Capacities(1)),
            [],
            TreeCosts(lambda cached, new: 0.0),
            window_s,
        )
