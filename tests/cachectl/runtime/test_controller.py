"""What the controller says of plans, leases, the tree and speculation; what it refuses leaves everything as it was."""

import asyncio

import pytest
from controller_under_test import (
    LEASE_S,
    TOKENS,
    Clock,
    Costs,
    ask,
    cached,
    checked_controllers,
    fill,
    key,
    report,
    sources,
    waiting,
)
from pydantic import ValidationError

from cachectl.runtime.controller import Controller
from cachectl.settings import ControllerSettings
from cachectl.tree.tier_manager import Capacities
from protocol.cache import CachePath, DocumentDeletion, RestoreResult, TierStats
from protocol.errors import (
    ConfigError,
    InvalidRequest,
    Overloaded,
    PinRefused,
    UnknownInstance,
    UnknownNode,
    UnknownPlan,
)
from protocol.generation import StepBudget
from protocol.kv import HeldNode, LostCopy, Move, Pages, ResidencyReport
from protocol.plans import (
    AdmissionRequest,
    PlannedNode,
    PlanOutcome,
    PrefillPlan,
    SpeculationDecision,
)
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier

GPU, HOST, DISK = Tier.GPU, Tier.HOST, Tier.DISK
START, KEEP, DROP, WAIT = (
    SpeculationDecision.START,
    SpeculationDecision.KEEP,
    SpeculationDecision.DROP,
    SpeculationDecision.WAIT,
)


def kept(plan: PrefillPlan) -> list[Tier | None]:
    return [node.kept for node in plan.nodes]


def path(contents: str) -> CachePath:
    return CachePath("tenant", tuple(contents))


def held(contents: str, tokens: int = TOKENS, pages: Pages | None = None) -> HeldNode:
    return HeldNode("tenant", tuple(contents), tokens, pages)


def pages(stamp: int, first: int = 0) -> Pages:
    """Pages of one token for a document."""
    return Pages(tuple(range(first, first + TOKENS)), stamp)


async def used(controller: Controller) -> dict[tuple[Tier, str | None], int]:
    return {(tier.tier, tier.instance): tier.used_tokens for tier in (await controller.stats()).tiers}


async def state(controller: Controller) -> object:
    """All that can be seen of a controller."""
    return await controller.stats(), await controller.tree(99, 1000)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def build(clock):
    with checked_controllers(clock, policy="PGDSF", max_running=1, max_queued=1) as build:
        yield build


@pytest.fixture
def controller(build):
    return build()


# Plans


async def test_a_plan_carries_the_prompt_and_the_time_it_waited(controller, clock):
    await controller.admit(ask("a"))
    task = await waiting(controller, ask("b", "xy", namespace="other"))
    clock.now = 2.0
    await controller.complete(report("a"))
    plan = await task
    assert plan.prompt == ask("b", "xy").prompt
    assert (plan.query_id, plan.instance, plan.namespace, plan.queued_ms) == ("b", "one", "other", 2000.0)


async def test_a_plan_names_every_segment_in_front_of_the_question(controller):
    await fill(controller, "a", system="s")
    plan = await controller.admit(ask("query", "ab", system="s"))
    assert plan.nodes == (
        PlannedNode(key("s"), TOKENS, source=GPU, kept=GPU),
        PlannedNode(key("sa"), TOKENS, source=GPU, kept=GPU),
        PlannedNode(key("sab"), TOKENS, source=None, kept=GPU),
    )
    assert plan.moves == ()


async def test_segments_behind_the_question_and_empty_ones_are_no_nodes(controller):
    segments = (
        Segment(SegmentKind.SYSTEM, "s", ()),
        Segment(SegmentKind.DOCUMENT, "a", (1, 2)),
        Segment(SegmentKind.DOCUMENT, "b", ()),
        Segment(SegmentKind.DOCUMENT, "c", (3,)),
        Segment(SegmentKind.QUESTION, "q", (4,)),
        Segment(SegmentKind.DOCUMENT, "d", (5,)),
        Segment(SegmentKind.QUESTION, "r", (6,)),
    )
    plan = await controller.admit(AdmissionRequest("query", "tenant", Prompt(segments), searched_at=0.0))
    assert [(node.key, node.tokens) for node in plan.nodes] == [(key("a"), 2), (key("ac"), 1)]


@pytest.mark.parametrize("prompt", [Prompt(()), ask("query").prompt], ids=["nothing", "a question"])
async def test_a_prompt_without_documents_has_a_plan_without_nodes(controller, prompt):
    plan = await controller.admit(AdmissionRequest("query", "tenant", prompt, searched_at=0.0))
    assert plan.nodes == ()
    await controller.complete(report("query"))
    assert (await controller.tree(9, 1000)).namespaces == {}


async def test_the_same_documents_are_cached_once_the_first_query_has_completed_and_not_before(build):
    controller = build(max_running=3)
    await controller.admit(ask("first", "ab"))
    assert sources(await controller.admit(ask("second", "ab"))) == [None, None]
    await controller.complete(report("first"))
    assert sources(await controller.admit(ask("third", "ab"))) == [GPU, GPU]


@pytest.mark.parametrize(
    ("documents", "found_in"),
    [("a", [GPU]), ("abx", [GPU, GPU, None]), ("axb", [GPU, None, None]), ("ba", [None, None]), ("x", [None])],
)
async def test_documents_are_cached_behind_the_same_documents_alone(controller, documents, found_in):
    await fill(controller, "ab")
    assert await cached(controller, documents) == found_in


async def test_tenants_share_nothing(controller):
    await fill(controller, "ab")
    plan = await controller.admit(ask("query", "ab", namespace="another"))
    assert sources(plan) == [None, None]


async def test_what_makes_room_is_moved_by_the_plan_that_needs_it(build):
    controller = build(gpu=20, host=20)
    await fill(controller, "ab")
    plan = await controller.admit(ask("query", "x"))
    assert plan.moves == (Move(key("ab"), TOKENS, GPU, HOST, "one", pages=pages(1)),)
    await controller.complete(report("query"))
    again = await controller.admit(ask("again", "ab"))
    assert (sources(again), kept(again)) == ([GPU, HOST], [GPU, GPU])
    # The only leaf in the GPU that is not in use goes down to host memory, too.
    assert again.moves == (Move(key("x"), TOKENS, GPU, HOST, "one", pages=pages(2, first=10)),)
    assert [node.pages for node in again.nodes] == [None, pages(1)]


async def test_what_has_no_room_is_computed_and_not_kept(build):
    controller = build(gpu=15)
    plan = await controller.admit(ask("query", "ab"))
    assert (sources(plan), kept(plan)) == ([None, None], [GPU, None])
    await controller.complete(report("query"))
    assert await cached(controller, "ab") == [GPU, None]


@pytest.mark.parametrize("settings", [{"policy": "NONE"}, {"gpu": 0}], ids=["policy NONE", "no room"])
async def test_without_a_cache_plans_are_made_all_the_same(build, settings):
    controller = build(**settings)
    await fill(controller, "ab")
    plan = await controller.admit(ask("query", "ab"))
    assert (sources(plan), kept(plan)) == ([None, None], [None, None])


# How plans end


@pytest.mark.parametrize("outcome", [PlanOutcome.FAILED, PlanOutcome.CANCELLED])
async def test_what_ended_before_its_first_token_leaves_nothing(controller, outcome):
    before = await controller.tree(9, 1000)
    await controller.admit(ask("query", "ab"))
    assert await used(controller) == {(GPU, "one"): 20}
    await controller.complete(report("query", outcome, computed=0))
    assert await controller.tree(9, 1000) == before
    assert await used(controller) == {(GPU, "one"): 0}


@pytest.mark.parametrize("outcome", [PlanOutcome.FAILED, PlanOutcome.CANCELLED])
async def test_what_ended_after_its_first_token_keeps_what_was_computed(controller, outcome):
    await controller.admit(ask("query", "ab"))
    await controller.complete(report("query", outcome, computed=21))
    assert await cached(controller, "ab") == [GPU, GPU]


@pytest.mark.parametrize(
    ("outcome", "computed"), [(PlanOutcome.COMPLETED, 1), (PlanOutcome.FAILED, 1), (PlanOutcome.FAILED, 0)]
)
async def test_a_copy_that_could_not_be_loaded_is_not_planned_again(controller, outcome, computed):
    await fill(controller, "abc", "abd", "x")
    await controller.admit(ask("query", "abc"))
    await controller.complete(report("query", outcome, computed, lost=(LostCopy(key("ab"), GPU),)))
    assert await cached(controller, "abc") == [GPU, None, None]
    assert await cached(controller, "abd") == [GPU, None, None]
    assert await cached(controller, "x") == [GPU]


async def test_a_copy_that_could_not_be_saved_is_not_planned(controller):
    await controller.admit(ask("query", "abc"))
    await controller.complete(report("query", lost=(LostCopy(key("ab"), GPU),)))
    assert await cached(controller, "abc") == [GPU, None, None]


async def test_a_lost_copy_leaves_those_of_other_tiers(build):
    controller = build(gpu=20, host=20)
    await fill(controller, "ab", "x", "ab")
    await controller.admit(ask("query", "ab"))
    await controller.complete(report("query", lost=(LostCopy(key("ab"), GPU),)))
    assert await cached(controller, "ab") == [GPU, HOST]


async def test_a_copy_that_was_lost_twice_or_is_in_no_such_tier_is_no_error(controller):
    await fill(controller, "ab")
    await controller.admit(ask("query", "ab"))
    lost = (LostCopy(key("ab"), GPU), LostCopy(key("ab"), GPU), LostCopy(key("a"), DISK))
    await controller.complete(report("query", lost=lost))
    assert await cached(controller, "ab") == [GPU, None]


async def test_reports_are_counted_by_outcome_and_tokens(build):
    controller = build(max_running=3)
    for query_id in "abc":
        await controller.admit(ask(query_id))
    await controller.complete(report("a", computed=7, cached=5))
    await controller.complete(report("b", PlanOutcome.FAILED, computed=0))
    await controller.complete(report("c", PlanOutcome.CANCELLED, computed=1))
    stats = await controller.stats()
    assert (stats.completed, stats.failed, stats.cancelled) == (1, 1, 1)
    assert (stats.cached_tokens, stats.computed_tokens) == (5, 8)
    assert (stats.admitted, stats.running, stats.queued) == (3, 0, 0)


# Leases


async def test_a_lost_lease_expires_and_frees_all_that_it_held(controller, clock):
    await fill(controller, "a")
    before = (await controller.tree(9, 1000)).namespaces["tenant"][0]
    await controller.admit(ask("lost", "ab"))
    clock.now = LEASE_S - 0.1
    controller.expire_leases()
    assert (await controller.stats()).running == 1
    assert (await controller.tree(9, 1000)).namespaces["tenant"][0].locked
    clock.now = LEASE_S
    controller.expire_leases()
    stats = await controller.stats()
    assert (stats.expired, stats.running) == (1, 0)
    after = (await controller.tree(9, 1000)).namespaces["tenant"][0]
    assert (after.locked, after.children) == (before.locked, before.children) == (False, ())
    assert await used(controller) == {(GPU, "one"): TOKENS}


async def test_a_query_that_comes_takes_the_place_of_a_lost_one(controller, clock):
    await controller.admit(ask("lost", "a"))
    clock.now = LEASE_S
    plan = await controller.admit(ask("next", "a"))
    assert sources(plan) == [None]
    assert (await controller.stats()).running == 1


async def test_who_waits_takes_the_place_of_a_lost_one_and_has_a_whole_lease(controller, clock):
    await controller.admit(ask("lost"))
    task = await waiting(controller, ask("patient"))
    clock.now = LEASE_S
    controller.expire_leases()
    assert (await task).queued_ms == LEASE_S * 1000
    clock.now = 2 * LEASE_S - 0.1
    controller.expire_leases()
    assert (await controller.stats()).running == 1
    clock.now = 2 * LEASE_S
    controller.expire_leases()
    assert ((await controller.stats()).running, (await controller.stats()).expired) == (0, 2)


async def test_waiting_is_no_lease_and_does_not_expire(controller, clock):
    await controller.admit(ask("runs"))
    task = await waiting(controller, ask("patient"))
    clock.now = LEASE_S / 2
    await controller.complete(report("runs"))
    await controller.complete(report((await task).query_id))
    await controller.admit(ask("runs"))
    task = await waiting(controller, ask("patient"))
    clock.now = LEASE_S
    controller.expire_leases()
    assert ((await controller.stats()).expired, (await controller.stats()).queued) == (0, 1)
    await controller.complete(report("runs"))
    await task


async def test_a_report_that_comes_after_its_lease_is_refused_and_counts_nothing(controller, clock):
    await controller.admit(ask("lost", "a"))
    clock.now = LEASE_S
    controller.expire_leases()
    before = await state(controller)
    with pytest.raises(UnknownPlan):
        await controller.complete(report("lost", computed=11))
    assert await state(controller) == before


# Refusals


async def test_overload_is_refused_at_once_and_counted(controller):
    await controller.admit(ask("runs"))
    task = await waiting(controller, ask("waits"))
    before = await controller.tree(9, 1000)
    for query_id in "ab":
        with pytest.raises(Overloaded, match="1 queries are running and 1 waiting"):
            await controller.admit(ask(query_id, "a"))
    stats = await controller.stats()
    assert (stats.rejected, stats.running, stats.queued) == (2, 1, 1)
    assert await controller.tree(9, 1000) == before
    await controller.complete(report("runs"))
    await task


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (report("unknown"), UnknownPlan),
        (report("ended"), UnknownPlan),
        (report("runs", lost=(LostCopy(key("a"), GPU), LostCopy("0", GPU))), UnknownNode),
        (report("runs", lost=(LostCopy(key("a")[1:], GPU),)), UnknownNode),
        (report("runs", lost=(LostCopy("not hexadecimal", GPU),)), UnknownNode),
        (report("runs", lost=(LostCopy("é" * 32, GPU),)), UnknownNode),
        (report("runs", PlanOutcome.FAILED, computed=0, lost=(LostCopy("x", GPU),)), UnknownNode),
        (report("waits", PlanOutcome.CANCELLED, computed=0, lost=(LostCopy("x", GPU),)), UnknownNode),
    ],
    ids=[
        "unknown query",
        "completed twice",
        "one good and one broken key",
        "half a key",
        "not hexadecimal",
        "not ASCII",
        "broken key, failed",
        "broken key, waiting",
    ],
)
async def test_a_report_that_cannot_be_is_refused_and_changes_nothing(build, refused, error):
    controller = build()
    await fill(controller, "x")
    await controller.admit(ask("ended", "y"))
    await controller.complete(report("ended"))
    await controller.admit(ask("runs", "ab"))
    task = await waiting(controller, ask("waits", "a"))
    before = await state(controller)
    with pytest.raises(error):
        await controller.complete(refused)
    assert await state(controller) == before
    assert not task.done()
    await controller.complete(report("runs"))
    await controller.complete(report((await task).query_id))


async def test_a_query_that_runs_is_not_admitted_again(controller):
    await controller.admit(ask("twice", "a"))
    before = await state(controller)
    with pytest.raises(InvalidRequest, match="twice"):
        await controller.admit(ask("twice", "b"))
    assert await state(controller) == before
    await controller.complete(report("twice"))
    assert sources(await controller.admit(ask("twice", "a"))) == [GPU]


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "MRU"},
        {"policy": "pgdsf"},
        {"swap": "twice"},
        {"delete_timeout_s": 0},
        {"frequency_window_s": 0},
        {"reorder_window": -1},
        {"max_running": 0},
        {"max_queued": -1},
        {"max_prefill_bs": -1},
        {"lease_s": 0},
        {"max_waiting": 1},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises((ValidationError, ConfigError)) as caught:
        ControllerSettings(**wrong)
    assert next(iter(wrong)) in str(caught.value)


def test_the_default_settings_make_a_controller(clock):
    Controller(ControllerSettings(), ["one"], clock, Costs(), Capacities(0)).check_integrity()


# Warming up


async def test_what_was_warmed_is_found_by_queries(controller):
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


async def test_nothing_is_warmed_where_something_runs(controller):
    await controller.admit(ask("runs"))
    before = await state(controller)
    assert await controller.warm(ask("warm", "ab")) is None
    assert await state(controller) == before


@pytest.mark.parametrize("documents", ["", "a", "ab"])
async def test_nothing_is_warmed_that_is_there(controller, documents):
    await fill(controller, "ab")
    before = await state(controller)
    assert await controller.warm(ask("warm", documents)) is None
    assert await state(controller) == before


async def test_the_rest_of_what_is_there_is_warmed(controller):
    await fill(controller, "a")
    assert sources(await controller.warm(ask("warm", "ab"))) == [GPU, None]


async def test_a_lost_warming_expires(controller, clock):
    await controller.warm(ask("warm", "ab"))
    clock.now = LEASE_S
    assert await controller.warm(ask("again", "ab")) is not None
    assert (await controller.stats()).expired == 1


async def test_warming_goes_to_an_idle_instance_and_never_waits_for_a_busy_one(build):
    controller = build("one", "two", max_queued=9)
    await fill(controller, "ab")
    assert (await controller.admit(ask("runs"))).instance == "one"
    # The longest cached prefix is on "one", which is busy.
    plan = await controller.warm(ask("warm", "abc"))
    assert plan is None or plan.instance == "two"
    assert (await controller.stats()).queued == 0
    await controller.complete(report("runs"))


async def test_warming_adds_nothing_to_a_busy_instance_that_has_a_free_place(build):
    controller = build("one", "two", max_running=2)
    await fill(controller, "ab")
    assert (await controller.admit(ask("runs"))).instance == "one"
    plan = await controller.warm(ask("warm", "abc"))
    assert plan is None or plan.instance == "two"


# What operators do


async def test_what_is_pinned_outlasts_what_is_used_more(build):
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


async def test_a_system_prompt_is_pinned_by_itself(build):
    controller = build(gpu=30)
    await fill(controller, "a", system="s")
    assert (await controller.stats()).tiers[0].pinned_tokens == TOKENS
    await fill(controller, "xyz", "uvw")
    assert await cached(controller, "", system="s") == [GPU]


async def test_only_a_system_prompt_that_leads_the_prompt_is_pinned(controller):
    segments = [Segment(SegmentKind(kind), kind, (1, 2)) for kind in ("document", "system", "question")]
    await controller.admit(AdmissionRequest("query", "tenant", Prompt(tuple(segments)), searched_at=0.0))
    assert (await controller.stats()).tiers[0].pinned_tokens == 0


async def test_a_pinned_document_is_copied_to_host_memory_ahead_of_any_eviction(build):
    controller = build(host=1000)
    await fill(controller, "a")
    await controller.pin(path("a"))
    plan = await controller.admit(ask("query", "a"))
    assert plan.moves == (Move(key("a"), TOKENS, GPU, HOST, "one", evict=False, pages=pages(1)),)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("contents", ["", "b", "ax", "abc"])
async def test_what_is_not_in_the_tree_is_neither_pinned_nor_unpinned(controller, contents, pinned):
    await fill(controller, "ab")
    await controller.pin(path("ab"))
    before = await state(controller)
    with pytest.raises(UnknownNode):
        await controller.pin(path(contents), pinned)
    assert await state(controller) == before


async def test_what_was_not_pinned_is_not_unpinned(controller):
    await fill(controller, "ab")
    await controller.pin(path("a"))
    before = await state(controller)
    with pytest.raises(UnknownNode):
        await controller.pin(path("ab"), pinned=False)
    assert await state(controller) == before


async def test_pins_leave_half_of_a_tier_to_what_is_used(build):
    controller = build(gpu=50)
    await fill(controller, "abc")
    before = await state(controller)
    with pytest.raises(PinRefused):
        await controller.pin(path("abc"))
    assert await state(controller) == before
    await controller.pin(path("ab"))


async def test_pins_are_counted_and_taken_back_one_by_one(build):
    controller = build()
    await fill(controller, "ab", "ac")
    await controller.pin(path("ab"))
    await controller.pin(path("ac"))
    await controller.pin(path("ab"), pinned=False)
    assert (await controller.stats()).tiers[0].pinned_tokens == 20
    await controller.pin(path("ac"), pinned=False)
    assert (await controller.stats()).tiers[0].pinned_tokens == 0


async def test_the_pin_of_a_lost_document_goes_with_it(controller):
    await fill(controller, "ab")
    await controller.pin(path("ab"))
    await controller.admit(ask("query", "ab"))
    await controller.complete(report("query", lost=(LostCopy(key("ab"), GPU),)))
    assert (await controller.stats()).tiers[0].pinned_tokens == 0


async def test_a_deleted_document_goes_with_all_that_stands_behind_it(controller):
    await fill(controller, "abc", "abd", "xb", "x")
    assert await controller.delete_document(DocumentDeletion(("b", "never seen"))) == 4
    assert await cached(controller, "abc") == [GPU, None, None]
    assert await cached(controller, "xb") == [GPU, None]
    assert await controller.delete_document(DocumentDeletion(("b",))) == 0


async def test_all_chunks_of_a_document_are_deleted_and_counted_once(controller):
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


async def test_a_deleted_document_is_ordered_to_be_dropped(build):
    controller = build(host=1000)
    await fill(controller, "a")
    await controller.delete_document(DocumentDeletion(("a",)))
    plan = await controller.admit(ask("query", "b"))
    assert plan.moves == (Move(key("a"), TOKENS, GPU, None, "one"),)


async def test_a_plan_on_a_document_that_is_deleted_goes_on_and_leaves_nothing(build):
    controller = build(max_running=2)
    await fill(controller, "a")
    await controller.admit(ask("query", "ab"))
    assert await controller.delete_document(DocumentDeletion(("a",))) == 2
    assert sources(await controller.admit(ask("next", "a"))) == [None]
    await controller.complete(report("next", PlanOutcome.CANCELLED, computed=0))
    await controller.complete(report("query"))
    assert (await controller.tree(9, 1000)).namespaces == {}
    assert await used(controller) == {(GPU, "one"): 0}


async def test_clearing_drops_everything_even_pins(build):
    controller = build(host=1000)
    await fill(controller, "ab", "c", system="s")
    await controller.pin(path("sa"))
    assert await controller.clear() == 4
    assert (await controller.tree(9, 1000)).namespaces == {}
    assert set((await used(controller)).values()) == {0}
    assert await controller.clear() == 0
    assert await cached(controller, "ab", system="s") == [None, None, None]


async def test_a_restored_tree_is_found_by_queries(build):
    controller = build("one", "two", host=1000, disk=1000)
    result = await controller.restore(
        [
            ResidencyReport(DISK, (held("ax"), held("axy"))),
            ResidencyReport(HOST, (held("a", pages=pages(1)),)),
            ResidencyReport(GPU, (held("ab"), held("a")), "two"),
        ]
    )
    assert result == RestoreResult(restored=5, refused=0)
    plan = await controller.admit(ask("query", "abc"))
    assert (plan.instance, sources(plan)) == ("two", [GPU, GPU, None])
    plan = await controller.admit(ask("next", "axy"))
    assert (plan.instance, sources(plan)) == ("one", [HOST, DISK, DISK])


async def test_restoring_twice_is_restoring_once(build):
    controller = build(host=1000)
    reports = [
        ResidencyReport(GPU, (held("a"), held("ab")), "one"),
        ResidencyReport(HOST, (held("a", pages=pages(3, first=7)),)),
    ]
    assert await controller.restore(reports) == RestoreResult(restored=3, refused=0)
    before = await state(controller)
    assert await controller.restore(reports) == RestoreResult(restored=3, refused=0)
    assert await state(controller) == before


async def test_what_has_no_room_or_no_parent_is_not_restored_and_is_ordered_to_be_dropped(build):
    controller = build(gpu=25, host=5)
    result = await controller.restore(
        [
            ResidencyReport(GPU, (held("a"), held("b"), held("xy"), held("abc", tokens=1)), "one"),
            ResidencyReport(HOST, (held("a"),)),
        ]
    )
    assert result == RestoreResult(restored=2, refused=3)
    plan = await controller.admit(ask("query"))
    assert set(plan.moves) == {
        Move(key("xy"), TOKENS, GPU, None, "one"),
        Move(key("abc"), 1, GPU, None, "one"),
        Move(key("a"), TOKENS, HOST, None, None),
    }


async def test_who_waits_for_documents_that_are_restored_overtakes(build):
    controller = build(max_queued=2)
    await controller.admit(ask("runs"))
    older = await waiting(controller, ask("older", "x"))
    younger = await waiting(controller, ask("younger", "ab"))
    await controller.restore([ResidencyReport(GPU, (held("a"), held("ab")), "one")])
    await controller.complete(report("runs"))
    first, _ = await asyncio.wait({older, younger}, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().query_id for task in first] == ["younger"]
    await controller.complete(report("younger"))
    await older


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (ResidencyReport(GPU, (held("b"),), "gone"), UnknownInstance),
        (ResidencyReport(GPU, (held("b"),)), UnknownInstance),
        (ResidencyReport(HOST, (held("b"),), "one"), InvalidRequest),
        (ResidencyReport(HOST, (held(""),)), InvalidRequest),
        (ResidencyReport(HOST, (held("b"), held("c", tokens=0))), InvalidRequest),
    ],
    ids=["unknown instance", "no instance", "host memory of an instance", "no path", "no tokens"],
)
async def test_a_residency_report_that_cannot_be_is_refused_and_nothing_restored(build, broken, error):
    controller = build(host=1000)
    await fill(controller, "z")
    before = await state(controller)
    with pytest.raises(error):
        await controller.restore([ResidencyReport(HOST, (held("a"),)), broken])
    assert await state(controller) == before


# What can be seen


async def test_stats_tell_tiers_and_planned_tokens(build):
    controller = build("one", "two", gpu=20, host=15)
    await fill(controller, "ab")
    await controller.admit(ask("query", "c", system="s"))
    stats = await controller.stats()
    assert (stats.policy, stats.admitted, stats.running, stats.largest_overtake) == ("PGDSF", 2, 1, 0)
    assert (stats.planned_cached_tokens, stats.planned_tokens) == (0, 40)
    # "b" made room for "s" and went to host memory; "a" made room for "c" and took the cache of "b" there.
    assert stats.tiers == (
        TierStats(GPU, "one", 20, 20, 10, nodes=2, evictions=2),
        TierStats(GPU, "two", 20, 0, 0, nodes=0, evictions=0),
        TierStats(HOST, None, 15, 10, 0, nodes=1, evictions=1),
    )
    await controller.complete(report("query"))
    await controller.admit(ask("again", "cd", system="s"))
    stats = await controller.stats()
    assert (stats.planned_cached_tokens, stats.planned_tokens) == (20, 70)


async def test_tiers_without_room_are_not_told(build):
    assert (await build(gpu=0).stats()).tiers == ()
    assert [tier.tier for tier in (await build(gpu=0, disk=1).stats()).tiers] == [DISK]


@pytest.mark.parametrize(("depth", "seen", "hidden"), [(0, "", 0), (1, "a", 2), (2, "abc", 0), (9, "abc", 0)])
async def test_the_tree_is_shown_down_to_a_depth(controller, depth, seen, hidden):
    await fill(controller, "ab", "ac", "ac")
    view = await controller.tree(depth, 1000)
    assert view.nodes == 3
    shown = list(view.namespaces["tenant"])
    for node in shown:
        shown += node.children
    assert sorted(node.content for node in shown) == sorted(seen)
    assert sum(node.hidden for node in shown) == hidden
    assert [node.content for node in shown[1:]] in ([], ["c", "b"]), "the most used first"


async def test_a_node_is_shown_with_its_places_and_its_uses(build):
    controller = build("one", "two", host=1000)
    await fill(controller, "a")
    await controller.pin(path("a"))
    await fill(controller, "x")
    await controller.admit(ask("query", "ab"))
    view = await controller.tree(9, 1000)
    [first, second] = view.namespaces["tenant"]
    assert (first.key, first.content, first.tokens, first.places) == (key("a"), "a", TOKENS, ("gpu@one", "host"))
    assert (first.frequency, first.requests_ago, first.locked, first.pinned) == (2.0, 0, True, True)
    [reserved] = first.children
    assert (reserved.content, reserved.places, reserved.locked, reserved.pinned) == ("b", (), True, False)
    assert (second.content, second.requests_ago, second.locked, second.pinned) == ("x", 1, False, False)
    assert view.tiers == (await controller.stats()).tiers


@pytest.mark.parametrize(("depth", "limit", "param"), [(-1, 1000, "depth"), (-99, -1, "depth"), (9, -1, "limit")])
async def test_a_negative_depth_or_limit_is_refused(controller, depth, limit, param):
    with pytest.raises(InvalidRequest) as caught:
        await controller.tree(depth, limit)
    assert caught.value.param == param


async def test_a_controller_is_ready(controller):
    await controller.ready()


# Several instances


async def test_a_query_goes_where_the_longest_prefix_is_cached(build):
    controller = build("one", "two", max_running=9)
    await fill(controller, "ab")
    assert (await controller.admit(ask("runs", question=5))).instance == "one"
    plan = await controller.admit(ask("query", "abc"))
    assert (plan.instance, sources(plan)) == ("one", [GPU, GPU, None])


async def test_a_query_goes_elsewhere_when_the_backlog_there_outweighs_its_prefix(build):
    controller = build("one", "two", max_running=9)
    await fill(controller, "ab")
    assert (await controller.admit(ask("runs", question=25))).instance == "one"
    plan = await controller.admit(ask("query", "abc"))
    assert (plan.instance, sources(plan)) == ("two", [None, None, None])


async def test_a_query_goes_where_a_place_is_left(build):
    controller = build("one", "two", max_queued=0)
    await fill(controller, "ab")
    assert (await controller.admit(ask("runs"))).instance == "one"
    assert (await controller.admit(ask("query", "ab"))).instance == "two"
    with pytest.raises(Overloaded):
        await controller.admit(ask("refused", "ab"))


# Speculation

# Each query of one document takes 11 of an engine's 22 tokens a step.
STEP = StepBudget(22, 20)


@pytest.fixture
def speculative(build):
    return build(max_running=9, max_queued=9, step=STEP)


async def hear(controller: Controller, query_id: str, documents: str, final: bool = False) -> SpeculationDecision:
    return await controller.on_candidates(query_id, tuple(documents), final)


async def begin(controller: Controller, query_id: str, documents: str, plan_id: str | None = None) -> PrefillPlan:
    """Do as a query is told that may start."""
    assert await hear(controller, query_id, documents) is START
    plan = await controller.speculate(query_id, tuple(documents), ask(plan_id or f"{query_id}~1", documents))
    assert plan is not None
    return plan


async def test_figure_11_of_ragcache(speculative):
    await begin(speculative, "query", "13", plan_id="first")
    assert await hear(speculative, "query", "12") is START
    await speculative.complete(report("first", PlanOutcome.CANCELLED, computed=0))
    assert await speculative.speculate("query", ("1", "2"), ask("second", "12")) is not None
    assert await hear(speculative, "query", "12") is KEEP
    await speculative.prefilled("second")
    assert (await speculative.stats()).running == 0
    assert await hear(speculative, "query", "12", final=True) is KEEP
    assert (await speculative.stats()).running == 1
    await speculative.complete(report("second"))
    assert await cached(speculative, "12") == [GPU, GPU]


async def test_a_speculation_is_planned_like_a_request(speculative):
    await fill(speculative, "a")
    plan = await begin(speculative, "query", "ab", plan_id="guess")
    assert (plan.query_id, plan.instance, plan.namespace, plan.queued_ms) == ("guess", "one", "tenant", 0.0)
    assert (plan.prompt, plan.ends, plan.unshared) == (ask("guess", "ab").prompt, (), False)
    assert (sources(plan), kept(plan)) == ([GPU, None], [GPU, GPU])


async def test_what_a_speculation_computed_serves_others_though_nobody_wanted_it(speculative):
    await begin(speculative, "query", "a")
    await speculative.prefilled("query~1")
    assert await hear(speculative, "query", "b", final=True) is DROP
    assert sources(await speculative.admit(ask("query", "ab"))) == [GPU, None]
    await speculative.complete(report("query~1", PlanOutcome.CANCELLED))
    await speculative.complete(report("query"))
    assert await cached(speculative, "ab") == [GPU, GPU]


async def test_a_setting_switches_speculation_off(build):
    controller = build(speculation=False, step=STEP)
    assert await hear(controller, "query", "a") is WAIT
    assert await controller.speculate("query", ("a",), ask("guess", "a")) is None
    assert await hear(controller, "query", "a", final=True) is WAIT
    assert (await controller.stats()).admitted == 0


async def test_nothing_speculative_starts_on_nothing_or_on_final_documents(speculative):
    assert await hear(speculative, "query", "") is WAIT
    assert await hear(speculative, "query", "a", final=True) is WAIT


async def test_a_speculation_that_no_document_is_left_for_is_dropped_and_forgotten(speculative):
    await begin(speculative, "query", "a")
    decisions = [await hear(speculative, "query", documents) for documents in ("", "")]
    assert decisions == [DROP, WAIT]
    await begin(speculative, "query", "a", plan_id="again")
    decisions = [await hear(speculative, "query", "b", final=True) for _ in range(2)]
    assert decisions == [DROP, WAIT]


async def test_speculations_start_where_a_step_has_tokens_left(speculative):
    await speculative.admit(ask("runs", "x"))
    await begin(speculative, "a", "a")
    assert await hear(speculative, "b", "b") is WAIT
    assert await speculative.speculate("b", ("b",), ask("b~1", "b")) is None
    await speculative.prefilled("runs")
    await begin(speculative, "b", "b")
    assert await hear(speculative, "c", "c") is WAIT


async def test_the_last_place_may_be_left_for_another_speculation_of_the_query_itself(speculative):
    for query_id in "ab":
        await begin(speculative, query_id, query_id)
    assert await hear(speculative, "c", "c") is WAIT
    await begin(speculative, "a", "c", plan_id="a~2")
    assert await hear(speculative, "a", "c") is KEEP


async def test_without_steps_the_places_are_room(build):
    controller = build(max_running=2)
    await controller.admit(ask("runs"))
    await begin(controller, "a", "a")
    assert await hear(controller, "b", "b") is WAIT


async def test_none_starts_beside_a_request_that_waits(speculative):
    await speculative.admit(ask("runs", "x"))
    task = await waiting(speculative, ask("waits", "yz"))
    assert await hear(speculative, "query", "a") is WAIT
    assert await speculative.speculate("query", ("a",), ask("guess", "a")) is None
    await speculative.prefilled("runs")
    await task


async def test_a_request_ends_the_speculation_in_its_way_whose_lease_stays_until_it_is_completed(speculative):
    for query_id in "ab":
        await begin(speculative, query_id, query_id)
    plan = await speculative.admit(ask("request", "x"))
    assert plan.ends == ("b~1",)
    assert await hear(speculative, "a", "a") is KEEP
    # That one ended before it could be confirmed: the query asks for its turn like any other.
    assert await hear(speculative, "b", "b", final=True) is WAIT
    await speculative.complete(report("b~1", PlanOutcome.CANCELLED, computed=0))
    with pytest.raises(UnknownPlan):
        await speculative.complete(report("b~1", PlanOutcome.CANCELLED, computed=0))


async def test_a_request_that_waited_ends_what_is_in_its_way_when_its_turn_comes(build):
    controller = build(max_running=9, step=StepBudget(30, 20))
    await controller.admit(ask("runs", "x", question=9))
    await begin(controller, "query", "a")
    task = await waiting(controller, ask("waits", "yz"))
    assert await hear(controller, "query", "a") is KEEP
    await controller.prefilled("runs")
    assert (await task).ends == ("query~1",)
    assert await hear(controller, "query", "a", final=True) is WAIT


async def test_what_was_confirmed_gives_way_to_nobody(speculative):
    for query_id in "ab":
        await begin(speculative, query_id, query_id)
        assert await hear(speculative, query_id, query_id, final=True) is KEEP
    task = await waiting(speculative, ask("waits", "x"))
    await speculative.complete(report("a~1"))
    assert (await task).ends == ()


async def test_a_query_that_is_admitted_speculates_no_more(build):
    controller = build(max_running=2)
    await begin(controller, "a", "a")
    plan = await controller.admit(ask("a", "a"))
    assert plan.ends == (), "its own speculation is ended by who began it"
    await begin(controller, "b", "b")
    assert await hear(controller, "a", "a", final=True) is WAIT


async def test_a_query_that_is_refused_speculates_no_more(build):
    controller = build(max_running=2, max_queued=0, step=StepBudget(11, 11))
    await begin(controller, "a", "a")
    await controller.admit(ask("runs", "x"))
    with pytest.raises(Overloaded):
        await controller.admit(ask("a", "a"))
    await controller.prefilled("runs")
    await begin(controller, "b", "b")


async def test_a_query_that_ends_in_its_search_speculates_no_more(build):
    controller = build(max_running=1)
    await begin(controller, "a", "a")
    with pytest.raises(UnknownPlan):
        await controller.complete(report("a", PlanOutcome.CANCELLED, computed=0))
    await begin(controller, "b", "b")


async def test_a_speculation_whose_plan_ends_is_forgotten(build):
    controller = build(max_running=1)
    await begin(controller, "a", "a")
    await controller.complete(report("a~1", PlanOutcome.CANCELLED, computed=0))
    await begin(controller, "b", "b")
    assert await hear(controller, "a", "a", final=True) is WAIT


async def test_a_speculation_whose_query_was_lost_expires(build, clock):
    controller = build(max_running=1)
    await begin(controller, "lost", "a")
    clock.now = LEASE_S - 0.1
    controller.expire_leases()
    assert await hear(controller, "b", "b") is WAIT
    clock.now = LEASE_S
    controller.expire_leases()
    assert (await controller.stats()).expired == 1
    assert await hear(controller, "lost", "a", final=True) is WAIT
    await begin(controller, "b", "b")


async def test_a_speculation_whose_first_token_is_overdue_takes_nothing_of_a_step(build, clock):
    controller = build(max_running=9, step=StepBudget(11, 11), first_token_s=LEASE_S / 2)
    await begin(controller, "lost", "a")
    assert await hear(controller, "b", "b") is WAIT
    clock.now = LEASE_S / 2
    controller.expire_leases()
    await begin(controller, "b", "b")


async def test_a_speculation_ends_with_its_instance(speculative):
    await begin(speculative, "query", "a")
    await speculative.restart_instance("one", [])
    assert (await speculative.stats()).failed == 1
    assert await hear(speculative, "query", "a", final=True) is WAIT
    with pytest.raises(UnknownPlan):
        await speculative.complete(report("query~1", PlanOutcome.CANCELLED, computed=0))


async def test_nothing_speculative_is_computed_of_what_was_deleted_since_it_was_found(speculative):
    await speculative.delete_document(DocumentDeletion(("a",)))
    outdated = ask("guess", "a", searched_at=-1.0)
    assert await hear(speculative, "query", "a") is START
    assert await speculative.speculate("query", ("a",), outdated) is None
    assert (await speculative.stats()).admitted == 0


async def test_a_speculation_under_the_id_of_another_plan_is_refused_and_changes_nothing(speculative):
    await speculative.admit(ask("runs", "x"))
    before = await state(speculative)
    with pytest.raises(InvalidRequest, match="runs"):
        await speculative.speculate("query", ("a",), ask("runs", "a"))
    assert await state(speculative) == before
