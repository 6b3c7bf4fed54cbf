"""Controllers under test: a clock set by hand, one second per token, and documents named by letters."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from controller_integrity import check_integrity
from varied import varied

from cachectl.nodes.keys import path_keys
from cachectl.runtime.controller import LEASE_IN_QUERIES, Controller, Engines
from cachectl.settings import ControllerSettings
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.cache import CachePath
from protocol.kv import HeldNode, Pages, Paging
from protocol.plans import AdmissionRequest, CompletionReport, PlanOutcome, PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.retrieval import Revisions, StoreRevision
from protocol.tiers import Tier

TOKENS = 10
LEASE_S = 60.0


def at(number: int) -> Revisions:
    """The only store's revision after so many deletions."""
    return (StoreRevision("store", number),)


LATER = at(10**9)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def costs(load_s: float = 0.0, prefill_s: float = 1.0) -> TreeCosts:
    """Prefills take ``prefill_s`` seconds per token, loads ``load_s``."""
    return TreeCosts(lambda cached, new: new * prefill_s, lambda tokens, tier: tokens * load_s)


@contextmanager
def checked_controllers(
    clock: Clock, executor=None, step=None, composing=None, **defaults
) -> Iterator[Callable[..., Controller]]:
    """Builds controllers on one clock, with these settings and times of the pace as defaults.

    Checks each controller at the end.
    """
    built = []

    def build(
        *instances: str,
        gpu=1000,
        host=0,
        disk=0,
        page_tokens=1,
        executor=executor,
        load_s=0.0,
        fingerprint="",
        location="",
        step=step,
        composing=composing,
        **settings,
    ):
        controller = Controller(
            varied(ControllerSettings, **({"prepare_after_s": None} | defaults | settings)),
            instances or ["one"],
            clock,
            Engines(costs(load_s), step, composing),
            KvStorage(Capacities(gpu, host, disk), Paging(page_tokens), fingerprint, location),
            executor=executor,
            query_timeout_s=LEASE_S / LEASE_IN_QUERIES,
        )
        built.append(controller)
        return controller

    yield build
    for controller in built:
        check_integrity(controller)


def ask(
    query_id: str,
    documents: str = "",
    question: int = 1,
    system: str = "",
    namespace: str = "tenant",
    tokens: int = TOKENS,
    found_at: Revisions = LATER,
) -> AdmissionRequest:
    """A query. Its system prompt and documents are named by letters and have ``tokens`` tokens each.

    Its documents were found ``LATER`` than everything that has happened.
    """
    ids = tuple(range(tokens))
    segments = (
        *(Segment(SegmentKind.SYSTEM, content, ids) for content in system),
        *(Segment(SegmentKind.DOCUMENT, content, ids) for content in documents),
        Segment(SegmentKind.QUESTION, "question", tuple(range(question))),
    )
    return AdmissionRequest(query_id, namespace, Prompt(segments), found_at)


def report(
    query_id: str, outcome: PlanOutcome = PlanOutcome.COMPLETED, computed: int = 1, lost=(), cached: int = 0
) -> CompletionReport:
    """A report of a plan that has written all that it was to write."""
    return CompletionReport(query_id, outcome, cached, computed, lost=lost, unwritten=())


def key(documents: str, namespace: str = "tenant") -> str:
    """The key of the last of these documents behind the others, in hexadecimal."""
    return path_keys(namespace, documents)[-1].hex()


def sources(plan: PrefillPlan) -> list[Tier | None]:
    return [node.source for node in plan.nodes]


def kept(plan: PrefillPlan) -> list[Tier | None]:
    return [node.kept for node in plan.nodes]


def path(contents: str) -> CachePath:
    return CachePath("tenant", tuple(contents))


def held(contents: str, tokens: int = TOKENS, pages: Pages | None = None) -> HeldNode:
    return HeldNode("tenant", tuple(contents), tokens, pages)


def pages(stamp: int, first: int = 0) -> Pages:
    """Pages for one document, of one token each."""
    return Pages(tuple(range(first, first + TOKENS)), stamp)


async def used(controller: Controller) -> dict[tuple[Tier, str | None], int]:
    """Used tokens by tier and instance."""
    return {(tier.tier, tier.instance): tier.used_tokens for tier in (await controller.stats()).tiers}


async def state(controller: Controller) -> object:
    """Everything that a controller shows."""
    return await controller.stats(), await controller.tree(99, 1000)


async def waiting(controller: Controller, request: AdmissionRequest) -> asyncio.Task[PrefillPlan]:
    """A task that waits for the query's turn when this returns."""
    queued = (await controller.stats()).queued
    task = asyncio.create_task(controller.admit(request))
    while (await controller.stats()).queued == queued:
        await asyncio.sleep(0)
    return task


async def fill(controller: Controller, *paths: str, system: str = "", namespace: str = "tenant") -> None:
    """Have paths computed and kept."""
    for documents in paths:
        await controller.admit(ask("fill", documents, system=system, namespace=namespace))
        await controller.complete(report("fill"))


async def cached(controller: Controller, documents: str, system: str = "") -> list[Tier | None]:
    """Where a query on an idle instance would find its documents. Leaves nothing but a count."""
    plan = await controller.admit(ask("look", documents, system=system))
    await controller.complete(report("look", PlanOutcome.CANCELLED, computed=0))
    return sources(plan)
