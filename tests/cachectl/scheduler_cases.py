"""Schedulers for tests: documents are letters of ``TOKENS`` tokens each, and a prefill takes one second per token."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from controller_integrity import check_integrity

from cachectl.branches import KeptBranches
from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.request import Request
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.generation import StepBudget

TENANT = "tenant"
TOKENS = 10
STEP = StepBudget(30, 20)
"""Three documents of which nothing is cached, two of them of one prompt."""


def build_scheduler(
    *instances: str,
    policy: str = "PGDSF",
    gpu: int = 1000,
    host: int = 0,
    load_s: float = 0.0,
    max_running: int = 1,
    max_queued: int = 9,
    window: int = 9,
    step: StepBudget | None = None,
    rank: Callable[[str], int] = lambda _: 0,
    branch_tokens: int = 0,
) -> Scheduler:
    """A scheduler over these instances, or over one. ``load_s`` are seconds per loaded token."""
    lookahead = Lookahead()
    tree = KnowledgeTree(
        create_policy(policy, lookahead),
        KvStorage(Capacities(gpu, host)),
        instances or ["one"],
        TreeCosts(lambda cached, new: float(new), lambda tokens, _: tokens * load_s),
    )
    branches = KeptBranches(lambda: create_policy(policy, lookahead), branch_tokens, tree.lookup.prefill_seconds)
    return Scheduler(tree, lookahead, max_running, max_queued, window, step, rank=rank, branches=branches)


@contextmanager
def checked_schedulers(**defaults) -> Iterator[Callable[..., Scheduler]]:
    """A function that builds schedulers with these settings unless told otherwise. Checks each at the end."""
    built = []

    def build(*instances: str, **changes) -> Scheduler:
        built.append(build_scheduler(*instances, **(defaults | changes)))
        return built[-1]

    yield build
    for scheduler in built:
        check_integrity(scheduler)
        check_integrity(scheduler.tree)


def ask(query_id: str, documents: str = "", question: int = 1, pinned: int = 0) -> Request:
    """A request. ``question`` counts the question's tokens."""
    return Request(query_id, TENANT, tuple(PathDocument(content, TOKENS) for content in documents), question, pinned)


def ask_without_question(query_id: str, documents: str = "", question: int = 0) -> Request:
    """A request whose question has no tokens unless told otherwise, so that its documents fill a step exactly."""
    return ask(query_id, documents, question)


def cached(grant: Grant) -> int:
    """The number of documents that the grant finds cached."""
    return sum(step.source is not None for step in grant.documents)


def run(scheduler: Scheduler, request: Request) -> Grant:
    """Admit a request that starts at once."""
    grant = scheduler.admit(request, 0.0)
    assert grant is not None
    check_integrity(scheduler)
    return grant


def wait(scheduler: Scheduler, *requests: Request) -> None:
    """Admit requests that have to wait."""
    for request in requests:
        assert scheduler.admit(request, 0.0) is None
        check_integrity(scheduler)


def end(scheduler: Scheduler, query_id: str, kept: bool = True) -> list[str]:
    """Complete a request that has written all that it was to write; the queries that start next."""
    return [grant.query_id for grant in scheduler.complete(query_id, 0.0, kept, unwritten=())]


def fill(scheduler: Scheduler, *paths: str) -> None:
    """Compute paths and keep them."""
    for path in paths:
        run(scheduler, ask("fill", path))
        assert end(scheduler, "fill") == []


def serve_all(scheduler: Scheduler, running: str) -> list[str]:
    """Complete one request after the other on a scheduler with one slot; those that waited, in order of service."""
    served = []
    while started := end(scheduler, running):
        [running] = started
        served.append(running)
    return served


def speculate(scheduler: Scheduler, *requests: Request) -> None:
    """Start speculations where there is room."""
    for request in requests:
        assert scheduler.speculative.has_room()
        grant = scheduler.speculative.admit(request, 0.0)
        assert grant is not None
        assert grant.ends == []
        check_integrity(scheduler)


def speculations(scheduler: Scheduler) -> list[str]:
    """The speculations that run, oldest first."""
    return [query_id for query_id in scheduler.tree.grants.open if scheduler.speculative.runs(query_id)]


def state(scheduler: Scheduler) -> object:
    """Everything that can be seen of a scheduler and its tree."""
    tree = scheduler.tree
    return (
        scheduler.instances.running,
        scheduler.instances.queued,
        scheduler.instances.idle,
        scheduler.instances.largest_overtake,
        scheduler.speculative.has_room(),
        speculations(scheduler),
        tree.grants.tick,
        sorted(tree.grants.open),
        {node.key: (node.locks, node.pins, node.frequency) for node in tree.registry.nodes.values()},
        [(cache.tier, cache.instance, cache.used, cache.pinned_tokens, cache.copies) for cache in tree.tiers],
    )
