"""Prefetches for requests that wait: loads and computes what they lack before their turn comes.

Loads take nothing of the engine's steps, so they begin at any time. Computing waits for room: while all slots are taken
by requests that have their first tokens, no step of the engine has a prefill, so prefetches for its own requests use
that part. At other times KV generators compute what requests lack: instances that do nothing else, as in Shared
RAG-DCache.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import NamedTuple

import msgspec
import structlog

from cachectl.runtime.deliveries import Deliveries
from cachectl.runtime.executor import Executor
from cachectl.runtime.kv_reads import KvReads
from cachectl.runtime.leases import Leases
from cachectl.runtime.messages import Messages, lost_at_peers, lost_copies
from cachectl.scheduling.scheduler import Scheduler
from protocol.errors import RagtreeError, UnknownPlan
from protocol.generation import PrefillResult
from protocol.plans import AdmissionRequest, PrefillPlan, Reuse
from protocol.prompts import Prompt
from protocol.tiers import Tier

_log = structlog.get_logger(__name__)


class EndedPrefill(NamedTuple):
    """How a prefill ended: its result, if any of it is kept, and the copies that turned out to be missing.

    These are ``lost`` at the instance's own location, and ``at_peers`` at others, by location.
    """

    prefill: PrefillResult | None
    lost: list[tuple[bytes, Tier]]
    at_peers: dict[str, list[tuple[bytes, Tier]]]
    failed: bool = False

    @property
    def prepared_tokens(self) -> int:
        """The tokens that were computed or loaded from slower tiers."""
        if self.prefill is None:
            return 0
        loaded = sum(tokens for tier, tokens in self.prefill.loaded.items() if tier is not Tier.GPU)
        return self.prefill.prompt_tokens - self.prefill.cached_tokens + loaded

    def gave_way(self, plan: PrefillPlan) -> bool:
        """Whether it ended early, because its part of the step was needed."""
        return not self.failed and (self.prefill is None or self.prefill.prompt_tokens < plan.prompt.token_count)


_FAILED = EndedPrefill(None, [], {}, failed=True)


class Prefetcher:
    """Prefills for requests that wait longer than ``after_s`` seconds, the longest waiting first.

    A prefetch that gave way to a request is tried again. ``after_s`` of None, or no ``executor``, switches prefetching
    off. ``prefetched_tokens`` counts the tokens that were computed or loaded from slower tiers, and
    ``generated_tokens`` those that KV generators computed. Belongs to one event loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        leases: Leases,
        deliveries: Deliveries,
        messages: Messages,
        executor: Executor | None,
        kv_reads: KvReads,
        after_s: float | None,
    ) -> None:
        self._scheduler = scheduler
        self._leases = leases
        self._deliveries = deliveries
        self._messages = messages
        self._executor = executor
        self._kv_reads = kv_reads
        self._after_s = after_s
        self._numbers = count(1)
        # In the order in which they became overdue.
        self._overdue: dict[str, AdmissionRequest] = {}
        self._running: dict[str, asyncio.Task[EndedPrefill]] = {}
        # The waiting requests that were offered to a KV generator, and those for which one works.
        self._offered: set[str] = set()
        self._generating: set[str] = set()
        # The waiting requests that something is loaded for, and how many documents were loaded for each so far.
        self._loading: dict[str, asyncio.Task[EndedPrefill]] = {}
        self._loaded: dict[str, int] = {}
        self.prefetched_tokens = 0
        self.generated_tokens = 0

    @contextmanager
    def while_waiting(self, request: AdmissionRequest) -> Iterator[None]:
        """Prefetch for a request while the context is open.

        If the wait fails, its prefetch is cancelled. So are the work of a KV generator and a load once the request's
        turn has come: they would come too late.
        """
        if self._executor is None or self._after_s is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(self._after_s, self._became_overdue, request)
        try:
            yield
        except BaseException:
            if request.query_id in self._running:
                self._running[request.query_id].cancel()
            raise
        finally:
            timer.cancel()
            self._overdue.pop(request.query_id, None)
            self._offered.discard(request.query_id)
            self._loaded.pop(request.query_id, None)
            if request.query_id in self._generating:
                self._running[request.query_id].cancel()
            if request.query_id in self._loading:
                self._loading[request.query_id].cancel()

    def start(self) -> None:
        """Start prefetches for overdue requests where there is room. To be called when a request or a prefill ends.

        An instance's own room goes to the longest waiting request. A KV generator takes the one that has waited for the
        shortest time: what it computes for one whose turn is near would come too late. An instance that prefetches
        nothing loads for the request whose turn is next.
        """
        if not self._overdue:
            # Most requests find no queue, and looking at all instances' queues takes time.
            return
        for query_id, request in list(self._overdue.items()):
            if query_id in self._running:
                # It was cancelled, and has not ended yet.
                continue
            if self._scheduler.speculative.may_prefetch(query_id):
                del self._overdue[query_id]
                self._prefetch(request, own=True)
        for query_id, request in reversed(list(self._overdue.items())):
            if (
                query_id not in self._running
                and query_id not in self._offered
                and self._scheduler.speculative.may_generate(query_id)
            ):
                # Its own instance may have room later, for what KV generators do not do: load.
                self._offered.add(query_id)
                self._prefetch(request, own=False)
        for soonest in self._scheduler.speculative.loading_next():
            for query_id in soonest:
                documents = self._to_load(query_id)
                if documents and not self._load(self._overdue[query_id], documents):
                    break

    def _became_overdue(self, request: AdmissionRequest) -> None:
        self._overdue[request.query_id] = request
        self.start()

    def _prefetch(self, request: AdmissionRequest, own: bool) -> None:
        """Start a prefetch on the request's ``own`` instance, or on a KV generator."""
        if self._messages.outdated(request):
            return
        ahead = self._ahead(request)
        slots = self._scheduler.speculative
        start = slots.prefetch if own else slots.generate
        try:
            grant = self._leases.ahead(start, request.query_id, self._messages.request(ahead))
        except RagtreeError as error:
            # Logged, not raised: the caller is reporting on another query.
            _log.warning("a prefetch could not start", query_id=request.query_id, error=str(error))
            return
        if grant is not None:
            plan = self._messages.plan(ahead, grant, speculative=True)
            self._deliveries.start()
            assert self._executor is not None
            if not own:
                self._generating.add(request.query_id)
            self._running[request.query_id] = self._carry_out(self._executor, plan, partial(self._ended, request, plan))

    def _to_load(self, query_id: str) -> int:
        """How many documents to load for a request; 0 if none, if it is not overdue, or if that was done before."""
        if query_id not in self._overdue or query_id in self._loading:
            return 0
        documents = self._scheduler.speculative.to_load(query_id)
        return documents if documents > self._loaded.get(query_id, 0) else 0

    def _load(self, request: AdmissionRequest, documents: int) -> bool:
        """Start to load a request's first documents. Whether to try another one: not if it started or had no room."""
        if self._messages.outdated(request):
            return True
        ahead = self._exactly(request, request.prompt.of_prefix(range(documents)))
        try:
            load = self._scheduler.speculative.load
            grant = self._leases.ahead(load, request.query_id, self._messages.request(ahead))
        except RagtreeError as error:
            _log.warning("a load could not start", query_id=request.query_id, error=str(error))
            return True
        if grant is not None:
            self._loaded[request.query_id] = documents
            plan = self._messages.plan(ahead, grant, speculative=True)
            self._deliveries.start()
            assert self._executor is not None
            self._loading[request.query_id] = self._carry_out(self._executor, plan, partial(self._load_ended, request))
        return False

    def _load_ended(self, request: AdmissionRequest, outcome: EndedPrefill) -> None:
        del self._loading[request.query_id]
        self.prefetched_tokens += outcome.prepared_tokens
        self.start()
        self._deliveries.start()

    def _ahead(self, request: AdmissionRequest) -> AdmissionRequest:
        """What to prefill for a request that waits, in full, as nothing composed is kept.

        Of a prompt that will be composed, that is what it loads, and after it what nothing is donated for.
        """
        prompt, found = request.prompt, self._scheduler.book.found(request.query_id)
        if found.composing is not None:
            prompt = prompt.of_prefix(found.composing.exact(found.loading.documents))
        return self._exactly(request, prompt)

    def _exactly(self, request: AdmissionRequest, prompt: Prompt) -> AdmissionRequest:
        """The request with another prompt, of which nothing is composed, and with its own id."""
        plan_id = f"{request.query_id}~prefetch-{next(self._numbers)}"
        return msgspec.structs.replace(request, query_id=plan_id, prompt=prompt, reuse=Reuse.EXACT)

    def _ended(self, request: AdmissionRequest, plan: PrefillPlan, outcome: EndedPrefill) -> None:
        del self._running[request.query_id]
        self.prefetched_tokens += outcome.prepared_tokens
        if request.query_id in self._generating:
            self._generating.discard(request.query_id)
            if outcome.prefill is not None:
                self.generated_tokens += outcome.prefill.computed_tokens
        if outcome.gave_way(plan) and self._scheduler.book.waits(request.query_id):
            self._overdue = {request.query_id: request, **self._overdue}
        self.start()
        self._deliveries.start()

    async def all_ended(self) -> None:
        """Wait until no prefill runs, including those that start as others end."""
        while running := {*self._running.values(), *self._loading.values()}:
            await asyncio.wait(running)

    def _carry_out(
        self, executor: Executor, plan: PrefillPlan, ended: Callable[[EndedPrefill], None]
    ) -> asyncio.Task[EndedPrefill]:
        """Start a leased plan; cancelling the task ends it. ``ended`` is called once its lease is completed."""
        task = asyncio.get_running_loop().create_task(self._prefilled(executor, plan))

        # A callback, because a task that is cancelled before its first step runs none of its code.
        def complete(task: asyncio.Task[EndedPrefill]) -> None:
            outcome = _FAILED if task.cancelled() else task.result()
            if outcome.prefill is not None:
                # Before others are planned.
                self._kv_reads.lose(outcome.at_peers)
                self._kv_reads.record(plan.instance, outcome.prefill.reads)
            try:
                self._leases.complete(plan.query_id, outcome.prefill is not None, outcome.lost)
            except UnknownPlan:
                # Its lease has run out, or ended with its instance.
                outcome = _FAILED
            ended(outcome)

        task.add_done_callback(complete)
        return task

    async def _prefilled(self, executor: Executor, plan: PrefillPlan) -> EndedPrefill:
        try:
            prefill = await executor.prefill(plan)
            lost = prefill.lost if prefill is not None else ()
            return EndedPrefill(prefill, lost_copies(lost), lost_at_peers(lost))
        except RagtreeError as error:
            _log.warning("a background prefill failed", plan_id=plan.query_id, error=str(error))
        except Exception:
            _log.exception("a background prefill failed", plan_id=plan.query_id)
        return _FAILED
