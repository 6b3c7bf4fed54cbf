"""A connector that plans in the engine's own process, for a plain vLLM that receives no plans.

A request marks the documents of its prompt in ``kv_transfer_params``: ``{"ragtree": {"segments": [45, 512, 498]}}``
means that the first 45 tokens are one segment (a system prompt, for example), and two documents of 512 and 498 tokens
follow. The rest is the question. Segments with equal tokens are the same document. A prompt has at most 256 of them.
Requests without marks are served as usual.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from blake3 import blake3

from generator.connector.connector import RagtreeConnector
from generator.connector.messages import PARAMETER, EngineReport, RequestMessage
from protocol.kv import KvMemory, LostCopy, ResidencyReport
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
    from vllm.v1.request import Request

log = structlog.get_logger(__name__)

_START = "what the tiers hold at the start"
_MOST_SEGMENTS = 256
"""Each node names the whole path in front of it, so memory grows with the square of their number."""


class Planner(Protocol):
    """Plans requests. Receives the first token and the end of every plan."""

    def admit(self, query_id: str, namespace: str, prompt: Prompt) -> PrefillPlan:
        """A plan for a prompt. Its documents are the segments in front of the question."""

    def prefilled(self, query_id: str, lost: Sequence[LostCopy]) -> None:
        """Record a plan's first token. ``lost`` are missing copies of any nodes."""

    def complete(self, query_id: str, kept: bool) -> None:
        """Record the end of a plan; ``kept`` if it had its first token."""


class PlanningConnector(RagtreeConnector):
    """A ``RagtreeConnector`` that asks a planner in its own process, once the engine has reported what it holds."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **keywords)
        self._memory: KvMemory | None = None
        self._planner: Planner | None = None
        self._planned: set[str] = set()
        # Plans that have ended and whose completion is not yet recorded: whether each had its first token.
        self._ended_plans: dict[str, bool] = {}
        self._lost: list[LostCopy] = []
        self._scheduler_side.inquire(_START)

    @abstractmethod
    def make_planner(self, memory: KvMemory, reports: Sequence[ResidencyReport]) -> Planner:
        """The planner for an engine with this memory, whose tiers hold what the reports list."""

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Record the end of a request. Its plan completes after its report."""
        finished = super().request_finished(request, block_ids)
        if request.request_id in self._planned:
            self._planned.discard(request.request_id)
            self._ended_plans[request.request_id] = request.num_output_tokens > 0
        return finished

    def get_kv_connector_stats(self) -> "KVConnectorStats | None":
        """Tell the planner what there is to report. Returns None, because nothing leaves the engine."""
        super().get_kv_connector_stats()
        for name, kept in self._ended_plans.items():
            self._notify("complete", name, kept)
        self._ended_plans.clear()
        return None

    def _message_of(self, request: "Request") -> RequestMessage | None:
        if self._planner is None:
            return None
        try:
            prompt = _prompt(request)
            if prompt is None:
                return None
            plan = self._planner.admit(request.request_id, request.cache_salt or "", prompt)
        except Exception as error:
            # The marks come from outside, and this is the engine's own thread: any error leaves the request unplanned.
            log.warning("request_not_planned", request=request.request_id, error=repr(error))
            return None
        self._planned.add(request.request_id)
        return RequestMessage.of_plan(plan)

    def _publish(self, report: EngineReport) -> None:
        self._memory = report.memory or self._memory
        if _START in report.held and self._memory is not None:
            try:
                self._planner = self.make_planner(self._memory, report.held[_START])
            except Exception:
                log.exception("no_planner", consequence="requests are served without the knowledge tree")
        self._lost += report.lost
        for name in report.prefilled:
            self._notify("prefilled", name, self._lost)
            self._lost = []

    def _notify(self, event: str, name: str, detail: object) -> None:
        try:
            getattr(self._planner, event)(name, detail)
        except Exception:
            log.exception("planner_not_notified", planner_event=event, request=name)


def _prompt(request: "Request") -> Prompt | None:
    """The request's prompt in segments, or None without marks. Raises ValueError or TypeError for invalid marks."""
    carried = (request.kv_transfer_params or {}).get(PARAMETER)
    if carried is None or request.prompt_token_ids is None:
        return None
    if request.lora_request is not None or request.mm_features or request.prompt_embeds is not None:
        # Their KV depends on more than the tokens. For embeddings, the tokens are only placeholders.
        return None
    if len(carried["segments"]) > _MOST_SEGMENTS:
        raise ValueError(f"a prompt has at most {_MOST_SEGMENTS} segments, got {len(carried['segments'])}")
    segments: list[Segment] = []
    position = 0
    for tokens in carried["segments"]:
        if not isinstance(tokens, int) or tokens < 1:
            raise ValueError(f"a segment needs at least one token, got {tokens!r}")
        ids = tuple(request.prompt_token_ids[position : position + tokens])
        position += tokens
        segments.append(Segment(SegmentKind.DOCUMENT, _content(ids), ids))
    if position > request.num_prompt_tokens:
        raise ValueError(f"the segments have {position} tokens, but the prompt has {request.num_prompt_tokens}")
    rest = tuple(request.prompt_token_ids[position:])
    return Prompt((*segments, Segment(SegmentKind.QUESTION, "", rest)))


def _content(ids: tuple[int, ...]) -> str:
    return blake3(b"".join(token.to_bytes(4, "little") for token in ids)).hexdigest()
