"""The order of a plan's documents, and how many of them are cached."""

import msgspec
import pytest
from controller_under_test import TOKENS, Clock, ask, checked_controllers, fill, report

from protocol.plans import DocumentOrder
from protocol.tiers import Tier


@pytest.fixture
def build():
    with checked_controllers(Clock(), policy="LRU") as build:
        yield build


def ordered(order: DocumentOrder, documents: str, query_id: str = "query", **asked):
    return msgspec.structs.replace(ask(query_id, documents, **asked), order=order)


def documents_of(plan) -> str:
    return "".join(segment.key for segment in plan.prompt.documents)


async def test_documents_keep_the_order_of_the_search_by_default(build):
    assert documents_of(await build().admit(ask("query", "cab"))) == "cab"


async def test_canonical_order_sorts_by_key(build):
    controller = build()
    plan = await controller.admit(ordered(DocumentOrder.CANONICAL, "cab", system="s"))
    assert [segment.key for segment in plan.prompt.segments] == ["s", "a", "b", "c", "question"]
    assert plan.nodes[0].tokens == TOKENS


async def test_cached_first_order_puts_the_cached_path_first_and_the_rest_by_rank(build):
    controller = build()
    await fill(controller, "ba", system="s")
    plan = await controller.admit(ordered(DocumentOrder.CACHED_FIRST, "dabc", system="s"))
    assert documents_of(plan) == "badc"
    assert [node.source for node in plan.nodes] == [Tier.GPU] * 3 + [None] * 2


async def test_documents_change_places_only_within_the_configured_score_gap(build):
    controller = build(document_score_gap=0.1)
    await fill(controller, "c", "b")
    request = ordered(DocumentOrder.CACHED_FIRST, "abc")
    # The search found a fourth document, which did not fit the prompt.
    plan = await controller.admit(msgspec.structs.replace(request, scores=(0.9, 0.85, 0.5, 0.4)))
    assert documents_of(plan) == "bac"


async def test_another_tenants_cache_has_no_effect_on_the_order(build):
    controller = build()
    await fill(controller, "ba", namespace="other")
    assert documents_of(await controller.admit(ordered(DocumentOrder.CACHED_FIRST, "ab"))) == "ab"


async def test_warming_and_speculation_order_documents_as_queries_do(build):
    controller = build()
    await fill(controller, "ba")
    warmed = await controller.warm(ordered(DocumentOrder.CACHED_FIRST, "cab", "warm"))
    assert documents_of(warmed) == "bac"
    await controller.complete(report("warm"))
    guess = await controller.speculate("query", "cab", ordered(DocumentOrder.CACHED_FIRST, "dab", "query~1"))
    assert documents_of(guess) == "bad"
    await controller.complete(report("query~1"))
