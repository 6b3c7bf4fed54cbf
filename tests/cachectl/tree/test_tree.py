"""The knowledge tree: what it finds, keeps, evicts, pins and drops, and that its orders make tiers what it believes.

Documents are letters here and paths are words. A small letter has one token, a capital has two.
"""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cachectl.nodes.keys import child_key, path_keys, root_key
from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy, policy_names
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.replication import REPLICATED_USES
from cachectl.tiers.tier_manager import Capacities
from cachectl.tree.grant import Grant
from cachectl.tree.integrity import check_integrity
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.restore import restore
from protocol.errors import ConfigError, InvalidRequest, PinRefused, UnknownInstance, UnknownNode, UnknownPlan
from protocol.kv import HeldNode, Move, ResidencyReport
from protocol.tiers import Tier

TENANT = "tenant"
GPU, HOST, DISK = Tier


def tree_of(gpu, host=0, disk=0, policy="LRU", instances=("one", "two")) -> KnowledgeTree:
    return KnowledgeTree(
        create_policy(policy, Lookahead()),
        Capacities(gpu, host, disk),
        instances,
        lambda cached, new: 0.01 + new * (1 + cached / 10),
    )


def tokens_of(content: str) -> int:
    return 2 if content.isupper() else 1


def begin(tree, path, instance="one", namespace=TENANT, pinned=0) -> Grant:
    """A plan for a path, under way."""
    documents = [PathDocument(content, tokens_of(content)) for content in path]
    query_id = f"query {tree.grants.tick}"
    return tree.grants.admit(
        query_id, namespace, documents, path_keys(namespace, path), 1, instance, float(tree.grants.tick), pinned
    )


def ask(tree, path, instance="one", namespace=TENANT, pinned=0) -> Grant:
    """A plan for a path, done."""
    grant = begin(tree, path, instance, namespace, pinned)
    tree.grants.complete(grant, kept=True)
    check_integrity(tree)
    return grant


def found(tree, path, instance="one", namespace=TENANT) -> list[Tier]:
    """Where the cached prefix of a path lies, document by document."""
    return [copy.cache.tier for copy in tree.lookup.match(namespace, path, instance)]


def key(path, namespace=TENANT) -> bytes:
    return path_keys(namespace, path)[-1]


def move(path, source, target, instance=None, evict=True, namespace=TENANT) -> Move:
    return Move(key(path, namespace).hex(), tokens_of(path[-1]), source, target, instance, evict)


def orders(tree, instance="one") -> list[Move]:
    """What waits for an instance to be carried out; a request for nothing collects it."""
    return ask(tree, "", instance).moves


def saves(grant) -> set[tuple[bytes, Tier]]:
    """What a plan has to save, and where."""
    return {(step.key, step.kept) for step in grant.documents if step.kept is not None and step.kept is not step.source}


def dump(tree) -> dict:
    """All that a tree knows, as plain data."""
    caches = {cache: (cache.tier, cache.instance) for cache in tree.tiers}
    nodes = {}
    for node in [*tree.registry.nodes.values(), *tree.registry.detached]:
        copies = {
            caches[cache]: (copy.held, copy.priority, copy.entered, bool(copy.ticket))
            for cache, copy in node.copies.items()
        }
        nodes[node.key, node.detached] = {
            "copies": copies,
            "children": sorted(node.children),
            "below": {caches[cache]: count for cache, count in node.below.items()},
            **{name: getattr(node, name) for name in ("content", "tokens", "locks", "pins", "frequency", "accesses")},
            **{name: getattr(node, name) for name in ("last_access", "average_cost", "computations", "prefix_tokens")},
        }
    return {
        "tick": tree.grants.tick,
        "roots": sorted(tree.registry.roots),
        "contents": {content: len(nodes) for content, nodes in tree.registry.by_content.items()},
        "nodes": nodes,
        "caches": {
            name: (cache.used, cache.copies, cache.clock, cache.inserted_tokens, cache.evictions, cache.pinned_tokens)
            for cache, name in caches.items()
        },
        "grants": {
            query_id: (grant.documents[:], grant.moves[:], len(grant.locked), len(grant.reserved), grant.completed)
            for query_id, grant in tree.grants.open.items()
        },
        "orders": list(tree.tiers.pending_moves),
    }


# Matching


def test_a_match_is_the_longest_prefix_of_the_path():
    tree = tree_of(10)
    ask(tree, "abc")
    assert [copy.node.key for copy in tree.lookup.match(TENANT, "abxc", "one")] == path_keys(TENANT, "ab")
    assert found(tree, "abcd") == [GPU] * 3
    assert found(tree, "bc") == found(tree, "ba") == found(tree, "") == []


def test_the_same_documents_in_another_order_are_other_nodes():
    tree = tree_of(10)
    for path in ("ab", "ba"):
        assert [step.source for step in ask(tree, path).documents] == [None, None]
    assert len(tree.registry.nodes) == 4


def test_a_document_may_stand_in_a_path_twice():
    tree = tree_of(10)
    ask(tree, "aa")
    assert found(tree, "aaa") == [GPU, GPU]
    assert tree.delete("a") == 2
    check_integrity(tree)


def test_a_key_depends_on_namespace_and_on_all_that_stands_in_front():
    keys = {key(path, namespace) for path in ("b", "ab", "aab") for namespace in ("x", "y")}
    assert len(keys) == 6
    assert path_keys("x", "ab") == [
        child_key(root_key("x"), "a"),
        child_key(child_key(root_key("x"), "a"), "b"),
    ]


def test_an_instance_finds_its_own_gpu_and_the_shared_tiers_but_no_other_gpu():
    tree = tree_of(2, 2)
    ask(tree, "ab", "one")
    assert found(tree, "ab", "two") == []
    ask(tree, "C", "one")
    assert found(tree, "ab", "one") == found(tree, "ab", "two") == [HOST, HOST]


def test_a_match_names_the_fastest_copy_that_the_instance_can_use():
    tree = tree_of(1, 2)
    for path in "aba":
        ask(tree, path, "one")
    assert found(tree, "a", "one") == [GPU]
    assert found(tree, "a", "two") == [HOST]


def test_a_match_looks_up_each_document_of_the_path_once_however_wide_the_tree_is():
    class Content(str):
        def __hash__(self):
            lookups.append(str(self))
            return super().__hash__()

        def __eq__(self, other):
            compared.append(other)
            return super().__eq__(other)

    tree = tree_of(10_000)
    for number in range(500):
        ask(tree, "abc" + chr(0x1000 + number))
        ask(tree, chr(0x1000 + number))
    lookups: list[str] = []
    compared: list[str] = []
    path = [*"abc", chr(0x1000)]
    assert len(tree.lookup.match(TENANT, [Content(content) for content in path], "one")) == 4
    assert lookups == path
    # Siblings are not walked over: whom a document is compared with has its hash.
    assert compared == path


def test_a_match_changes_nothing():
    tree = tree_of(2, 2)
    for path in ("ab", "C"):
        ask(tree, path)
    before = dump(tree)
    tree.lookup.match(TENANT, "abC", "one")
    tree.lookup.match("nobody", "a", "one")
    assert dump(tree) == before


def test_namespaces_never_find_each_others_documents():
    tree = tree_of(10, 10)
    ask(tree, "ab", namespace="x")
    assert found(tree, "ab", namespace="x") == [GPU, GPU]
    assert found(tree, "ab", namespace="y") == []
    assert [step.source for step in ask(tree, "ab", namespace="y").documents] == [None, None]


def test_a_namespace_is_forgotten_with_its_last_node():
    tree = tree_of(1)
    ask(tree, "a", namespace="x")
    ask(tree, "a", namespace="y")
    assert list(tree.registry.roots) == ["y"]
    tree.grants.complete(begin(tree, "b", namespace="z"), kept=False)
    assert not tree.registry.roots


# Plans


def test_a_plan_says_where_each_document_comes_from_and_where_it_is_kept():
    tree = tree_of(2, 2)
    for path in ("ab", "C"):
        ask(tree, path)
    grant = begin(tree, "abD")
    # a and b are loaded from host into the GPU, which C leaves for them. Nothing has room for D then: the GPU holds
    # what the plan itself uses, and host has a and b.
    assert [(step.tokens, step.source, step.kept) for step in grant.documents] == [
        (1, HOST, GPU),
        (1, HOST, GPU),
        (2, None, None),
    ]
    assert [step.key for step in grant.documents] == path_keys(TENANT, "abD")


def test_what_does_not_fit_the_gpu_is_kept_in_the_next_tier_that_takes_it():
    tree = tree_of(1, 1, 2)
    assert [step.kept for step in ask(tree, "abcde").documents] == [GPU, HOST, DISK, DISK, None]


def test_nothing_is_kept_behind_what_is_not_kept():
    tree = tree_of(1)
    assert [step.kept for step in ask(tree, "Ab").documents] == [None, None]
    assert not tree.registry.nodes


def test_what_a_plan_will_compute_is_not_found_before_it_is_settled():
    tree = tree_of(2, 2)
    grant = begin(tree, "ab")
    assert tree.tiers.gpu("one").used == 2
    assert found(tree, "ab") == []
    tree.grants.complete(grant, kept=True)
    assert found(tree, "ab") == [GPU, GPU]


def test_two_plans_that_compute_the_same_documents_keep_one_copy_each_in_another_place():
    tree = tree_of(2, 2)
    first, second = begin(tree, "ab"), begin(tree, "ab")
    assert [step.source for step in second.documents] == [None, None]
    assert [step.kept for step in first.documents] == [GPU, GPU]
    assert [step.kept for step in second.documents] == [HOST, HOST]
    tree.grants.complete(second, kept=True)
    check_integrity(tree)
    assert found(tree, "ab") == [HOST, HOST]
    tree.grants.complete(first, kept=True)
    check_integrity(tree)
    assert found(tree, "ab") == [GPU, GPU]


@pytest.mark.parametrize("kept", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_plans_that_compute_the_same_documents_each_keeps_only_its_own(kept, order):
    tree = tree_of(2, 2)
    grants = [begin(tree, "ab"), begin(tree, "ab")]
    for index in order:
        tree.grants.complete(grants[index], kept[index])
        check_integrity(tree)
    assert found(tree, "ab") == [tier for tier, is_kept in zip((GPU, HOST), kept, strict=True) if is_kept] * 2


def test_a_third_plan_for_the_same_documents_keeps_nothing_where_both_tiers_are_promised():
    tree = tree_of(2, 2)
    grants = [begin(tree, "ab") for _ in range(3)]
    assert [step.kept for step in grants[2].documents] == [None, None]
    for grant in grants:
        tree.grants.complete(grant, kept=True)
    check_integrity(tree)


def test_a_plan_that_fails_gives_its_room_back():
    tree = tree_of(2, 2)
    ask(tree, "a")
    before = [cache.used for cache in tree.tiers]
    tree.grants.complete(begin(tree, "aBc"), kept=False)
    check_integrity(tree)
    assert [cache.used for cache in tree.tiers] == before
    assert found(tree, "aBc") == [GPU]
    assert not tree.grants.open


def test_a_failed_plan_leaves_the_copy_that_it_would_have_promoted_where_it_was():
    tree = tree_of(1, 2)
    for path in "ab":
        ask(tree, path)
    grant = begin(tree, "a")
    assert (grant.documents[0].source, grant.documents[0].kept) == (HOST, GPU)
    tree.grants.complete(grant, kept=False)
    check_integrity(tree)
    assert found(tree, "a") == [HOST]
    assert tree.tiers.gpu("one").used == 0


def test_what_a_plan_uses_is_not_evicted_until_it_is_settled():
    tree = tree_of(2)
    ask(tree, "ab")
    running = begin(tree, "ab")
    assert [step.kept for step in ask(tree, "C").documents] == [None]
    assert found(tree, "ab") == [GPU, GPU]
    tree.grants.complete(running, kept=True)
    assert [step.kept for step in ask(tree, "C").documents] == [GPU]


def test_a_path_is_locked_whole_before_room_is_made_for_its_end():
    # C needs two tokens; b was used least, but is on the path itself, and d alone is not enough, so d stays as well.
    tree = tree_of(3, policy="GDSF")
    for path in ("ab", "d", "d"):
        ask(tree, path)
    assert ask(tree, "abC").documents[2].kept is None
    assert found(tree, "ab") == [GPU, GPU]
    assert found(tree, "d") == [GPU]


def test_a_plan_saves_only_where_room_was_reserved_for_it():
    # Instance one has a and, behind it, b in host. Two finds neither, for a is in one's GPU; it computes both, and its
    # own GPU has no room. Host gets a; b's copy there is held already, and another plan might be loading it.
    tree = tree_of(1, 2)
    ask(tree, "ab", "one")
    blocking = begin(tree, "c", "two")
    grant = begin(tree, "ab", "two")
    assert [step.source for step in grant.documents] == [None, None]
    assert saves(grant) == {(copy.node.key, copy.cache.tier) for copy in grant.reserved}
    for running in (blocking, grant):
        tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert found(tree, "ab", "two") == [HOST, HOST]


@pytest.mark.parametrize("settled", [True, False])
def test_a_document_that_comes_with_another_length_is_neither_found_nor_kept(settled):
    tree = tree_of(9)
    running = begin(tree, "ab")
    if settled:
        tree.grants.complete(running, kept=True)
    documents = [PathDocument("a", 1), PathDocument("b", 3), PathDocument("c", 1)]
    other = tree.grants.admit("q", TENANT, documents, path_keys(TENANT, "abc"), 0, "one", 0.0)
    assert [step.source for step in other.documents] == [GPU if settled else None, None, None]
    assert [step.kept for step in other.documents] == [GPU if settled else None, None, None]
    tree.grants.complete(other, kept=True)
    check_integrity(tree)
    if not settled:
        tree.grants.complete(running, kept=True)
    assert [copy.node.tokens for copy in tree.lookup.match(TENANT, "abc", "one")] == [1, 1]


def test_a_committed_plan_is_found_while_its_locks_stay():
    tree = tree_of(2)
    running = begin(tree, "ab")
    assert tree.grants.prefilled(running) == key("a")
    check_integrity(tree)
    assert found(tree, "ab") == [GPU, GPU]
    assert [step.kept for step in ask(tree, "C").documents] == [None]
    assert tree.grants.prefilled(running) is None
    # Whatever becomes of the answer, the prefill stays.
    assert tree.grants.complete(running, kept=False) is None
    check_integrity(tree)
    assert found(tree, "ab") == [GPU, GPU]
    assert [step.kept for step in ask(tree, "C").documents] == [GPU]


def test_settling_commits_what_was_not_committed():
    tree = tree_of(4)
    ask(tree, "a")
    running = begin(tree, "abc")
    assert tree.grants.complete(running, kept=True) == key("ab")
    assert found(tree, "abc") == [GPU] * 3


# What cannot be changes nothing


def test_a_plan_is_settled_once():
    tree = tree_of(2, 2)
    grant = ask(tree, "ab")
    begin(tree, "a")
    before = dump(tree)
    for end in (
        tree.grants.prefilled,
        lambda grant: tree.grants.complete(grant, True),
        lambda grant: tree.grants.complete(grant, False),
    ):
        with pytest.raises(UnknownPlan, match="query 0"):
            end(grant)
    assert dump(tree) == before


def test_a_query_holds_one_plan_at_a_time():
    tree = tree_of(2)
    documents, keys = [PathDocument("a", 1)], path_keys(TENANT, "a")
    tree.grants.admit("q", TENANT, documents, keys, 0, "one", 0.0)
    before = dump(tree)
    with pytest.raises(InvalidRequest, match="q has a plan already"):
        tree.grants.admit("q", TENANT, documents, keys, 0, "one", 0.0)
    assert dump(tree) == before


def test_an_unknown_instance_is_refused():
    tree = tree_of(2, 2)
    ask(tree, "ab")
    begin(tree, "aC")
    before = dump(tree)
    for attempt in (
        lambda: tree.lookup.match(TENANT, "ab", "three"),
        lambda: begin(tree, "xy", "three"),
        lambda: tree.remove_instance("three"),
        lambda: tree.insert(HeldNode(TENANT, ("z",), 1), GPU, "three"),
        lambda: tree.insert(HeldNode(TENANT, ("z",), 1), GPU, None),
    ):
        with pytest.raises(UnknownInstance):
            attempt()
    assert dump(tree) == before


@pytest.mark.parametrize("capacities", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
@pytest.mark.parametrize("policy", policy_names())
def test_a_negative_capacity_is_refused(capacities, policy):
    with pytest.raises(ConfigError, match="must not be negative"):
        tree_of(*capacities, policy=policy)


@pytest.mark.parametrize("window_s", [0, -1.0])
def test_a_frequency_window_of_no_length_is_refused(window_s):
    with pytest.raises(ConfigError, match="window"):
        KnowledgeTree(create_policy("LRU", Lookahead()), Capacities(1), [], lambda cached, new: 0.0, window_s)


# Eviction, and what lies in several tiers


def test_evicted_nodes_sink_through_the_tiers_and_leave_the_last():
    tree = tree_of(1, 1, 1)
    moves = [ask(tree, path).moves for path in "abcd"]
    assert moves[:3] == [
        [],
        [move("a", GPU, HOST, "one")],
        [move("a", HOST, DISK), move("b", GPU, HOST, "one")],
    ]
    assert moves[3] == [move("a", DISK, None), move("b", HOST, DISK), move("c", GPU, HOST, "one")]
    assert [found(tree, path) for path in "abcd"] == [[], [DISK], [HOST], [GPU]]


def test_a_node_is_swapped_out_once():
    tree = tree_of(1, 3)
    ask(tree, "a")
    assert ask(tree, "b").moves == [move("a", GPU, HOST, "one")]
    assert ask(tree, "a").moves == [move("b", GPU, HOST, "one")]
    # Host kept a's copy while a was in the GPU again.
    assert ask(tree, "c").moves == [move("a", GPU, None, "one")]
    assert found(tree, "a") == [HOST]


def test_what_another_instance_swapped_out_is_not_copied_again():
    tree = tree_of(1, 2)
    ask(tree, "a", "one")
    ask(tree, "a", "two")
    assert ask(tree, "b", "one").moves == [move("a", GPU, HOST, "one")]
    assert ask(tree, "c", "two").moves == [move("a", GPU, None, "two")]


def test_a_node_that_host_has_no_room_for_is_swapped_to_disk():
    tree = tree_of(2, 1, 2)
    ask(tree, "A")
    assert ask(tree, "B").moves == [move("A", GPU, DISK, "one")]
    assert found(tree, "A") == [DISK]


def test_a_parent_is_not_evicted_before_its_children():
    tree = tree_of(3)
    ask(tree, "abc")
    assert ask(tree, "D").moves == [move("abc", GPU, None, "one"), move("ab", GPU, None, "one")]
    assert found(tree, "abc") == [GPU]


def test_a_parent_may_leave_the_gpu_while_its_child_is_in_host_alone():
    tree = tree_of(1, 2)
    assert [step.kept for step in ask(tree, "ab").documents] == [GPU, HOST]
    assert ask(tree, "c").moves == [move("a", GPU, HOST, "one")]
    assert found(tree, "ab") == [HOST, HOST]


def test_a_parent_that_leaves_takes_the_children_that_it_alone_supported():
    # A lies in the GPU, and b behind it in host, which is too small for A: when A goes, b has nothing to stand on.
    tree = tree_of(2, 1)
    assert [step.kept for step in ask(tree, "Ab").documents] == [GPU, HOST]
    ask(tree, "C")
    assert found(tree, "Ab") == []
    assert list(tree.registry.nodes) == [key("C")]
    assert tree.tiers.host.used == 0


def test_all_that_stood_on_a_parent_that_leaves_is_dropped_before_its_room_is_used():
    # As above, with c on disk behind b, but the plan that drives A out of the GPU also wants the room of both.
    tree = tree_of(2, 1, 1)
    ask(tree, "Abc")
    grant = begin(tree, "Cde")
    assert [step.kept for step in grant.documents] == [GPU, HOST, DISK]
    assert {move("Ab", HOST, None), move("Abc", DISK, None)} <= set(grant.moves)
    tree.grants.complete(grant, kept=True)
    assert orders(tree) == []


def test_a_parent_that_leaves_one_gpu_spares_children_that_another_gpu_supports():
    tree = tree_of(2, 1)
    ask(tree, "Ab", "one")
    ask(tree, "A", "two")
    ask(tree, "C", "one")
    assert found(tree, "Ab", "one") == []
    assert found(tree, "Ab", "two") == [GPU, HOST]


def test_a_document_that_is_larger_than_a_tier_drives_nothing_out_of_it():
    tree = tree_of(1, 1)
    for path in "ab":
        ask(tree, path)
    assert ask(tree, "C").moves == []
    assert [found(tree, path) for path in "ab"] == [[HOST], [GPU]]


# Copies that turn out not to be there


def test_a_copy_that_could_not_be_loaded_goes_with_all_that_only_it_supports():
    tree = tree_of(4)
    for path in ("abc", "ad"):
        ask(tree, path)
    tree.grants.complete(begin(tree, "ab"), kept=True, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert found(tree, "abc") == [GPU]
    assert found(tree, "ad") == [GPU, GPU]
    # Nobody need drop what is not there; what stood on it is.
    assert orders(tree) == [move("abc", GPU, None, "one")]


def test_a_lost_copy_leaves_the_nodes_other_copies():
    tree = tree_of(2, 2)
    for path in ("ab", "C", "ab"):
        ask(tree, path)
    tree.grants.complete(begin(tree, "ab"), kept=True, lost=[(key("a"), GPU)])
    check_integrity(tree)
    # b's copy in the GPU stood on a's there; those in host stand on each other.
    assert found(tree, "ab") == [HOST, HOST]


@pytest.mark.parametrize("told", ["commit", "settle", "lose"])
def test_a_copy_of_any_node_may_be_lost_and_one_that_the_tree_does_not_know_is_ignored(told):
    tree = tree_of(4, 2)
    ask(tree, "ab")
    running = begin(tree, "c")
    lost = [(key("a"), GPU), (key("x"), GPU), (key("ab"), DISK), (b"", HOST)]
    if told == "commit":
        tree.grants.prefilled(running, lost)
    elif told == "lose":
        tree.grants.lose("one", lost)
    tree.grants.complete(running, True, lost if told == "settle" else [])
    check_integrity(tree)
    assert found(tree, "ab") == []
    assert found(tree, "c") == [GPU]
    # Who lost a knows; b, which stood on it, is still there.
    assert orders(tree) == [move("ab", GPU, None, "one")]


def test_a_lost_copy_that_a_plan_elsewhere_uses_keeps_its_room_until_that_ends():
    tree = tree_of(2)
    ask(tree, "ab")
    using, telling = begin(tree, "ab"), begin(tree, "")
    tree.grants.complete(telling, kept=True, lost=[(key("a"), GPU)])
    check_integrity(tree)
    assert found(tree, "ab") == []
    assert tree.tiers.gpu("one").used == 2
    tree.grants.complete(using, kept=True)
    check_integrity(tree)
    assert tree.tiers.gpu("one").used == 0


def test_a_copy_that_could_not_be_saved_is_not_kept():
    tree = tree_of(4)
    tree.grants.complete(begin(tree, "abc"), kept=True, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert found(tree, "abc") == [GPU]
    assert tree.tiers.gpu("one").used == 1


def test_a_copy_that_was_lost_before_may_be_reported_again():
    tree = tree_of(4)
    ask(tree, "ab")
    first, second = begin(tree, "ab"), begin(tree, "ab")
    for grant in (first, second):
        tree.grants.complete(grant, kept=True, lost=[(key("a"), GPU)])
        check_integrity(tree)
    assert not tree.registry.nodes


def test_a_report_of_a_lost_copy_does_not_take_the_room_that_another_plan_reserved_since():
    tree = tree_of(4)
    ask(tree, "a")
    first, second = begin(tree, "a"), begin(tree, "a")
    tree.grants.complete(first, kept=True, lost=[(key("a"), GPU)])
    anew = begin(tree, "a")
    assert anew.documents[0].source is None
    tree.grants.complete(second, kept=True, lost=[(key("a"), GPU)])
    tree.grants.complete(anew, kept=True)
    assert (found(tree, "a") == [GPU]) == (anew.documents[0].kept is GPU)
    check_integrity(tree)


def test_a_plan_that_failed_tells_what_it_could_not_load_all_the_same():
    tree = tree_of(4)
    ask(tree, "ab")
    tree.grants.complete(begin(tree, "ab"), kept=False, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert found(tree, "ab") == [GPU]


def served_without_a_pause(tree, running, plans=5) -> Grant:
    """Plans for the document s, each granted before the last one is settled; the last, still running."""
    for _ in range(plans):
        following = begin(tree, "s")
        tree.grants.complete(running, kept=True)
        check_integrity(tree)
        running = following
    return running


def test_a_lost_copy_is_replaced_though_plans_for_it_never_cease():
    tree = tree_of(4)
    ask(tree, "s")
    running = begin(tree, "s")
    tree.grants.complete(begin(tree, "s"), kept=True, lost=[(key("s"), GPU)])
    assert found(tree, "s") == []
    served_without_a_pause(tree, running)
    assert found(tree, "s") == [GPU]


def test_room_that_a_failed_plan_gave_up_is_used_though_plans_for_the_document_never_cease():
    tree = tree_of(4)
    failing, running = begin(tree, "s"), begin(tree, "s")
    assert running.documents[0].kept is None
    tree.grants.complete(failing, kept=False)
    served_without_a_pause(tree, running)
    assert found(tree, "s") == [GPU]


def test_what_a_running_plan_loads_is_not_dropped_because_another_lost_its_parent():
    # b lies in host behind a, which lies in the GPU of one (and cannot be had from there any more) and on disk.
    tree = tree_of(1, 1, 2)
    ask(tree, "ab", "one")
    tree.insert(HeldNode(TENANT, ("a",), 1), DISK, None)
    running = begin(tree, "ab", "two")
    assert [step.source for step in running.documents] == [DISK, HOST]
    tree.grants.complete(begin(tree, "a", "one"), kept=True, lost=[(key("a"), GPU)])
    assert move("ab", HOST, None) not in orders(tree)
    tree.grants.complete(running, kept=True)
    check_integrity(tree)


def test_room_that_a_running_plan_reserved_is_not_given_away_when_another_lost_its_parent():
    tree = tree_of(2)
    ask(tree, "a")
    running, other = begin(tree, "ab"), begin(tree, "a")
    assert running.documents[1].kept is GPU
    tree.grants.complete(other, kept=True, lost=[(key("a"), GPU)])
    # The running plan may save b at any time, so one token's room is all there is.
    assert [step.kept for step in begin(tree, "C").documents] == [None]


def test_a_failed_plan_gives_its_own_room_back_and_no_other_plans():
    # b is to be saved on disk on the strength of s in host. That copy is lost, and the promise of s on disk fails.
    tree = tree_of(0, 1, 2)
    first, failing = begin(tree, "s"), begin(tree, "s")
    assert [grant.documents[0].kept for grant in (first, failing)] == [HOST, DISK]
    tree.grants.complete(first, kept=True)
    running = begin(tree, "sb")
    assert [(step.source, step.kept) for step in running.documents] == [(HOST, HOST), (None, DISK)]
    tree.grants.complete(begin(tree, "s"), kept=True, lost=[(key("s"), HOST)])
    tree.grants.complete(failing, kept=False)
    check_integrity(tree)
    # Of disk's two tokens one is still b's.
    other = begin(tree, "cd")
    assert [step.kept for step in other.documents] == [DISK, None]
    for grant in (running, other):
        tree.grants.complete(grant, kept=True)
        check_integrity(tree)
    assert found(tree, "sb") == []
    assert move("sb", DISK, None) in orders(tree)


def test_what_a_plan_saved_in_vain_is_dropped():
    # b's room in the GPU went with a, whose copy there another plan found to be gone; b is saved there all the same.
    tree = tree_of(2)
    ask(tree, "a")
    running, other = begin(tree, "ab"), begin(tree, "a")
    tree.grants.complete(other, kept=True, lost=[(key("a"), GPU)])
    orders(tree)
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert found(tree, "ab") == []
    assert move("ab", GPU, None, "one") in orders(tree)


def test_a_saved_copy_needs_a_parent_that_is_held_and_not_only_promised():
    # b is to be saved in host on the strength of a in the GPU of one. That copy is lost, and another plan's promise of
    # a in host does not stand in for it.
    tree = tree_of(2, 2)
    ask(tree, "a", "one")
    blocking = [begin(tree, "c", "one"), begin(tree, "D", "two")]
    running = begin(tree, "ab", "one")
    promised = begin(tree, "a", "two")
    assert [grant.documents[-1].kept for grant in (running, promised)] == [HOST, HOST]
    tree.grants.complete(begin(tree, "a", "one"), kept=True, lost=[(key("a"), GPU)])
    check_integrity(tree)
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    for grant in (promised, *blocking):
        tree.grants.complete(grant, kept=True)
        check_integrity(tree)


# Pins


def test_the_system_prompt_is_pinned_and_copied_to_host():
    tree = tree_of(4, 4)
    ask(tree, "sa", pinned=1)
    # Once it is held, the next plan copies it; the GPU keeps it.
    assert ask(tree, "sb", pinned=1).moves == [move("s", GPU, HOST, "one", evict=False)]
    assert ask(tree, "sc", pinned=1).moves == []
    for path in ("DE", "FG", "de"):
        ask(tree, path)
    assert found(tree, "s", "one") == [GPU]
    assert found(tree, "s", "two") == [HOST]
    assert [cache.pinned_tokens for cache in tree.tiers] == [1, 0, 1, 0]


def test_what_is_used_much_at_the_top_outlives_its_instance():
    tree = tree_of(4, host=4)
    moves = [ask(tree, "ab").moves for _ in range(REPLICATED_USES)]
    assert [made for made in moves if made] == [[move("a", GPU, HOST, "one", evict=False)]]
    assert moves[-1]
    tree.remove_instance("one")
    check_integrity(tree)
    assert found(tree, "ab", "two") == [HOST]


def test_what_is_used_much_behind_a_system_prompt_outlives_its_instance():
    tree = tree_of(6, host=6)
    for _ in range(REPLICATED_USES):
        ask(tree, "sab", pinned=1)
    tree.remove_instance("one")
    assert found(tree, "sab", "two") == [HOST, HOST]


def test_a_pinned_path_is_kept_until_it_is_unpinned():
    tree = tree_of(4)
    ask(tree, "ab")
    tree.pin(TENANT, "ab")
    for path in ("C", "D", "E"):
        ask(tree, path)
    assert found(tree, "ab") == [GPU, GPU]
    tree.unpin(TENANT, "ab")
    check_integrity(tree)
    for path in ("C", "D"):
        ask(tree, path)
    assert found(tree, "ab") == []


def test_a_path_that_was_pinned_twice_is_unpinned_twice():
    tree = tree_of(4)
    ask(tree, "a")
    for _ in range(2):
        tree.pin(TENANT, "a")
    tree.unpin(TENANT, "a")
    assert tree.registry.nodes[key("a")].pins == 1
    tree.unpin(TENANT, "a")
    with pytest.raises(UnknownNode, match="not pinned"):
        tree.unpin(TENANT, "a")
    check_integrity(tree)
    assert tree.tiers.gpu("one").pinned_tokens == 0


def test_a_prefix_of_a_pinned_path_is_not_itself_pinned():
    tree = tree_of(4)
    ask(tree, "ab")
    tree.pin(TENANT, "ab")
    before = dump(tree)
    with pytest.raises(UnknownNode, match="not pinned"):
        tree.unpin(TENANT, "a")
    assert dump(tree) == before
    check_integrity(tree)


def test_no_more_than_half_of_a_tier_is_pinned():
    tree = tree_of(4, 10)
    ask(tree, "abc")
    tree.pin(TENANT, "ab")
    before = dump(tree)
    with pytest.raises(PinRefused, match="50% of the gpu tier's 4 tokens; 2 are pinned and these are 1 more"):
        tree.pin(TENANT, "abc")
    assert dump(tree) == before
    tree.unpin(TENANT, "ab")
    ask(tree, "d")
    tree.pin(TENANT, "d")
    check_integrity(tree)


def test_a_pin_is_refused_by_the_smallest_tier_that_holds_the_path():
    tree = tree_of(4, 2)
    for path in ("A", "B", "C"):
        ask(tree, path)
    assert found(tree, "A") == [HOST]
    with pytest.raises(PinRefused, match="host"):
        tree.pin(TENANT, "A")


def test_a_system_prompt_of_more_than_half_a_tier_is_kept_but_not_pinned():
    tree = tree_of(3)
    ask(tree, "S", pinned=1)
    assert found(tree, "S") == [GPU]
    assert tree.registry.nodes[key("S")].pins == 0
    ask(tree, "BC")
    assert found(tree, "S") == []


def test_a_system_prompt_of_several_documents_takes_half_a_tier_at_most():
    # S alone is more than half of 3, so it is not pinned for itself, and must not be pinned with t either.
    tree = tree_of(3)
    ask(tree, "St", pinned=2)
    assert tree.tiers.gpu("one").pinned_tokens <= 1.5


@pytest.mark.parametrize("path", ["", "x", "abx", "b"])
def test_only_what_is_in_the_tree_can_be_pinned(path):
    tree = tree_of(10)
    ask(tree, "ab")
    before = dump(tree)
    for attempt in (tree.pin, tree.unpin):
        with pytest.raises(UnknownNode):
            attempt(TENANT, path)
        with pytest.raises(UnknownNode):
            attempt("nobody", path)
    assert dump(tree) == before


def test_a_pinned_document_that_is_deleted_leaves_its_parents_unpinned():
    tree = tree_of(10)
    ask(tree, "abc")
    tree.pin(TENANT, "abc")
    tree.delete("b")
    check_integrity(tree)
    assert tree.registry.nodes[key("a")].pins == 0
    assert tree.tiers.gpu("one").pinned_tokens == 0


def test_a_pinned_document_that_is_lost_leaves_its_parents_unpinned():
    tree = tree_of(10)
    ask(tree, "ab")
    tree.pin(TENANT, "ab")
    tree.grants.complete(begin(tree, "ab"), kept=True, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert tree.registry.nodes[key("a")].pins == 0


def test_a_pinned_path_that_is_lost_from_the_middle_is_taken_back_once():
    tree = tree_of(10)
    ask(tree, "abc")
    tree.pin(TENANT, "abc")
    tree.pin(TENANT, "a")
    tree.grants.complete(begin(tree, "ab"), kept=True, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert tree.registry.nodes[key("a")].pins == 1
    assert tree.tiers.gpu("one").pinned_tokens == 1


# Deletion


def test_a_deleted_document_goes_from_all_tiers_and_paths_with_all_that_stands_behind_it():
    tree = tree_of(4, 6, 6)
    for path in ("axb", "xC", "D", "yx", "E", "yx"):
        ask(tree, path, "one")
    ask(tree, "axb", "two")
    before = {node.content: node.tokens for node in tree.registry.nodes.values()}
    assert {"a", "x", "b", "C", "y"} <= before.keys()
    expected = sum("x" in [node.content for node in bottom.path] for bottom in tree.registry.nodes.values())
    assert tree.delete("x") == expected == 5
    check_integrity(tree)
    assert not {"x", "b", "C"} & {node.content for node in tree.registry.nodes.values()}
    assert {"a", "y"} <= {node.content for node in tree.registry.nodes.values()}
    assert tree.delete("x") == 0


def test_each_copy_of_a_deleted_document_is_ordered_to_be_dropped():
    tree = tree_of(2, 2)
    for path in ("ab", "C", "ab"):
        ask(tree, path, "one")
    ask(tree, "ab", "two")
    tree.delete("b")
    tree.delete("a")
    shared = [move(path, HOST, None) for path in ("a", "ab")]
    # The shared tiers' by whoever comes first, a GPU's by its own instance.
    assert Counter(orders(tree, "one")) == Counter([*shared, *(move(path, GPU, None, "one") for path in ("a", "ab"))])
    assert Counter(orders(tree, "two")) == Counter(move(path, GPU, None, "two") for path in ("a", "ab"))
    assert orders(tree, "one") == orders(tree, "two") == []


def test_a_document_may_be_deleted_in_one_namespace_alone():
    tree = tree_of(10)
    for namespace in ("x", "y"):
        ask(tree, "ab", namespace=namespace)
    assert tree.delete("a", "x") == 2
    assert tree.delete("a", "nobody") == 0
    assert found(tree, "a", namespace="x") == []
    assert found(tree, "ab", namespace="y") == [GPU, GPU]
    assert tree.delete("b") == 1
    assert found(tree, "ab", namespace="y") == [GPU]
    check_integrity(tree)


def test_a_document_that_is_deleted_in_use_is_found_no_more_and_dropped_when_the_plan_ends():
    tree = tree_of(4)
    ask(tree, "ab")
    running = begin(tree, "abc")
    assert tree.delete("a") == 3
    check_integrity(tree)
    assert found(tree, "abc") == []
    assert orders(tree) == []
    assert tree.tiers.gpu("one").used == 3
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert tree.tiers.gpu("one").used == 0
    assert Counter(orders(tree)) == Counter(move(path, GPU, None, "one") for path in ("a", "ab", "abc"))


def test_a_document_is_dropped_when_the_last_of_its_plans_ends():
    tree = tree_of(4)
    ask(tree, "ab")
    first, second = begin(tree, "ab"), begin(tree, "a")
    tree.delete("a")
    tree.grants.complete(first, kept=True)
    check_integrity(tree)
    assert orders(tree) == [move("ab", GPU, None, "one")]
    tree.grants.complete(second, kept=True)
    assert orders(tree) == [move("a", GPU, None, "one")]


@pytest.mark.parametrize("old_first", [True, False])
def test_a_document_that_comes_back_is_not_kept_while_a_plan_uses_what_was_deleted(old_first):
    # Both would lie under one key, and the drop of the old one would take the new one with it.
    tree = tree_of(4)
    ask(tree, "a")
    old = begin(tree, "a")
    tree.delete("a")
    new = begin(tree, "a")
    assert new.documents[0] == (key("a"), 1, None, None, None)
    for grant in (old, new) if old_first else (new, old):
        tree.grants.complete(grant, kept=True)
        check_integrity(tree)
    assert not tree.registry.nodes
    assert orders(tree) == [move("a", GPU, None, "one")]
    ask(tree, "a")
    assert found(tree, "a") == [GPU]


def test_a_document_that_came_back_and_failed_is_dropped_after_all():
    tree = tree_of(4)
    ask(tree, "a")
    old = begin(tree, "a")
    tree.delete("a")
    new = begin(tree, "a")
    tree.grants.complete(old, kept=True)
    tree.grants.complete(new, kept=False)
    assert not tree.registry.nodes
    assert orders(tree) == [move("a", GPU, None, "one")]


def test_what_a_running_plan_loads_is_not_dropped_when_its_document_came_back_and_is_evicted():
    tree = tree_of(2)
    ask(tree, "a")
    old = begin(tree, "a")
    tree.delete("a")
    ask(tree, "a")
    grant = begin(tree, "b")
    assert move("a", GPU, None, "one") not in grant.moves
    for running in (old, grant):
        tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert (move("a", GPU, None, "one") in orders(tree)) != (found(tree, "a") == [GPU])


def test_clearing_drops_everything_pins_too():
    tree = tree_of(4, 4)
    ask(tree, "sa", pinned=1)
    ask(tree, "sb", pinned=1)
    running = begin(tree, "sab", "two", namespace="other")
    assert tree.clear() == 6
    check_integrity(tree)
    assert not tree.registry.nodes
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert [cache.used for cache in tree.tiers] == [0, 0, 0, 0]


def test_orders_to_drop_a_document_come_in_the_order_in_which_its_nodes_came():
    tree = tree_of(100)
    namespaces = [f"tenant {number}" for number in range(20)]
    for namespace in namespaces:
        ask(tree, "a", namespace=namespace)
    tree.delete("a")
    assert [order.node for order in orders(tree)] == [key("a", namespace).hex() for namespace in namespaces]


# Instances


def test_an_instance_that_is_gone_takes_its_gpu_and_its_plans_with_it():
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


def test_what_stood_on_a_gone_instance_alone_goes_with_it_though_a_plan_elsewhere_names_it():
    # Two was to compute a into its GPU and b into host; one's plan for both of them uses neither.
    tree = tree_of(1, 1)
    begin(tree, "ab", "two")
    begin(tree, "c", "one")
    naming = begin(tree, "ab", "one")
    assert [(step.source, step.kept) for step in naming.documents] == [(None, None), (None, None)]
    tree.remove_instance("two")
    check_integrity(tree)
    tree.grants.complete(naming, kept=True)
    check_integrity(tree)
    assert tree.tiers.host.used == 0


def test_an_instance_that_comes_back_starts_empty_and_hears_no_old_orders():
    tree = tree_of(2)
    ask(tree, "a", "two")
    tree.delete("a")
    ask(tree, "b", "two")
    tree.remove_instance("two")
    tree.add_instance("two")
    assert found(tree, "b", "two") == []
    assert tree.tiers.gpu("two").used == 0
    assert orders(tree, "two") == []


def test_an_instance_that_is_there_already_keeps_what_it_has():
    tree = tree_of(2)
    ask(tree, "a")
    tree.add_instance("one")
    assert found(tree, "a") == [GPU]


# What policies learn


def test_frequency_counts_the_last_window():
    tree = KnowledgeTree(create_policy("GDSF", Lookahead()), Capacities(4), ["one"], lambda cached, new: 0.0, 10.0)

    def frequency_at(now: float) -> float:
        grant = tree.grants.admit("q", TENANT, [PathDocument("a", 1)], path_keys(TENANT, "a"), 0, "one", now)
        tree.grants.complete(grant, kept=True)
        return tree.registry.nodes[key("a")].frequency

    assert [frequency_at(now) for now in (1.0, 2.0, 9.0)] == [1.0, 2.0, 3.0]
    # Two tenths into the next window eight tenths of the last one are in sight; a whole window later none of it is.
    assert frequency_at(12.0) == pytest.approx(1 + 3 * 0.8)
    assert frequency_at(38.0) == 1.0


# What the tiers hold when all orders are carried out


class DataPlane:
    """The tiers' contents by cache, as sets of keys: what orders, loads and saves make of them."""

    def __init__(self) -> None:
        self.caches: dict[tuple[Tier, str | None], set[str]] = {}
        self.names: dict[str, HeldNode] = {}

    def at(self, tier: Tier, instance: str | None) -> set[str]:
        return self.caches.setdefault((tier, instance if tier is GPU else None), set())

    def carry_out(self, moves: list[Move]) -> None:
        for order in moves:
            source = self.at(order.source, order.instance)
            if order.target is not None:
                target = self.at(order.target, order.instance)
                # The orders of a plan that failed are carried out again. What went on to disk then stays there.
                assert order.node in source | target | self.at(DISK, None), "an order copies what is not there"
                if order.node in source:
                    target.add(order.node)
            if order.evict:
                source.discard(order.node)

    def used(self, keys: set[str]) -> int:
        return sum(self.names[key].tokens for key in keys)

    def name(self, namespace: str, path: str) -> None:
        """Remember what a path's keys stand for."""
        for depth, key in enumerate(path_keys(namespace, path), start=1):
            self.names[key.hex()] = HeldNode(namespace, tuple(path[:depth]), tokens_of(path[depth - 1]))

    def report(self) -> list[ResidencyReport]:
        return [
            ResidencyReport(tier, tuple(self.names[key] for key in sorted(keys)), instance)
            for (tier, instance), keys in self.caches.items()
        ]


class Traffic:
    """Plans that come and go on a tree, and the tiers as its orders make them.

    A plan's orders are carried out when it is granted, and what it keeps is saved when it is committed, or settled as
    kept. At every moment the tiers have what the tree believes and what running plans use, and room for what these
    will save.
    """

    def __init__(self, tree: KnowledgeTree) -> None:
        self.tree = tree
        self.plane = DataPlane()
        self.plans: list[SimpleNamespace] = []

    def admit(self, path: str, namespace: str, first: bool, system: bool) -> None:
        instance = (list(self.tree.tiers.gpus) * 2)[not first]
        grant = begin(self.tree, "s" + path if system else path, instance, namespace, pinned=int(system))
        assert saves(grant) == {(copy.node.key, copy.cache.tier) for copy in grant.reserved}
        self.plane.name(namespace, "s" + path if system else path)
        self.plane.carry_out(grant.moves)
        loads = {(step.key, step.source) for step in grant.documents if step.source is not None}
        self.plans.append(SimpleNamespace(grant=grant, loads=loads, saves=saves(grant), broken=set()))

    def commit(self, plan: int, lost: list[int]) -> None:
        if self.plans:
            committed = self.plans[plan % len(self.plans)]
            self.tree.grants.prefilled(committed.grant, self.execute(committed, True, lost))
            # What it loaded it goes on using until it is settled.
            committed.saves = set()

    def settle(self, plan: int, kept: bool, lost: list[int]) -> None:
        if self.plans:
            settled = self.plans.pop(plan % len(self.plans))
            self.tree.grants.complete(settled.grant, kept, self.execute(settled, kept, lost))

    def execute(self, plan: SimpleNamespace, kept: bool, lost: list[int]) -> list[tuple[bytes, Tier]]:
        """What a plan does to the tiers: some of what it should load is gone, and some cannot be saved; both of it."""
        instance = plan.grant.instance
        candidates = sorted(plan.loads | plan.saves)
        gone = {candidates[index % len(candidates)] for index in lost if candidates}
        for key, tier in gone & plan.loads:
            self.plane.at(tier, instance).discard(key.hex())
            for other in self.plans:
                if (key, tier) in other.loads and (tier is not GPU or other.grant.instance == instance):
                    other.loads.remove((key, tier))
                    other.broken.add((key, tier))
        for key, tier in plan.saves - gone if kept else ():
            self.plane.at(tier, instance).add(key.hex())
        plan.loads -= gone
        gone |= plan.broken
        plan.broken = set()
        return sorted(gone)

    def delete(self, content: str, namespace: str | None) -> None:
        self.tree.delete(content, namespace)

    def restore(self) -> None:
        """Tell the tree what is there, whatever it knows of it."""
        restore(self.tree, self.plane.report())

    def replace_instance(self) -> None:
        """Lose the second instance with its plans, or have it back."""
        if "two" not in self.tree.tiers.gpus:
            self.tree.add_instance("two")
            return
        self.tree.remove_instance("two")
        self.plane.caches.pop((GPU, "two"), None)
        self.plans = [plan for plan in self.plans if plan.grant.instance != "two"]

    def check(self) -> None:
        check_integrity(self.tree)
        for cache in self.tree.tiers:
            there = self.plane.at(cache.tier, cache.instance)
            assert self.believed(cache) <= there, "the tree believes in a copy that is not there"
            plans = [plan for plan in self.plans if cache.instance in (None, plan.grant.instance)]
            used = {key.hex() for plan in plans for key, tier in plan.loads if tier is cache.tier}
            assert used <= there, "a copy is gone that a running plan uses"
            coming = {key.hex() for plan in plans for key, tier in plan.saves if tier is cache.tier}
            assert self.plane.used(there | coming) <= cache.capacity, "there is no room for what running plans save"

    def end(self) -> None:
        """When nothing runs and no order is left, the tiers have just what the tree believes."""
        while self.plans:
            self.settle(0, kept=True, lost=[])
            self.check()
        for instance in self.tree.tiers.gpus:
            self.plane.carry_out(begin(self.tree, "", instance).moves)
        for cache in self.tree.tiers:
            assert self.plane.at(cache.tier, cache.instance) == self.believed(cache)

    def believed(self, cache) -> set[str]:
        return {
            node.key.hex()
            for node in self.tree.registry.nodes.values()
            if cache in node.copies and node.copies[cache].held
        }


def event(name: str, **arguments: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


lost = st.just([]) | st.just([]) | st.lists(st.integers(0, 7), min_size=1, max_size=2)
admissions = event(
    "admit",
    path=st.lists(st.sampled_from("abD"), min_size=1, max_size=3).map("".join),
    namespace=st.sampled_from("xxy"),
    first=st.booleans(),
    system=st.booleans(),
)
settlements = event("settle", plan=st.integers(0, 7), kept=st.sampled_from([True, True, True, False]), lost=lost)
incidents = [
    event("commit", plan=st.integers(0, 7), lost=lost),
    event("delete", content=st.sampled_from("sabD"), namespace=st.sampled_from([None, "x", "y"])),
    event("replace_instance"),
    event("restore"),
]
# Most of what happens is that plans come and go. A list of lists, for one list alone is mostly a short one.
events = st.sampled_from([*[admissions] * 6, *[settlements] * 4, *incidents]).flatmap(lambda kind: kind)
histories = st.tuples(*[st.lists(events, max_size=12)] * 5).map(
    lambda parts: [event for part in parts for event in part]
)


@given(
    st.sampled_from(policy_names()),
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 8)),
    histories,
)
@settings(max_examples=400, deadline=None, report_multiple_bugs=False, phases=set(Phase) - {Phase.explain})
def test_orders_loads_and_saves_make_the_tiers_what_the_tree_believes(policy, capacities, history):
    traffic = Traffic(tree_of(*capacities, policy=policy))
    for name, arguments in history:
        getattr(traffic, name)(**arguments)
        traffic.check()
    traffic.end()
