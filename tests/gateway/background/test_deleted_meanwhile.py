"""A document that is deleted after a query has found it: no tier has its KV once the deletion is confirmed.

The retriever and the controller are the real ones. A search is held between what it has read and its caller.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from controller_integrity import check_integrity
from controller_under_test import Clock, costs
from fake_layout import FakeLayout
from gateway_fakes import MODEL, FakeGenerator, Phases, eventually
from msgspec.structs import replace
from retriever_cases import running, upload

from cachectl.runtime.controller import Controller, Engines
from cachectl.settings import ControllerSettings
from cachectl.tiers.location import Capacities, KvStorage
from protocol.cache import DocumentDeletion, TreeNode
from protocol.errors import EngineDied, UnknownDocument
from protocol.kv import LostCopy, Orders
from protocol.plans import AdmissionRequest, PrefillPlan
from protocol.retrieval import CandidateSet, SearchRequest
from retriever.retriever import Retriever

TENANT = "default"
TEXT = "capybaras like warm water and company"
ASKED = [{"role": "user", "content": "What do capybaras like?"}]
EARLIER = [{"role": "user", "content": "What are capybaras?"}, {"role": "assistant", "content": "Rodents."}]
CHAT = {"model": MODEL, "messages": ASKED, "temperature": 1.0}
KINDS = {
    "a query": ("/query", {"query": "What do capybaras like?"}),
    "three choices": ("/v1/chat/completions", CHAT | {"n": 3}),
    "two completions": ("/v1/completions", {"model": MODEL, "prompt": "Capybaras?", "n": 2, "temperature": 1.0}),
    "a follow-up": ("/v1/chat/completions", CHAT | {"messages": EARLIER + ASKED}),
    "a rewritten one": (
        "/v1/chat/completions",
        CHAT | {"messages": EARLIER + ASKED, "n": 2, "follow_ups": "rewritten"},
    ),
    "a response": ("/v1/responses", {"model": MODEL, "input": "What do capybaras like?"}),
}


class HeldRetriever:
    """A real retriever. What its searches have read comes in so many ``stages``, each of which is a phase."""

    def __init__(self, retriever: Retriever, phases: Phases) -> None:
        self._retriever = retriever
        self._phases = phases
        self.stages = 1

    def __getattr__(self, name: str):
        return getattr(self._retriever, name)

    async def search(self, request: SearchRequest) -> AsyncGenerator[CandidateSet]:
        (found,) = [found async for found in self._retriever.search(request)]
        for stage in range(1, self.stages + 1):
            await self._phases.enter(f"stage {stage}")
            yield replace(found, stage=stage, of=self.stages, final=stage == self.stages)


class WatchedController(Controller):
    """The real controller over two instances whose tiers carry out everything. Records plans and requests."""

    def __init__(self) -> None:
        limits = ControllerSettings(speculation=True, policy="LRU", prepare_after_s=None)
        super().__init__(limits, ["one", "two"], Clock(), Engines(costs()), KvStorage(Capacities(1000)), executor=self)
        self.plans: list[PrefillPlan] = []
        self.guesses: list[PrefillPlan] = []
        self.deleting = 0

    async def carry_out(self, instance: str, orders: Orders) -> list[LostCopy]:
        await asyncio.sleep(0)
        return []

    async def speculate(self, query_id: str, documents: Sequence[str], request: AdmissionRequest) -> PrefillPlan | None:
        plan = await super().speculate(query_id, documents, request)
        self.guesses += [] if plan is None else [plan]
        return plan

    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        self.plans.append(await super().admit(request))
        return self.plans[-1]

    async def delete_document(self, deletion: DocumentDeletion) -> int:
        self.deleting += 1
        return await super().delete_document(deletion)

    async def cached(self) -> set[str]:
        """The contents of all nodes that any tier holds."""
        view = await self.tree(99, 1000)
        return {node.content for top in view.namespaces.values() for node in _nodes(top) if node.places}


def _nodes(nodes: tuple[TreeNode, ...]) -> Iterator[TreeNode]:
    for node in nodes:
        yield node
        yield from _nodes(node.children)


class DeletedStack:
    """The parts: a real retriever and controller, and a fake engine."""

    def __init__(self, retriever: Retriever) -> None:
        self.phases = Phases()
        self.retriever = HeldRetriever(retriever, self.phases)
        self.controller = WatchedController()
        self.generator = FakeGenerator(self.phases, ("Warm ", "water."))
        self.layout = FakeLayout()


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[DeletedStack]:
    async with running(tmp_path) as retriever:
        stack = DeletedStack(retriever)
        await stored(stack)
        yield stack
        check_integrity(stack.controller)


async def stored(stack: DeletedStack, text: str = TEXT) -> str:
    """Store the document, and return the content of its only chunk."""
    job = await stack.retriever.put_document(TENANT, "default", upload("capybara", text))
    while not job.ended:
        await asyncio.sleep(0.002)
        job = await stack.retriever.get_job(TENANT, job.job_id)
    (chunk,) = (await stack.retriever.chunks(TENANT, "default", "capybara")).chunks
    return chunk.content_hash


async def delete(served) -> None:
    (await served.client.delete("/v1/collections/default/documents/capybara")).raise_for_status()


@asynccontextmanager
async def held(served, phase: str, path: str, body: dict) -> AsyncIterator[None]:
    """Ask, and hold the query in a phase during the block. The answer is complete at the end."""
    phases = served.stack.phases
    phases.held.add(phase)
    asking = asyncio.create_task(served.client.post(path, json=body))
    await eventually(lambda: phases.waiting[phase] > 0)
    yield
    phases.held.discard(phase)
    phases.released[phase].set()
    (await asking).raise_for_status()
    await eventually(lambda: served.running == 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_that_was_found_before_a_deletion_is_kept(served, kind: str):
    path, body = KINDS[kind]
    stack = served.stack
    content = await stored(stack)
    async with held(served, "stage 1", path, body):
        await delete(served)
    found = [plan for plan in stack.controller.plans if plan.prompt.documents]
    assert len(found) == body.get("n", 1)
    assert all(plan.unshared for plan in found)
    assert content not in await stack.controller.cached()


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_found_after_it_was_stored_again_is_kept(served, kind: str):
    path, body = KINDS[kind]
    stack = served.stack
    await delete(served)
    content = await stored(stack)
    (await served.client.post(path, json=body)).raise_for_status()
    await eventually(lambda: served.running == 0)
    assert not any(plan.unshared for plan in stack.controller.plans)
    assert content in await stack.controller.cached()


async def test_a_clock_that_was_set_forward_before_the_search_and_back_after_it_changes_nothing(served, monkeypatch):
    content = await stored(served.stack)
    now = [4e9]
    monkeypatch.setattr("time.time", lambda: now[0])
    async with held(served, "stage 1", *KINDS["three choices"]):
        now[0] = 1e9
        await delete(served)
    assert content not in await served.stack.controller.cached()


@pytest.mark.parametrize("stage", ["stage 1", "stage 2"], ids=["before the guess", "while the guess runs"])
async def test_a_confirmed_guess_keeps_nothing_of_it(served, stage: str):
    stack = served.stack
    stack.retriever.stages = 2
    content = await stored(stack)
    async with held(served, stage, *KINDS["a query"]):
        deleting = asyncio.create_task(delete(served))
        if stage == "stage 1":
            await deleting
        else:
            assert len(stack.controller.guesses) == 1
            await eventually(lambda: stack.controller.deleting == 1)
    await deleting
    assert content not in await stack.controller.cached()


async def test_a_query_that_lost_its_engine_keeps_nothing_of_it(served):
    stack = served.stack
    content = await stored(stack)
    stream = stack.generator.stream

    async def breaking(plan, sampling):
        stack.generator.stream = stream
        await stack.phases.enter("lost")
        raise EngineDied("its instance is gone")
        yield

    stack.generator.stream = breaking
    async with held(served, "lost", *KINDS["a query"]):
        # It waits for the query.
        deleting = asyncio.create_task(delete(served))
        await eventually(lambda: stack.controller.deleting == 1)
    await deleting
    first, second = stack.controller.plans
    assert (first.unshared, second.unshared) == (False, True)
    assert content not in await stack.controller.cached()


async def test_what_was_read_for_a_prefill_in_idle_time_is_not_computed_any_more(served):
    stack, donors = served.stack, served.app.state.gateway.filling._donors
    content = await stored(stack)
    (donor,) = await donors.of_document(TENANT, "default", "capybara")
    await delete(served)
    with pytest.raises(UnknownDocument):
        await donors.prefill(donor)
    assert content not in await stack.controller.cached()
