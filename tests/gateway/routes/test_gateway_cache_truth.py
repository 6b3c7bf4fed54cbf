"""Cache figures in replies, events and metrics match those of the engine and the controller."""

import asyncio

import pytest
from gateway_fakes import Stack, eventually
from gateway_requests import by_label

from gateway.wire.reuse import found_in
from protocol.errors import Unavailable, UnknownPlan
from protocol.generation import PrefillResult
from protocol.kv import KvMemory, LostCopy
from protocol.plans import PlannedNode, PlanOutcome, PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier

ASKED = {"query": "What is the capital?", "top_k": 3}
# A system prompt of two tokens, three documents of three, a question of four.
LOST = LostCopy("aa", Tier.HOST)
MANY = (Tier.GPU, Tier.HOST, Tier.DISK, None)


def with_cache(stack: Stack) -> None:
    """The system prompt is on the GPU, one document each in host memory and on disk; the third is computed."""
    stack.controller.sources = MANY
    stack.generator.cached = 8
    stack.generator.loaded = {Tier.GPU: 2, Tier.HOST: 3, Tier.DISK: 3}
    stack.generator.lost = (LOST,)


async def test_cached_tokens_by_tier_and_document_hits(served):
    with_cache(served.stack)
    answer = await served.client.post("/query", json=ASKED | {"stream": True})
    (resolved,) = [block for block in answer.text.split("\n\n") if block.startswith("event: cache.resolved")]
    assert '"prompt_tokens":15,"cached_tokens":8,"composed_tokens":0,"recomputed_tokens":0' in resolved
    assert '"reuse":"exact","fallback":null,"facts_attention":null,"facts_fallback":null,"hit_docs":2' in resolved
    assert '"tiers":{"gpu":2,"host":3,"disk":3}' in resolved
    reply = (await served.client.post("/query", json=ASKED)).json()
    assert reply["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 8,
        "composed_tokens": 0,
        "recomputed_tokens": 0,
    }


async def test_prompt_tokens_are_counted_by_source(served):
    with_cache(served.stack)
    for _ in range(2):
        await served.client.post("/query", json=ASKED)
    tokens = await by_label(served, "ragtree_cache_tokens_total")
    assert tokens == {"gpu": 4, "host": 6, "disk": 6, "composed": 0, "recomputed": 0, "computed": 14}


async def test_lookups_are_counted_tier_by_tier(served):
    with_cache(served.stack)
    await served.client.post("/query", json=ASKED)
    assert await by_label(served, "ragtree_cache_lookups_total") == {"gpu": 3, "host": 3, "disk": 2}
    assert await by_label(served, "ragtree_cache_hits_total") == {"host": 1, "disk": 1}


def test_partial_document_is_no_hit():
    segments = [Segment(SegmentKind.SYSTEM, "s", ())]
    segments += [Segment(SegmentKind.DOCUMENT, f"d{n}", (1, 2, 3)) for n in range(3)]
    plan = PrefillPlan(
        "q", "e", "n", Prompt(tuple(segments)),
        nodes=tuple(PlannedNode("00", 3, source, None) for source in (Tier.HOST, Tier.GPU, Tier.DISK)),
    )  # fmt: skip
    assert found_in(plan, PrefillResult(9, 8, 1.0)) == (Tier.HOST, Tier.GPU, None)
    bare = PrefillPlan("q", "e", "n", Prompt(tuple(segments)))
    assert found_in(bare, PrefillResult(9, 3, 1.0)) == (Tier.GPU, None, None)


async def test_prefilled_is_reported_before_complete(served):
    with_cache(served.stack)
    await served.client.post("/query", json=ASKED)
    controller = served.stack.controller
    await eventually(lambda: len(controller.told) == 2)
    (query_id,) = {query_id for query_id, _ in controller.told}
    assert controller.told == [(query_id, (LOST,)), (query_id, PlanOutcome.COMPLETED)]
    (report,) = controller.reports
    # Lost copies are reported once.
    assert (report.cached_tokens, report.computed_tokens, report.lost) == (8, 7, ())


async def test_tokens_do_not_wait_for_the_prefilled_report(live):
    live.stack.phases.held.add("prefilled")
    assert (await live.client.post("/query", json=ASKED)).status_code == 200
    await eventually(lambda: live.stack.phases.waiting["prefilled"] == 1 and live.stack.at_rest)
    assert live.stack.controller.told == []
    live.stack.phases.released["prefilled"].set()
    await eventually(lambda: len(live.stack.controller.told) == 2)
    assert [isinstance(what, PlanOutcome) for _, what in live.stack.controller.told] == [False, True]


@pytest.mark.parametrize("error", [UnknownPlan("its lease ran out"), Unavailable("away"), RuntimeError("?")])
async def test_failed_prefilled_report_breaks_no_query(served, error):
    served.stack.phases.failing["prefilled"] = error
    with_cache(served.stack)
    assert (await served.client.post("/query", json=ASKED)).status_code == 200
    await eventually(lambda: len(served.stack.controller.reports) == 1)
    assert served.stack.controller.reports[0].lost == (LOST,)


async def test_query_without_a_token_reports_no_prefill(served):
    served.stack.phases.failing["prefill"] = Unavailable("away")
    await served.client.post("/query", json=ASKED)
    await eventually(lambda: len(served.stack.controller.told) == 1)
    assert [what for _, what in served.stack.controller.told] == [PlanOutcome.FAILED]


async def test_controller_metrics(in_process, stack: Stack):
    kv = KvMemory("f", "b", 16, 1600, 9, 0, 0, 1.0, 1.0)
    async with in_process() as served:
        assert await by_label(served, "ragtree_cache_evictions_total") == {"gpu": 7}
        assert await by_label(served, "ragtree_cache_bytes") == {}, "the size of a token is unknown"
    stack.generator.kv = kv
    stack.phases.held.add("queue")
    async with in_process() as served:
        assert await by_label(served, "ragtree_cache_bytes") == {"gpu": 25_000}
        asking = asyncio.create_task(served.client.post("/query", json=ASKED))
        await eventually(lambda: stack.controller.waiting == 1)
        assert await by_label(served, "ragtree_queue_depth") == {"": 1}
        stack.phases.released["queue"].set()
        assert (await asking).status_code == 200
        assert await by_label(served, "ragtree_queue_depth") == {"": 0}


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_silent_controller_has_no_samples(in_process, stack: Stack, how: str):
    async with in_process(readiness_timeout_s=0.05) as served:
        assert await by_label(served, "ragtree_queue_depth") != {}
        if how == "fails":
            stack.phases.failing["stats"] = Unavailable("away")
        else:
            stack.phases.held.add("stats")
        assert await by_label(served, "ragtree_queue_depth") == {}
        assert await by_label(served, "ragtree_request_duration_seconds_count") == {"": 0}
