"""Orders that plans took along and never carried out, and those that no plan takes along, reach the tiers all the same.

Documents are letters here and paths are words. A small letter has one token, a capital has two.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy, policy_names
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tiers.tier_manager import Capacities
from cachectl.tree.grant import Grant
from cachectl.tree.integrity import check_integrity
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.restore import restore
from protocol.errors import ConfigError
from protocol.kv import HeldNode, Move, Pages, ResidencyReport
from protocol.tiers import Tier

TENANT = "tenant"
GPU, HOST, DISK = Tier
PAGE = 2


def tree_of(gpu, host=0, disk=0, policy="LRU", write_through=False, load_s=0.0, page=1) -> KnowledgeTree:
    """A tree whose tiers have room for so many pages."""
    return KnowledgeTree(
        create_policy(policy, Lookahead()),
        Capacities(gpu * page, host * page, disk * page),
        ["one", "two"],
        lambda cached, new: 0.01 + new,
        load_seconds=lambda tokens, tier: tokens * load_s,
        page_tokens=page,
        arena=PageAllocator(host, page),
        write_through=write_through,
    )


def tokens_of(content: str) -> int:
    return 2 if content.isupper() else 1


def begin(tree, path, instance="one") -> Grant:
    """A plan for a path, under way."""
    documents = [PathDocument(content, tokens_of(content)) for content in path]
    return tree.grants.admit(f"query {tree.grants.tick}", TENANT, documents, path_keys(TENANT, path), 1, instance, 0.0)


def ask(tree, path, instance="one") -> Grant:
    """A plan for a path, done."""
    grant = begin(tree, path, instance)
    tree.grants.complete(grant, kept=True)
    check_integrity(tree)
    return grant


def key(path) -> bytes:
    return path_keys(TENANT, path)[-1]


def move(path, source, target, instance=None, evict=True, pages=None) -> Move:
    return Move(key(path).hex(), tokens_of(path[-1]), source, target, instance, evict, pages)


def found(tree, path, instance="one") -> list[Tier]:
    return [copy.cache.tier for copy in tree.lookup.match(TENANT, path, instance)]


def waiting(tree, instance="one") -> list[Move]:
    return tree.tiers.take_moves(instance)


# Pages


def test_host_memory_has_as_many_pages_as_its_budget():
    with pytest.raises(ConfigError, match="pages for 6 tokens, not for 8"):
        KnowledgeTree(
            create_policy("LRU", Lookahead()),
            Capacities(0, 8),
            [],
            lambda c, n: 1.0,
            page_tokens=2,
            arena=PageAllocator(3, 2),
        )


def test_a_budget_counts_whole_pages():
    # b begins in the middle of the page that a ends in, so both take that page.
    tree = tree_of(2, page=PAGE)
    assert [step.kept for step in ask(tree, "ab").documents] == [GPU, GPU]
    assert tree.tiers.gpu("one").used == 2 * PAGE
    assert [step.kept for step in ask(tree, "aC").documents] == [GPU, None]


def test_moves_and_plans_name_the_pages_of_host_memory():
    tree = tree_of(1, 2, 2, page=PAGE)
    first, second = Pages((0,), 1), Pages((1,), 2)
    ask(tree, "a")
    assert ask(tree, "b").moves == [move("a", GPU, HOST, "one", pages=first)]
    grant = begin(tree, "a", "two")
    assert [(step.source, step.kept, step.pages) for step in grant.documents] == [(HOST, GPU, first)]
    tree.grants.complete(grant, kept=True)
    assert ask(tree, "c").moves == [move("b", GPU, HOST, "one", pages=second)]
    # b's page in host memory goes to c at once, under another stamp.
    third = Pages((1,), 3)
    assert ask(tree, "d").moves == [move("b", HOST, DISK, pages=second), move("c", GPU, HOST, "one", pages=third)]
    full = begin(tree, "dE")
    assert [(step.source, step.kept, step.pages) for step in full.documents] == [
        (GPU, GPU, None),
        (None, HOST, Pages((1, 0), 4)),
    ]


def test_what_is_computed_into_host_memory_has_its_pages_in_the_plan():
    tree = tree_of(0, 2, page=PAGE)
    grant = begin(tree, "A")
    assert [(step.source, step.kept, step.pages) for step in grant.documents] == [(None, HOST, Pages((0,), 1))]
    tree.grants.complete(grant, kept=True)
    tree.delete("A")
    assert waiting(tree) == [move("A", HOST, None, pages=Pages((0,), 1))]


def test_restored_nodes_keep_their_pages_and_new_stamps_are_higher_than_all_that_were_seen():
    tree = tree_of(0, 4, page=PAGE)
    mine, foreign = Pages((2,), 40), Pages((2,), 60)
    nodes = (HeldNode(TENANT, ("a",), 1, mine), HeldNode(TENANT, ("b",), 1, foreign), HeldNode(TENANT, ("c",), 1))
    result = restore(tree, [ResidencyReport(HOST, nodes)])
    check_integrity(tree)
    assert (result.restored, result.refused) == (1, 2)
    [step] = begin(tree, "a").documents
    assert (step.source, step.pages) == (HOST, mine)
    [step] = begin(tree, "d").documents
    assert step.pages == Pages((0,), 61)


def test_a_report_of_other_pages_than_the_tree_knows_is_refused():
    tree = tree_of(0, 4, page=PAGE)
    ask(tree, "a")
    assert restore(tree, [ResidencyReport(HOST, (HeldNode(TENANT, ("a",), 1, Pages((3,), 9)),))]).refused == 1
    assert waiting(tree) == []


# Load or recompute


def test_what_is_not_worth_loading_is_computed_and_kept_in_the_gpu_and_its_slower_copy_stays():
    tree = tree_of(2, 4, load_s=5.0)
    for path in ("ab", "cd"):
        ask(tree, path)
    assert found(tree, "ab") == [HOST, HOST]
    grant = ask(tree, "ab")
    assert [(step.source, step.kept, step.pages) for step in grant.documents] == [(None, GPU, None)] * 2
    assert found(tree, "ab") == [GPU, GPU]
    assert found(tree, "ab", "two") == [HOST, HOST]


def test_what_is_computed_though_it_is_held_and_has_no_room_is_kept_where_it_was():
    tree = tree_of(1, 4, load_s=5.0)
    for path in ("a", "b"):
        ask(tree, path)
    blocking = begin(tree, "b")
    grant = begin(tree, "a")
    assert [(step.source, step.kept) for step in grant.documents] == [(None, None)]
    for running in (blocking, grant):
        tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert found(tree, "a") == [HOST]


# Write-through


def test_what_was_computed_is_copied_to_every_slower_tier_as_its_plan_commits():
    tree = tree_of(2, 4, 4, write_through=True)
    running = begin(tree, "ab")
    assert waiting(tree) == []
    tree.grants.prefilled(running)
    check_integrity(tree)
    a, b = (tree.registry.nodes[key(path)].copies[tree.tiers.host].pages for path in ("a", "ab"))
    assert waiting(tree) == [
        move("a", GPU, HOST, "one", evict=False, pages=a),
        move("a", GPU, DISK, "one", evict=False),
        move("ab", GPU, HOST, "one", evict=False, pages=b),
        move("ab", GPU, DISK, "one", evict=False),
    ]
    tree.grants.complete(running, kept=True)
    assert waiting(tree) == []
    # Nothing is left to be copied when it goes.
    assert ask(tree, "C").moves == [move("ab", GPU, None, "one"), move("a", GPU, None, "one")]
    assert found(tree, "ab", "two") == [HOST, HOST]


def test_what_was_loaded_or_is_kept_elsewhere_is_not_copied():
    tree = tree_of(1, 2, 2, write_through=True)
    restore(tree, [ResidencyReport(DISK, (HeldNode(TENANT, ("a",), 1),))])
    assert [(step.source, step.kept) for step in ask(tree, "ab").documents] == [(DISK, GPU), (None, HOST)]
    assert waiting(tree) == []


def test_a_document_that_is_deleted_as_it_is_computed_is_not_copied():
    tree = tree_of(2, 4, write_through=True)
    running = begin(tree, "a")
    tree.delete("a")
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert waiting(tree) == [move("a", GPU, None, "one")]


def test_a_copy_that_was_dropped_before_it_was_made_is_not_made():
    tree = tree_of(2, 4, write_through=True)
    ask(tree, "a")
    tree.grants.lose("one", [(key("a"), HOST)])
    assert [order.target for order in waiting(tree)] == [None]
    ask(tree, "b")
    tree.delete("b")
    assert all(order.target is None for order in waiting(tree))


def test_a_copy_that_is_moved_on_before_it_was_made_is_made_on_the_way():
    tree = tree_of(2, 1, 2)
    tree.grants.complete(failed := begin(tree, "a"), kept=True)
    ask(tree, "b")
    first = begin(tree, "c")
    second = begin(tree, "d")
    pages = [order.pages for order in (*first.moves, *second.moves)]
    assert [*first.moves, *second.moves] == [
        move("a", GPU, HOST, "one", pages=pages[0]),
        move("a", HOST, DISK, pages=pages[0]),
        move("b", GPU, HOST, "one", pages=pages[2]),
    ]
    for grant in (second, first):
        tree.grants.complete(grant, kept=False)
    assert waiting(tree) == [*first.moves, *second.moves]
    assert failed.completed


def test_copies_that_an_instance_did_not_make_before_it_went_are_nowhere():
    tree = tree_of(2, 4, write_through=True)
    ask(tree, "ab")
    ask(tree, "c", "two")
    tree.remove_instance("one")
    check_integrity(tree)
    assert found(tree, "ab", "two") == []
    assert found(tree, "c", "two") == [GPU]
    assert [order.node for order in waiting(tree, "two") if order.target] == [key("c").hex()]


# Plans that never carried out their orders


def test_the_orders_of_a_plan_that_failed_wait_for_the_next_one():
    tree = tree_of(1, 2)
    ask(tree, "a")
    failed = begin(tree, "b")
    tree.grants.complete(failed, kept=False)
    check_integrity(tree)
    assert ask(tree, "").moves == failed.moves == [move("a", GPU, HOST, "one", pages=Pages((0,), 1))]
    assert waiting(tree) == []


def test_a_plan_that_had_its_first_token_has_carried_out_its_orders():
    tree = tree_of(1, 2)
    ask(tree, "a")
    running = begin(tree, "b")
    tree.grants.prefilled(running)
    tree.grants.complete(running, kept=False)
    assert waiting(tree) == []


def test_what_came_back_to_the_gpu_is_not_evicted_by_an_order_that_comes_again():
    tree = tree_of(1, 2)
    ask(tree, "a")
    failed = begin(tree, "b")
    tree.grants.complete(failed, kept=False)
    pages = failed.moves[0].pages
    # The plan for a takes the order along: it is loaded from host memory, which has it by then.
    grant = begin(tree, "a")
    assert grant.moves == failed.moves
    tree.grants.complete(grant, kept=False)
    again = begin(tree, "a")
    assert again.documents[0].pages == pages
    late = begin(tree, "")
    tree.grants.complete(again, kept=True)
    tree.tiers.return_moves(failed.moves, "one", failed.tick)
    assert waiting(tree) == [move("a", GPU, HOST, "one", evict=False, pages=pages)]
    tree.grants.complete(late, kept=True)


def test_orders_of_an_instance_that_is_gone_are_for_others_as_far_as_they_are_about_shared_tiers():
    tree = tree_of(1, 1, 1)
    for path in "abc":
        ask(tree, path)
    running = begin(tree, "d")
    assert [order.instance for order in running.moves] == [None, None, "one"]
    tree.remove_instance("one")
    check_integrity(tree)
    assert [(order.source, order.target) for order in waiting(tree, "two")] == [(DISK, None), (HOST, DISK)]


# What is shunned


def test_nothing_of_a_shunned_document_is_kept_or_restored_until_that_is_taken_back():
    tree = tree_of(4, 4)
    tree.block("b", None)
    tree.block("b", TENANT)
    for _ in range(2):
        assert [step.kept for step in ask(tree, "abc").documents] == [GPU, None, None]
        assert restore(tree, [ResidencyReport(GPU, (HeldNode(TENANT, ("b",), 1),), "one")]).refused == 1
        tree.unblock("b", None)
        if tree._blocklist.blocks("b", TENANT):
            tree.block("b", "another")
            tree.unblock("b", "another")
        tree.block("b", None)
    tree.unblock("b", None)
    tree.unblock("b", TENANT)
    assert [step.kept for step in ask(tree, "abc").documents] == [GPU, GPU, GPU]


# Engines that do what they are told, sooner or later, and lose what they have


class Engines:
    """The tiers as engines keep them: what is in a GPU and on disk, and what the pages of host memory hold."""

    def __init__(self) -> None:
        self.gpu: dict[str, set[str]] = {"one": set(), "two": set()}
        self.disk: set[str] = set()
        self.pages: dict[int, tuple[int, str]] = {}

    def has(self, node: str, tier: Tier, instance: str, pages: Pages | None) -> bool:
        if tier is HOST:
            assert pages is not None
            return all(self.pages.get(number) == (pages.stamp, node) for number in pages.numbers)
        return node in (self.disk if tier is DISK else self.gpu[instance])

    def write(self, node: str, tier: Tier, instance: str, pages: Pages | None) -> None:
        if tier is not HOST:
            (self.disk if tier is DISK else self.gpu[instance]).add(node)
            return
        assert pages is not None
        if all(self.pages.get(number, (0, ""))[0] <= pages.stamp for number in pages.numbers):
            self.pages.update(dict.fromkeys(pages.numbers, (pages.stamp, node)))

    def free(self, node: str, tier: Tier, instance: str, pages: Pages | None) -> None:
        if tier is not HOST:
            (self.disk if tier is DISK else self.gpu[instance]).discard(node)
        elif self.has(node, HOST, instance, pages):
            for number in pages.numbers:
                del self.pages[number]

    def carry_out(self, instance: str, moves: list[Move]) -> list[tuple[bytes, Tier]]:
        lost = []
        for order in moves:
            if order.target is not None:
                if self.has(order.node, order.source, instance, order.pages):
                    self.write(order.node, order.target, instance, order.pages)
                if not self.has(order.node, order.target, instance, order.pages):
                    lost.append((bytes.fromhex(order.node), order.target))
            if order.evict:
                self.free(order.node, order.source, instance, order.pages)
        return lost

    def prefill(self, grant: Grant) -> list[tuple[bytes, Tier]]:
        """Execute a plan up to its first token."""
        lost = self.carry_out(grant.instance, grant.moves)
        for step in grant.documents:
            node = step.key.hex()
            if step.source is not None and not self.has(node, step.source, grant.instance, step.pages):
                lost.append((step.key, step.source))
            if step.kept is not None and step.kept is not step.source:
                self.write(node, step.kept, grant.instance, step.pages)
        return lost


class Weather:
    """A tree and its engines: plans run, stall or fail, orders are delivered or not, and engines lose what they like.

    Plans of an instance begin in the order in which they were granted, or never.
    """

    def __init__(self, tree: KnowledgeTree) -> None:
        self.tree = tree
        self.engines = Engines()
        self.granted: list[Grant] = []
        self.running: list[Grant] = []

    def admit(self, path: str, first: bool) -> None:
        self.granted.append(begin(self.tree, path, "one" if first else "two"))

    def start(self, which: int) -> None:
        if self.granted:
            instance = self.granted[which % len(self.granted)].instance
            grant = next(grant for grant in self.granted if grant.instance == instance)
            self.granted.remove(grant)
            self.running.append(grant)
            self.tree.grants.prefilled(grant, self.engines.prefill(grant))

    def finish(self, which: int) -> None:
        if self.running:
            self.tree.grants.complete(self.running.pop(which % len(self.running)), kept=True)

    def abandon(self, which: int) -> None:
        if self.granted:
            self.tree.grants.complete(self.granted.pop(which % len(self.granted)), kept=False)

    def fail(self, which: int) -> None:
        """A plan ends when its orders are carried out, and before its first token."""
        if self.granted:
            grant = self.granted.pop(which % len(self.granted))
            if not any(other.instance == grant.instance and other.tick < grant.tick for other in self.granted):
                self.tree.grants.complete(grant, False, self.engines.carry_out(grant.instance, grant.moves))
            else:
                self.tree.grants.complete(grant, kept=False)

    def deliver(self, first: bool, carried_out: bool, heard: bool) -> None:
        """Orders are delivered, unless the instance is not there, or its answer is lost."""
        instance = "one" if first else "two"
        if any(grant.instance == instance for grant in self.granted):
            return
        tick = self.tree.grants.tick + 0.5
        moves = self.tree.tiers.take_moves(instance)
        lost = self.engines.carry_out(instance, moves) if carried_out else []
        if carried_out and heard:
            self.tree.grants.lose(instance, lost)
        else:
            self.tree.tiers.return_moves(moves, instance, tick)

    def release(self, content: str, first: bool) -> None:
        """An engine is short of blocks, and lets one go that nobody uses."""
        instance = "one" if first else "two"
        node = self.tree.registry.nodes.get(key(content))
        if node is not None and not node.locks and content and not node.below.get(self.tree.tiers.gpu(instance)):
            self.engines.gpu[instance].discard(node.key.hex())
            self.tree.grants.lose(instance, [(node.key, GPU)])

    def restart(self, first: bool, carried_out: bool) -> None:
        """An engine comes up anew; the plan that was next had its orders carried out, or not."""
        instance = "one" if first else "two"
        granted = [grant for grant in self.granted if grant.instance == instance]
        if granted and carried_out:
            self.engines.carry_out(instance, granted[0].moves)
        self.tree.remove_instance(instance)
        self.tree.add_instance(instance)
        self.engines.gpu[instance].clear()
        self.granted = [grant for grant in self.granted if not grant.completed]
        self.running = [grant for grant in self.running if not grant.completed]

    def delete(self, content: str) -> None:
        self.tree.delete(content)

    def end(self) -> None:
        while self.granted:
            self.start(0)
        while self.running:
            self.finish(0)
        for _ in range(2):
            for instance in ("one", "two"):
                self.deliver(instance == "one", carried_out=True, heard=True)
        check_integrity(self.tree)
        assert not self.tree.tiers.pending_moves
        assert not self.tree.registry.detached

    def believed(self, cache) -> dict[str, Pages | None]:
        nodes = self.tree.registry.nodes.values()
        return {node.key.hex(): node.copies[cache].pages for node in nodes if cache in node.copies}


def event(name: str, **arguments: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


def histories(first: st.SearchStrategy[bool], rough: bool) -> st.SearchStrategy:
    """What happens, on the first instance or not; only what goes well, unless it is to be ``rough``."""
    which = st.integers(0, 3)
    content = st.sampled_from("abcD")
    path = st.lists(content, min_size=1, max_size=3).map("".join)
    kinds = [
        *[event("admit", path=path, first=first)] * 4,
        *[event("start", which=which)] * 3,
        *[event("finish", which=which)] * 3,
        event("deliver", first=first, carried_out=st.just(True), heard=st.just(True)),
        event("delete", content=content),
    ]
    if rough:
        kinds += [
            event("abandon", which=which),
            event("fail", which=which),
            event("deliver", first=first, carried_out=st.booleans(), heard=st.booleans()),
            event("release", content=content, first=first),
            event("restart", first=first, carried_out=st.booleans()),
        ]
    # A list of lists, for one list alone is mostly a short one.
    part = st.lists(st.sampled_from(kinds).flatmap(lambda kind: kind), max_size=12)
    return st.tuples(*[part] * 4).map(lambda parts: [event for part in parts for event in part])


def tiers_after(policy, sizes, kind, history) -> Weather:
    write_through, load_s, page = kind
    weather = Weather(tree_of(*sizes, policy, write_through, load_s, page))
    for name, arguments in history:
        getattr(weather, name)(**arguments)
        check_integrity(weather.tree)
    weather.end()
    return weather


sizes = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
kinds = st.tuples(st.booleans(), st.sampled_from([0.0, 0.7, 2.0]), st.sampled_from([1, PAGE]))


@given(st.sampled_from(policy_names()), sizes, kinds, histories(st.just(True), rough=False))
@settings(max_examples=200, deadline=None)
def test_in_the_end_tiers_have_what_the_tree_believes(policy, sizes, kind, history):
    weather = tiers_after(policy, sizes, kind, history)
    placement, engines = weather.tree.tiers, weather.engines
    assert engines.gpu["one"] == weather.believed(placement.gpu("one")).keys()
    assert engines.disk == weather.believed(placement.disk).keys()
    believed = weather.believed(placement.host)
    assert set(engines.pages.values()) == {(pages.stamp, node) for node, pages in believed.items()}
    assert all(engines.has(node, HOST, "", pages) for node, pages in believed.items())


@given(st.sampled_from(policy_names()), sizes, kinds, histories(st.just(True), rough=True))
@settings(max_examples=300, deadline=None)
def test_whatever_becomes_of_plans_tiers_have_nothing_in_the_end_that_the_tree_does_not_know(
    policy, sizes, kind, history
):
    weather = tiers_after(policy, sizes, kind, history)
    placement, engines = weather.tree.tiers, weather.engines
    assert engines.gpu["one"] <= weather.believed(placement.gpu("one")).keys()
    assert engines.disk <= weather.believed(placement.disk).keys()


@given(st.sampled_from(policy_names()), sizes, kinds, histories(st.booleans(), rough=True))
@settings(max_examples=300, deadline=None)
def test_instances_that_carry_out_their_orders_in_any_order_leave_nothing_in_their_gpus(policy, sizes, kind, history):
    # On a disk they may: nothing tells there which of two orders was decided first.
    weather = tiers_after(policy, sizes, kind, history)
    for instance, there in weather.engines.gpu.items():
        assert there <= weather.believed(weather.tree.tiers.gpu(instance)).keys()
