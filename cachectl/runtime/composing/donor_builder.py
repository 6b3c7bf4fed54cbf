"""Computes documents ahead of time that composed prompts found no KV of, so that later ones have donors for them."""

from collections import OrderedDict
from functools import partial
from itertools import count

import msgspec
import structlog

from cachectl.runtime.background_prefills import BackgroundPrefills, Outcome
from cachectl.runtime.composing.lacking import MOST_WANTED, lacking
from cachectl.runtime.deliveries import Deliveries
from cachectl.runtime.leases import Leases
from cachectl.runtime.plan_builder import PlanBuilder
from cachectl.runtime.request_reader import RequestReader
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tree.grant import Grant
from protocol.errors import RagtreeError
from protocol.plans import AdmissionRequest, PrefillPlan, Reuse
from protocol.prompts import Prompt, SegmentKind

_log = structlog.get_logger(__name__)


class DonorBuilder:
    """Prefills documents that composed prompts lacked, while no query is prefilled.

    A composed prompt keeps nothing, so such a document would never be found. The one that was asked for last is first.
    A prefill gives way to queries, and is tried again. Belongs to one event loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        leases: Leases,
        deliveries: Deliveries,
        requests: RequestReader,
        plans: PlanBuilder,
        prefills: BackgroundPrefills | None,
    ) -> None:
        self._scheduler = scheduler
        self._leases = leases
        self._deliveries = deliveries
        self._requests = requests
        self._plans = plans
        self._prefills = prefills
        self._numbers = count(1)
        self._wanted: OrderedDict[tuple[str, str], AdmissionRequest] = OrderedDict()
        self._running = False

    def note(self, request: AdmissionRequest, grant: Grant) -> None:
        """Note the documents of a composed prompt that no document of the tree donates.

        Each will be computed behind the prompt's first document.
        """
        if grant.recompute_share is None:
            return
        prefix = request.prompt.prefix
        system = sum(segment.kind is SegmentKind.SYSTEM for segment in prefix)
        for path in lacking(prefix, grant.documents, system):
            key = request.namespace, path[-1].key
            self._wanted[key] = msgspec.structs.replace(request, prompt=Prompt(path), reuse=Reuse.EXACT)
            self._wanted.move_to_end(key)
        while len(self._wanted) > MOST_WANTED:
            self._wanted.popitem(last=False)

    def start(self) -> None:
        """Start the next prefill if there is room. To be called when a request or a prefill ends."""
        while self._may_start():
            key, request = self._wanted.popitem()
            self._start(key, request)

    def _may_start(self) -> bool:
        free = self._prefills is not None and not self._running and self._scheduler.speculative.has_room()
        return bool(self._wanted) and free

    def _start(self, key: tuple[str, str], request: AdmissionRequest) -> None:
        assert self._prefills is not None
        named = msgspec.structs.replace(request, query_id=f"{request.query_id}~donor-{next(self._numbers)}")
        asked = self._requests.request(named)
        if self._requests.outdated(named) or self._scheduler.is_cached(asked):
            return
        try:
            grant = self._leases.speculate(asked)
        except RagtreeError as error:
            # Logged, not raised: the caller is reporting on another query.
            _log.warning("a donor could not be computed", query_id=named.query_id, error=str(error))
            return
        if grant is None:
            return
        plan = self._plans.build(named, grant, speculative=True)
        self._running = True
        self._prefills.start(plan, partial(self._ended, key, request, plan))
        self._deliveries.start()

    def _ended(self, key: tuple[str, str], request: AdmissionRequest, plan: PrefillPlan, outcome: Outcome) -> None:
        self._running = False
        if outcome.gave_way(plan):
            self._wanted[key] = request
        self.start()
        self._deliveries.start()
