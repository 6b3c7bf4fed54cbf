"""The integrity check: re-derives every total, link and rule of the controller and of its parts."""

import math
from collections import Counter
from functools import singledispatch
from itertools import pairwise

from cachectl.branches import BranchTree, KeptBranches
from cachectl.nodes.keys import child_key
from cachectl.nodes.node import Copy, Node
from cachectl.policies.eviction_order import EvictionOrder
from cachectl.policies.priority_order import PriorityOrder
from cachectl.policies.sampled_order import SampledOrder
from cachectl.runtime.controller import Controller
from cachectl.runtime.leases import Leases
from cachectl.scheduling.queue import CacheAwareQueue
from cachectl.scheduling.scheduler import Scheduler
from cachectl.scheduling.wait_bound import _LATELY, WaitBound
from cachectl.tiers.page_allocator import _HELD, _LAST, _NONE, PageAllocator
from cachectl.tiers.tier_cache import TierCache
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.kv import Pages


@singledispatch
def check_integrity(part) -> None:
    """Assert every total, link and rule of a controller, or of a part of one."""
    raise TypeError(f"nothing is known about a {type(part).__name__}")


@check_integrity.register
def _(controller: Controller) -> None:
    check_integrity(controller._tree)
    check_integrity(controller._scheduler)
    check_integrity(controller._leases)


@check_integrity.register
def _(leases: Leases) -> None:
    handover = leases._handover
    assert handover._since.keys() <= leases._prefilling.keys()
    assert handover._behind.keys() <= handover._since.keys()
    assert leases._prefilling.keys() <= leases._deadlines.keys() <= leases._scheduler.tree.grants.open.keys()
    assert len(leases._turns) == leases._scheduler.instances.queued
    assert not any(turn.done() for turn in leases._turns.values())
    assert all(done.done() or left for done, left in leases._watched.items()), "a future waits for no query"


@check_integrity.register
def _(scheduler: Scheduler) -> None:
    requests = scheduler.book.requests
    granted = {query_id for query_id, scheduled in requests.items() if scheduled.grant is not None}
    queued = {query_id for state in scheduler.instances.states.values() for query_id in state.queue}
    assert granted == set(scheduler.tree.grants.open)
    assert requests.keys() - granted == queued
    assert len(scheduler._lookahead) == scheduler.instances.queued
    check_integrity(scheduler.branches)
    for instance, state in scheduler.instances.states.items():
        check_integrity(state.queue)
        assert state.running <= state._max_running
        assert state.slots_taken() <= state._max_running
        here = [requests[query_id] for query_id in granted if requests[query_id].instance == instance]
        running = [scheduled for scheduled in here if not scheduled.makes_way]
        assert state.running == len(running)
        assert all(scheduled in running and not scheduled.grant.prefilled for scheduled in state.prefilling.values())
        assert state.step_tokens == sum(scheduled.step_share for scheduled in running)
        guesses = list(state.speculations.values())
        assert all(guess in here and guess.makes_way for guess in guesses)
        others = [scheduled for scheduled in here if scheduled.makes_way and scheduled not in guesses]
        assert not any(scheduled.step_share for scheduled in others), "an ended speculation takes part of a step"
        full = not state.has_slot() or state.step_tokens or any(guess.is_ahead for guess in guesses)
        retired = instance in scheduler.tree.tiers.retired
        assert not state.queue or full or retired, "a request waits beside a free slot"
        assert not (state.queue and retired and scheduler.instances.open()), "a request waits for a retired instance"


@check_integrity.register
def _(queue: CacheAwareQueue) -> None:
    waiting = list(queue._waiting.values())
    sequences = [sequence for _, sequence, _ in waiting]
    assert len(waiting) <= queue._max_queued
    assert [query_id for _, _, query_id in waiting] == list(queue._waiting)
    assert all(older < younger for older, younger in pairwise([*sequences, queue._next_sequence]))
    assert all(key <= 0 for key, _, _ in waiting)
    live = [entry for entry in queue._heap if queue._waiting.get(entry[2]) is entry]
    assert len(live) == len(waiting)
    assert len({id(entry) for entry in live}) == len(live)
    assert len(queue._heap) <= queue._heap_limit()
    assert all(queue._heap[(child - 1) // 2] <= queue._heap[child] for child in range(1, len(queue._heap)))
    assert all(older < younger for older, younger in pairwise(queue._overtakers))
    assert len(queue._overtakers) <= queue._window
    assert not set(queue._overtakers) & set(sequences)
    assert all(sequences and sequences[0] < sequence < queue._next_sequence for sequence in queue._overtakers)
    assert queue.largest_overtake <= queue._window
    check_wait_bound(queue._wait_bound, list(queue._waiting))


def check_wait_bound(bound: WaitBound, waiting: list[str]) -> None:
    """Assert that these queries wait, in this order, and that the backlog is their seconds."""
    assert list(bound._waiting) == waiting
    assert len(bound._lately) >= min(len(waiting), _LATELY)
    assert math.isclose(
        bound._backlog_s, sum([seconds for seconds, _ in bound._waiting.values()]), rel_tol=1e-6, abs_tol=1e-6
    )


@check_integrity.register
def _(branches: KeptBranches) -> None:
    for tree in branches._trees.values():
        check_integrity(tree)


@check_integrity.register
def _(branches: BranchTree) -> None:
    assert branches._stated_by.keys() == branches._tree.registry.nodes.keys(), "the chunks of other branches are known"
    for cache in branches._tree.tiers:
        check_integrity(cache)


@check_integrity.register
def _(tree: KnowledgeTree) -> None:
    attached = _attached(tree)
    assert {node.key: node for node in attached} == tree.registry.nodes
    for node in attached:
        assert node.parent is not None
        assert node.key == child_key(node.parent.key, node.content)
        assert node.prefix_tokens == node.parent.prefix_tokens + node.parent.tokens
        assert node.room == tree.paging.page_count(node.prefix_tokens, node.tokens) * tree.paging.page_tokens
        assert not node.detached
        assert node.copies, "a node without a copy is kept"
    for node in tree.registry.detached.values():
        assert node.detached
        assert node.locks, "a deleted node outlived its plans"
    everyone = [*attached, *tree.registry.detached.values()]
    _check_copies(tree, everyone)
    _check_locks(tree, everyone)
    _check_pins(attached)
    _check_contents(tree, attached)


def _attached(tree: KnowledgeTree) -> list[Node]:
    nodes: list[Node] = []
    for namespace, root in tree.registry.roots.items():
        assert root.content == namespace
        nodes += root.children
    for node in nodes:
        for child in node.children:
            assert child.parent is node
            nodes.append(child)
    return nodes


def _check_copies(tree: KnowledgeTree, nodes: list[Node]) -> None:
    reserved = {id(copy) for grant in tree.grants.open.values() for copy in grant.reserved}
    written = {id(copy) for batch in tree.tiers.under_way for copy in batch.writes}
    written |= {id(tree.tiers.pending_moves.target(move)) for move in tree.tiers.pending_moves}
    for gpu in tree.tiers.gpus.values():
        assert gpu.slower is tree.tiers.locations[gpu.location].host
    for cache in tree.tiers:
        copies = [copy for node in nodes if (copy := node.copy_in(cache)) is not None]
        assert cache.used == sum(copy.node.room for copy in copies)
        assert cache.copies == len(copies)
        assert cache.pinned_tokens == sum(copy.node.room for copy in copies if copy.node.pins)
        below: Counter[Node] = Counter()
        for copy in copies:
            assert copy.node.parent is not None
            below[copy.node.parent] += 1
            assert copy.held or copy.condemned or id(copy) in reserved, "room is reserved by no grant"
            assert not copy.condemned or (0 < copy.users <= copy.node.locks), "a copy outlived the plans that used it"
            assert not (copy.condemned and copy.held)
            if copy.writer is not None and copy.held and not copy.node.detached:
                assert cache.instance is None, "a GPU's copy is written by another instance"
                assert copy.writer == "" or copy.writer in tree.tiers.gpus, "a copy waits for a removed instance"
                assert id(copy) in written, "nothing will confirm a copy"
            _check_support(copy)
        for node in nodes:
            assert node.below.get(cache, 0) == below[node]
        check_integrity(cache)
        _check_pages(cache, copies)
        for copy in copies:
            node = copy.node
            free = copy.held and not (copy.writer or node.locks or node.pins or node.detached or below[node])
            assert copy.ticket or not free, "an evictable leaf is not in the eviction order"


def _check_pages(cache: TierCache, copies: list[Copy]) -> None:
    handed_out = [copy.pages for copy in copies if copy.pages is not None]
    if cache.allocator is None:
        assert not handed_out
        return
    assert len(handed_out) == len(copies), "a copy has no pages"
    assert all(
        len(copy.pages.numbers) * cache.allocator.page_tokens == copy.node.room
        for copy in copies
        if copy.pages is not None
    )
    check_pages(cache.allocator, handed_out)


def _check_support(copy: Copy) -> None:
    """Assert that a parent's copy supports this one."""
    node, parent = copy.node, copy.node.parent
    assert parent is not None
    if parent.parent is None or node.detached or copy.condemned:
        return
    assert any((above.held or not copy.held) and above.cache.reaches(copy.cache) for above in parent.copies), (
        "a copy's parent does not support it"
    )


def _check_locks(tree: KnowledgeTree, nodes: list[Node]) -> None:
    locks = Counter(node for grant in tree.grants.open.values() for node in grant.locked)
    for node in nodes:
        assert node.locks == locks[node]
        assert not node.locks or node.parent is None or node.parent.parent is None or node.parent.locks
    for grant in tree.grants.open.values():
        assert not grant.completed


def _check_pins(nodes: list[Node]) -> None:
    for node in nodes:
        assert node.pins >= max((child.pins for child in node.children), default=0)


def _check_contents(tree: KnowledgeTree, nodes: list[Node]) -> None:
    by_content: dict[str, set[Node]] = {}
    for node in nodes:
        by_content.setdefault(node.content, set()).add(node)
    assert by_content == {content: set(tree.registry.nodes_of(content)) for content in tree.registry.by_content}


@check_integrity.register
def _(cache: TierCache) -> None:
    assert 0 <= cache.used <= cache.capacity
    check_integrity(cache._order)


@check_integrity.register
def _(order: EvictionOrder) -> None:
    """An order that a test has put around another one."""
    check_integrity(order._order)


@check_integrity.register
def _(order: PriorityOrder) -> None:
    live = [entry for entry in order._entries if entry[3].ticket == entry[2]]
    assert len(live) == order._live
    assert len({id(entry[3]) for entry in live}) == len(live)
    for entered, _, _, copy in live:
        assert entered == copy.entered
        assert entered <= order._current(copy)


@check_integrity.register
def _(order: SampledOrder) -> None:
    for ticket, copy in enumerate(order._copies, start=1):
        assert copy.ticket == ticket
    assert all(copy.ticket for copy in order._candidates)


def check_pages(allocator: PageAllocator, handed_out: list[Pages]) -> None:
    """Assert that exactly these pages are handed out, each once, and that the others are free."""
    assert [allocator.pages(pages.numbers[0]) for pages in handed_out] == handed_out
    stamps = sorted(pages.stamp for pages in handed_out)
    assert sorted(stamp for stamp in allocator._stamps if stamp) == stamps
    assert len(set(stamps)) == len(stamps)
    assert sorted(at for at, stamp in enumerate(allocator._stamps) if not stamp) == sorted(allocator._unused)
    assert all(stamp < allocator._next_stamp for stamp in stamps)
    free, index = [], allocator._first_free
    for _ in range(allocator._free):
        free.append(index)
        index = allocator._links[index]
    assert not free or free[-1] == allocator._last_free
    assert not any(allocator._links[index] & _LAST for index in free)
    held = [number - allocator._first_page for pages in handed_out for number in pages.numbers]
    assert sorted([*held, *free]) == list(range(len(allocator._links)))
    if allocator._before is not None:
        in_front = dict(zip(free, [_NONE, *free], strict=False))
        assert all(before == in_front.get(index, _HELD) for index, before in enumerate(allocator._before))
