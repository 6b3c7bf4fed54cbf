"""Plans: what they name, where they run, and how they end."""

import pytest
from controller_under_test import TOKENS, ask, cached, fill, kept, key, pages, report, sources, used, waiting

from protocol.errors import Overloaded
from protocol.kv import LostCopy, Move
from protocol.plans import AdmissionRequest, PlannedNode, PlanOutcome
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier

GPU, HOST, DISK = Tier


async def test_a_plan_carries_the_prompt_and_the_time_it_waited(controller, clock):
    await controller.admit(ask("a"))
    task = await waiting(controller, ask("b", "xy", namespace="other"))
    clock.now = 2.0
    await controller.complete(report("a"))
    plan = await task
    assert plan.prompt == ask("b", "xy").prompt
    assert (plan.query_id, plan.instance, plan.namespace, plan.queued_ms) == ("b", "one", "other", 2000.0)


async def test_a_plan_names_every_segment_before_the_question(controller):
    await fill(controller, "a", system="s")
    plan = await controller.admit(ask("query", "ab", system="s"))
    assert plan.nodes == (
        PlannedNode(key("s"), TOKENS, source=GPU, kept=GPU),
        PlannedNode(key("sa"), TOKENS, source=GPU, kept=GPU),
        PlannedNode(key("sab"), TOKENS, source=None, kept=GPU),
    )
    assert plan.moves == ()


async def test_empty_segments_and_segments_after_the_question_are_no_nodes(controller):
    segments = (
        Segment(SegmentKind.SYSTEM, "s", ()),
        Segment(SegmentKind.DOCUMENT, "a", (1, 2)),
        Segment(SegmentKind.DOCUMENT, "b", ()),
        Segment(SegmentKind.DOCUMENT, "c", (3,)),
        Segment(SegmentKind.QUESTION, "q", (4,)),
        Segment(SegmentKind.DOCUMENT, "d", (5,)),
        Segment(SegmentKind.QUESTION, "r", (6,)),
    )
    plan = await controller.admit(AdmissionRequest("query", "tenant", Prompt(segments), found_at=()))
    assert [(node.key, node.tokens) for node in plan.nodes] == [(key("a"), 2), (key("ac"), 1)]


@pytest.mark.parametrize("prompt", [Prompt(()), ask("query").prompt], ids=["nothing", "a question"])
async def test_a_prompt_without_documents_has_a_plan_without_nodes(controller, prompt):
    plan = await controller.admit(AdmissionRequest("query", "tenant", prompt, found_at=()))
    assert plan.nodes == ()
    await controller.complete(report("query"))
    assert (await controller.tree(9, 1000)).namespaces == {}


async def test_documents_are_cached_when_their_query_has_completed(build):
    controller = build(max_running=3)
    await controller.admit(ask("first", "ab"))
    assert sources(await controller.admit(ask("second", "ab"))) == [None, None]
    await controller.complete(report("first"))
    assert sources(await controller.admit(ask("third", "ab"))) == [GPU, GPU]


@pytest.mark.parametrize(
    ("documents", "found_in"),
    [("a", [GPU]), ("abx", [GPU, GPU, None]), ("axb", [GPU, None, None]), ("ba", [None, None]), ("x", [None])],
)
async def test_documents_are_cached_only_behind_the_same_documents(controller, documents, found_in):
    await fill(controller, "ab")
    assert await cached(controller, documents) == found_in


async def test_tenants_share_nothing(controller):
    await fill(controller, "ab")
    plan = await controller.admit(ask("query", "ab", namespace="another"))
    assert sources(plan) == [None, None]


async def test_a_plan_carries_the_moves_that_make_room_for_it(build):
    controller = build(gpu=20, host=20)
    await fill(controller, "ab")
    plan = await controller.admit(ask("query", "x"))
    assert plan.moves == (Move(key("ab"), TOKENS, GPU, HOST, "one", pages=pages(1)),)
    await controller.complete(report("query"))
    again = await controller.admit(ask("again", "ab"))
    assert (sources(again), kept(again)) == ([GPU, HOST], [GPU, GPU])
    # "x" is the only GPU leaf that is not in use, so it moves to host memory.
    assert again.moves == (Move(key("x"), TOKENS, GPU, HOST, "one", pages=pages(2, first=10)),)
    assert [node.pages for node in again.nodes] == [None, pages(1)]


async def test_documents_without_room_are_computed_and_not_kept(build):
    controller = build(gpu=15)
    plan = await controller.admit(ask("query", "ab"))
    assert (sources(plan), kept(plan)) == ([None, None], [GPU, None])
    await controller.complete(report("query"))
    assert await cached(controller, "ab") == [GPU, None]


@pytest.mark.parametrize("settings", [{"policy": "NONE"}, {"gpu": 0}], ids=["policy NONE", "no room"])
async def test_plans_are_made_without_a_cache(build, settings):
    controller = build(**settings)
    await fill(controller, "ab")
    plan = await controller.admit(ask("query", "ab"))
    assert (sources(plan), kept(plan)) == ([None, None], [None, None])


# How plans end


@pytest.mark.parametrize("outcome", [PlanOutcome.FAILED, PlanOutcome.CANCELLED])
async def test_a_plan_that_ended_before_its_first_token_leaves_nothing(controller, outcome):
    before = await controller.tree(9, 1000)
    await controller.admit(ask("query", "ab"))
    assert await used(controller) == {(GPU, "one"): 20}
    await controller.complete(report("query", outcome, computed=0))
    assert await controller.tree(9, 1000) == before
    assert await used(controller) == {(GPU, "one"): 0}


@pytest.mark.parametrize("outcome", [PlanOutcome.FAILED, PlanOutcome.CANCELLED])
async def test_a_plan_that_ended_after_its_first_token_keeps_its_documents(controller, outcome):
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


async def test_losing_a_copy_keeps_the_copies_of_other_tiers(build):
    controller = build(gpu=20, host=20)
    await fill(controller, "ab", "x", "ab")
    await controller.admit(ask("query", "ab"))
    await controller.complete(report("query", lost=(LostCopy(key("ab"), GPU),)))
    assert await cached(controller, "ab") == [GPU, HOST]


async def test_lost_copies_that_are_unknown_are_ignored(controller):
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


# Several instances


async def test_a_query_runs_where_its_longest_prefix_is_cached(build):
    controller = build("one", "two", max_running=9)
    await fill(controller, "ab")
    assert (await controller.admit(ask("runs", question=5))).instance == "one"
    plan = await controller.admit(ask("query", "abc"))
    assert (plan.instance, sources(plan)) == ("one", [GPU, GPU, None])


async def test_a_query_runs_elsewhere_if_the_backlog_outweighs_its_prefix(build):
    controller = build("one", "two", max_running=9)
    await fill(controller, "ab")
    assert (await controller.admit(ask("runs", question=25))).instance == "one"
    plan = await controller.admit(ask("query", "abc"))
    assert (plan.instance, sources(plan)) == ("two", [None, None, None])


async def test_a_query_runs_where_a_slot_is_free(build):
    controller = build("one", "two", max_queued=0)
    await fill(controller, "ab")
    assert (await controller.admit(ask("runs"))).instance == "one"
    assert (await controller.admit(ask("query", "ab"))).instance == "two"
    with pytest.raises(Overloaded):
        await controller.admit(ask("refused", "ab"))
