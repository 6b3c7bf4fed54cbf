"""Facts in trees that are told from a deleted document: nothing of them is kept."""

import asyncio

import msgspec
import pytest
from controller_under_test import Clock, ask, at, checked_controllers, report

from protocol.cache import DocumentDeletion
from protocol.dependency import Branch, DepPrompt, GraphAttention
from protocol.generation import ComposingInfo
from protocol.kv import LostCopy, Orders
from protocol.plans import AdmissionRequest, Reuse
from protocol.prompts import Segment, SegmentKind

# The document "y" states all of it, "x" the root alone.
FACTS = DepPrompt((5, 6, 7, 8, 9), (Branch(2, -1, ("x", "y")), Branch(3, 0, ("y",))), (2,))
DELETION = DocumentDeletion(("y",), "tenant", *at(10))


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


@pytest.mark.parametrize(
    ("revision", "reuse", "unshared", "trees_kept"),
    [
        pytest.param(9, None, True, False, id="a search before the deletion"),
        pytest.param(10, None, False, True, id="a later search, which found them elsewhere"),
        pytest.param(9, Reuse.EXACT, False, None, id="facts that are told in full"),
    ],
)
async def test_what_a_search_before_the_deletion_found_is_not_kept(build, revision, reuse, unshared, trees_kept):
    controller = build()
    await controller.delete_document(DELETION)
    plan = await controller.admit(asked("query", reuse, found_at=at(revision)))
    assert plan.unshared is unshared
    assert (plan.trees and plan.trees.reuse) is trees_kept
    await controller.complete(report("query"))


async def test_nothing_is_speculated_on_them(build):
    controller = build(speculation=True)
    await controller.delete_document(DELETION)
    assert await controller.speculate("query", ["a"], asked("guess", found_at=at(9))) is None


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
