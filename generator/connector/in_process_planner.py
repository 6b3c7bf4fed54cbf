"""The connector with its planner beside it, in the engine's own process: for a plain vLLM that nobody sends plans.

A request says in ``kv_transfer_params`` which stretches of its prompt are documents: ``{"ragtree": {"segments": [45,
512, 498]}}`` are the first 45 tokens, a system prompt say, and two documents behind them; the rest is the question.
Equal tokens are the same document. Requests that say nothing are served as ever.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from blake3 import blake3

from generator.connector.connector import RagtreeConnector
from generator.connector.messages import PARAMETER, EngineReport, RequestOrders
from protocol.kv import KvMemory, LostCopy, ResidencyReport
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
    from vllm.v1.request import Request

log = structlog.get_logger(__name__)

_START = "what the tiers hold at the start"


class Planner(Protocol):
    """Whoever plans: it hears of every plan's first token and end."""

    def plan(self, query_id: str, namespace: str, prompt: Prompt) -> PrefillPlan:
        """A plan for a prompt, whose documents are its segments in front of the question."""

    def prefilled(self, query_id: str, lost: Sequence[LostCopy]) -> None:
        """A plan has its first token; ``lost`` are copies of any nodes that are not there."""

    def complete(self, query_id: str, kept: bool) -> None:
        """A plan has ended, ``kept`` if it had its first token."""


class PlanningConnector(RagtreeConnector):
    """A ``RagtreeConnector`` that asks a planner in its own process, once the engine has said what it holds."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **keywords)
        self._memory: KvMemory | None = None
        self._planner: Planner | None = None
        self._planned: set[str] = set()
        self._finished: dict[str, bool] = {}
        self._lost: list[LostCopy] = []
        self._scheduler.inquire(_START)

    @abstractmethod
    def make_planner(self, memory: KvMemory, reports: Sequence[ResidencyReport]) -> Planner:
        """The planner for an engine with this memory, whose tiers hold what the reports say."""

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request ends; so does its plan, once what came of it is reported."""
        ended = super().request_finished(request, block_ids)
        if request.request_id in self._planned:
            self._planned.discard(request.request_id)
            self._finished[request.request_id] = request.num_output_tokens > 0
        return ended

    def get_kv_connector_stats(self) -> "KVConnectorStats | None":
        """Nothing for the outside: the planner hears what there is to say, and of the plans that ended."""
        super().get_kv_connector_stats()
        for name, kept in self._finished.items():
            self._ask("complete", name, kept)
        self._finished.clear()
        return None

    def _orders(self, request: "Request") -> RequestOrders | None:
        if self._planner is None:
            return None
        try:
            prompt = _prompt(request)
            if prompt is None:
                return None
            plan = self._planner.plan(request.request_id, request.cache_salt or "", prompt)
        except Exception as error:
            # It came from outside, and this is the engine's own thread: whatever it is, the request is served as ever.
            log.warning("request_not_planned", request=request.request_id, error=repr(error))
            return None
        self._planned.add(request.request_id)
        return RequestOrders.of_plan(plan)

    def _tell(self, report: EngineReport) -> None:
        self._memory = report.memory or self._memory
        if _START in report.held and self._memory is not None:
            try:
                self._planner = self.make_planner(self._memory, report.held[_START])
            except Exception:
                log.exception("no_planner", consequence="requests are served without the knowledge tree")
        self._lost += report.lost
        for name in report.resolved:
            self._ask("prefilled", name, self._lost)
            self._lost = []

    def _ask(self, what: str, name: str, told: object) -> None:
        try:
            getattr(self._planner, what)(name, told)
        except Exception:
            log.exception("planner_did_not_hear", what=what, request=name)


def _prompt(request: "Request") -> Prompt | None:
    """The request's prompt in segments, None where it names none. Raises ValueError and TypeError for what is none."""
    carried = (request.kv_transfer_params or {}).get(PARAMETER)
    if carried is None or request.prompt_token_ids is None:
        return None
    if request.lora_request is not None or request.mm_features:
        # Tokens alone do not say what their KV is then.
        return None
    segments: list[Segment] = []
    position = 0
    for tokens in carried["segments"]:
        if not isinstance(tokens, int) or tokens < 1:
            raise ValueError(f"a segment has at least one token, not {tokens!r}")
        ids = tuple(request.prompt_token_ids[position : position + tokens])
        position += tokens
        segments.append(Segment(SegmentKind.DOCUMENT, _content(ids), ids))
    if position > request.num_prompt_tokens:
        raise ValueError(f"the segments have {position} tokens, and the prompt {request.num_prompt_tokens}")
    rest = tuple(request.prompt_token_ids[position:])
    return Prompt((*segments, Segment(SegmentKind.QUESTION, "", rest)))


def _content(ids: tuple[int, ...]) -> str:
    return blake3(b"".join(token.to_bytes(4, "little") for token in ids)).hexdigest()
