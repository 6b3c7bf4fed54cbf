"""Facts in trees that are told from a deleted document: nothing of them is kept."""

import asyncio

import msgspec
import pytest
from controller_under_test import Clock, ask, checked_controllers, report

from protocol.cache import DocumentDeletion
from protocol.dependency import Branch, DepPrompt, GraphAttention
from protocol.generation import ComposingInfo
from protocol.kv import LostCopy, Orders
from protocol.plans import AdmissionRequest, Reuse
from protocol.prompts import Segment, SegmentKind

# The document "y" states all of it, "x" the root alone.
FACTS = DepPrompt((5, 6, 7, 8, 9), (Branch(2, -1, ("x", "y")), Branch(3, 0, ("y",))), (2,))
DELETION = DocumentDeletion(("y",), "tenant")


class Engines:
    """An executor that records what it is to forget."""

    def __init__(self) -> None:
        self.forgotten: list[tuple[tuple[str, str], ...]] = []

    async def carry_out(self, _instance: str, orders: Orders) -> list[LostCopy]:
        self.forgotten.append(orders.forget)
        return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def build(clock):
    composing = ComposingInfo(0.0, ("query",), branch_tokens=100)
    with checked_controllers(clock, composing=composing, graph_attention=GraphAttention.DEPENDENCY) as build:
        yield build


def asked(query_id: str, reuse: Reuse | None = None, **request) -> AdmissionRequest:
    """A request with the facts in front of its question."""
    admission = ask(query_id, "", **request)
    *front, question = admission.prompt.segments
    told = Segment(SegmentKind.QUESTION, "told", tuple(range(20)))
    prompt = msgspec.structs.replace(admission.prompt, segments=(*front, told, question), facts=FACTS, paths=(0,))
    return msgspec.structs.replace(admission, prompt=prompt, reuse=reuse)


async def test_a_query_that_searched_before_the_deletion_keeps_nothing_of_them(build, clock):
    controller = build()
    clock.now = 10.0
    await controller.delete_document(DELETION)
    late = await controller.admit(asked("late", searched_at=9.0))
    assert (late.unshared, late.trees.reuse) == (True, False)
    await controller.complete(report("late"))


async def test_a_search_after_the_deletion_found_them_elsewhere(build, clock):
    controller = build()
    clock.now = 10.0
    await controller.delete_document(DELETION)
    later = await controller.admit(asked("later", searched_at=11.0))
    assert (later.unshared, later.trees.reuse) == (False, True)
    await controller.complete(report("later"))


async def test_told_in_full_nothing_of_them_is_kept_anyway(build, clock):
    controller = build()
    clock.now = 10.0
    await controller.delete_document(DELETION)
    told = await controller.admit(asked("told", Reuse.EXACT, searched_at=9.0))
    assert (told.unshared, told.trees) == (False, None)
    await controller.complete(report("told"))


async def test_nothing_is_speculated_on_them(build, clock):
    controller = build(speculation=True)
    clock.now = 10.0
    await controller.delete_document(DELETION)
    assert await controller.speculate("query", ["a"], asked("guess", searched_at=9.0)) is None


async def test_a_deletion_waits_for_queries_with_them_and_drops_what_these_have_kept(build):
    engines = Engines()
    controller = build(executor=engines)
    await controller.admit(asked("runs"))
    deletion = asyncio.create_task(controller.delete_document(DELETION))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not deletion.done()
    await controller.prefilled("runs")
    await controller.complete(report("runs"))
    await deletion
    assert engines.forgotten == [(("tenant", "y"),)] * 2
