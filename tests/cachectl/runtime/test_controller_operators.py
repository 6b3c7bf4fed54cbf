"""Warming, pinning, deleting and clearing."""

import pytest
from controller_under_test import LEASE_S, TOKENS, ask, cached, fill, key, pages, path, report, sources, state, used

from protocol.cache import DocumentDeletion
from protocol.errors import PinRefused, UnknownNode
from protocol.kv import LostCopy, Move
from protocol.plans import AdmissionRequest, NotWarmed, PlannedNode, PlanOutcome, PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier

GPU, HOST, DISK = Tier


async def test_queries_find_what_was_warmed(controller):
    plan = await controller.warm(ask("warm", "ab", system="s"))
    assert plan == PrefillPlan(
        "warm",
        "one",
        "tenant",
        ask("warm", "ab", system="s").prompt,
        nodes=tuple(PlannedNode(key(contents), TOKENS, None, GPU) for contents in ("s", "sa", "sab")),
    )
    await controller.complete(report("warm"))
    assert await cached(controller, "ab", system="s") == [GPU, GPU, GPU]


async def test_nothing_is_warmed_while_a_query_runs(controller):
    await controller.admit(ask("runs"))
    before = await state(controller)
    assert await controller.warm(ask("warm", "ab")) is NotWarmed.BUSY
    assert await state(controller) == before


@pytest.mark.parametrize("documents", ["", "a", "ab"])
async def test_cached_documents_are_not_warmed(controller, documents):
    await fill(controller, "ab")
    before = await state(controller)
    assert await controller.warm(ask("warm", documents)) is NotWarmed.CACHED
    assert await state(controller) == before


async def test_missing_documents_behind_cached_ones_are_warmed(controller):
    await fill(controller, "a")
    assert sources(await controller.warm(ask("warm", "ab"))) == [GPU, None]


async def test_the_lease_of_a_warming_plan_expires(controller, clock):
    await controller.warm(ask("warm", "ab"))
    clock.now = LEASE_S
    assert await controller.warm(ask("again", "ab")) is not None
    assert (await controller.stats()).expired == 1


async def test_warming_uses_an_idle_instance_and_never_waits(build):
    controller = build("one", "two", max_queued=9)
    await fill(controller, "ab")
    assert (await controller.admit(ask("runs"))).instance == "one"
    # The longest cached prefix is on "one", which is busy.
    plan = await controller.warm(ask("warm", "abc"))
    assert plan is None or plan.instance == "two"
    assert (await controller.stats()).queued == 0
    await controller.complete(report("runs"))


async def test_warming_avoids_a_busy_instance_with_a_free_slot(build):
    controller = build("one", "two", max_running=2)
    await fill(controller, "ab")
    assert (await controller.admit(ask("runs"))).instance == "one"
    plan = await controller.warm(ask("warm", "abc"))
    assert plan is None or plan.instance == "two"


# Pinning, deleting and clearing


async def test_a_pinned_document_outlasts_more_frequent_ones(build):
    controller = build(gpu=20)
    await fill(controller, "a")
    await controller.pin(path("a"))
    await fill(controller, "b", "b", "c", "c", "d")
    assert await cached(controller, "a") == [GPU]
    await controller.pin(path("a"), pinned=False)
    await fill(controller, "e", "e", "f", "f", "g")
    assert await cached(controller, "a") == [None]


async def test_a_pin_keeps_the_whole_path(build):
    controller = build(gpu=40)
    await fill(controller, "ab")
    await controller.pin(path("ab"))
    await fill(controller, "c", "d", "e", "c", "d")
    assert await cached(controller, "ab") == [GPU, GPU]
    [first] = [node for node in (await controller.tree(1, 1000)).namespaces["tenant"] if node.content == "a"]
    assert first.pinned
    assert (await controller.stats()).tiers[0].pinned_tokens == 20


async def test_a_system_prompt_is_pinned_automatically(build):
    controller = build(gpu=30)
    await fill(controller, "a", system="s")
    assert (await controller.stats()).tiers[0].pinned_tokens == TOKENS
    await fill(controller, "xyz", "uvw")
    assert await cached(controller, "", system="s") == [GPU]


async def test_only_a_leading_system_prompt_is_pinned(controller):
    segments = [Segment(SegmentKind(kind), kind, (1, 2)) for kind in ("document", "system", "question")]
    await controller.admit(AdmissionRequest("query", "tenant", Prompt(tuple(segments)), found_at=()))
    assert (await controller.stats()).tiers[0].pinned_tokens == 0


async def test_a_pinned_document_is_copied_to_host_memory_before_any_eviction(build):
    controller = build(host=1000)
    await fill(controller, "a")
    await controller.pin(path("a"))
    plan = await controller.admit(ask("query", "a"))
    assert plan.moves == (Move(key("a"), TOKENS, GPU, HOST, "one", evict=False, pages=pages(1)),)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("contents", ["", "b", "ax", "abc"])
async def test_pinning_a_path_that_is_not_in_the_tree_is_refused(controller, contents, pinned):
    await fill(controller, "ab")
    await controller.pin(path("ab"))
    before = await state(controller)
    with pytest.raises(UnknownNode):
        await controller.pin(path(contents), pinned)
    assert await state(controller) == before


async def test_unpinning_a_path_that_is_not_pinned_is_refused(controller):
    await fill(controller, "ab")
    await controller.pin(path("a"))
    before = await state(controller)
    with pytest.raises(UnknownNode):
        await controller.pin(path("ab"), pinned=False)
    assert await state(controller) == before


async def test_pins_take_at_most_half_of_a_tier(build):
    controller = build(gpu=50)
    await fill(controller, "abc")
    before = await state(controller)
    with pytest.raises(PinRefused):
        await controller.pin(path("abc"))
    assert await state(controller) == before
    await controller.pin(path("ab"))


async def test_pins_are_counted_and_removed_one_by_one(build):
    controller = build()
    await fill(controller, "ab", "ac")
    await controller.pin(path("ab"))
    await controller.pin(path("ac"))
    await controller.pin(path("ab"), pinned=False)
    assert (await controller.stats()).tiers[0].pinned_tokens == 20
    await controller.pin(path("ac"), pinned=False)
    assert (await controller.stats()).tiers[0].pinned_tokens == 0


async def test_losing_a_document_removes_its_pin(controller):
    await fill(controller, "ab")
    await controller.pin(path("ab"))
    await controller.admit(ask("query", "ab"))
    await controller.complete(report("query", lost=(LostCopy(key("ab"), GPU),)))
    assert (await controller.stats()).tiers[0].pinned_tokens == 0


async def test_deleting_a_document_removes_everything_behind_it(controller):
    await fill(controller, "abc", "abd", "xb", "x")
    assert await controller.delete_document(DocumentDeletion(("b", "never seen"))) == 4
    assert await cached(controller, "abc") == [GPU, None, None]
    assert await cached(controller, "xb") == [GPU, None]
    assert await controller.delete_document(DocumentDeletion(("b",))) == 0


async def test_all_chunks_of_a_deletion_are_removed_and_counted_once(controller):
    await fill(controller, "abc", "bd")
    assert await controller.delete_document(DocumentDeletion(("a", "b", "c"))) == 5
    assert (await controller.tree(9, 1000)).namespaces == {}


async def test_a_document_is_deleted_in_one_namespace_or_in_all(controller):
    for namespace in ("tenant", "other", "third"):
        await controller.admit(ask("fill", "a", namespace=namespace))
        await controller.complete(report("fill"))
    assert await controller.delete_document(DocumentDeletion(("a",), "nobody")) == 0
    assert await controller.delete_document(DocumentDeletion(("a",), "other")) == 1
    assert list((await controller.tree(1, 1000)).namespaces) == ["tenant", "third"]
    assert await controller.delete_document(DocumentDeletion(("a",))) == 2


async def test_the_next_plan_drops_a_deleted_document(build):
    controller = build(host=1000)
    await fill(controller, "a")
    await controller.delete_document(DocumentDeletion(("a",)))
    plan = await controller.admit(ask("query", "b"))
    assert plan.moves == (Move(key("a"), TOKENS, GPU, None, "one"),)


async def test_a_plan_continues_after_its_document_is_deleted_and_leaves_nothing(build):
    controller = build(max_running=2)
    await fill(controller, "a")
    await controller.admit(ask("query", "ab"))
    assert await controller.delete_document(DocumentDeletion(("a",))) == 2
    assert sources(await controller.admit(ask("next", "a"))) == [None]
    await controller.complete(report("next", PlanOutcome.CANCELLED, computed=0))
    await controller.complete(report("query"))
    assert (await controller.tree(9, 1000)).namespaces == {}
    assert await used(controller) == {(GPU, "one"): 0}


async def test_clearing_drops_everything_including_pins(build):
    controller = build(host=1000)
    await fill(controller, "ab", "c", system="s")
    await controller.pin(path("sa"))
    assert await controller.clear() == 4
    assert (await controller.tree(9, 1000)).namespaces == {}
    assert set((await used(controller)).values()) == {0}
    assert await controller.clear() == 0
    assert await cached(controller, "ab", system="s") == [None, None, None]
