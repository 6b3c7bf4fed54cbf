"""vLLM's schedulers, for models whose layers keep states: a step also ends where a node of the knowledge tree ends.

vLLM has the state at the end of each step only. It ends steps at multiples of a block, which has as many tokens as make
it as large as a state: hundreds, or thousands. So hardly any document ends there.
"""

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request


class _EndsWithNodes(Scheduler):  # type: ignore[misc]  # vLLM is untyped here
    """Asks the connector, which knows the nodes, for the end of each part of a prefill."""

    def _mamba_block_aligned_split(self, request: "Request", num_new_tokens: int, *found: int, **named: int) -> int:
        """How many of the next ``num_new_tokens`` the step computes. Those that are ``found`` come before them."""
        tokens: int = super()._mamba_block_aligned_split(request, num_new_tokens, *found, **named)
        start = request.num_computed_tokens + sum(found) + sum(named.values())
        # Another connector, or none, knows no nodes.
        to_node_end: Any = getattr(self.connector, "tokens_to_node_end", None)
        limit: int = to_node_end(request, start) if to_node_end is not None else 0
        return min(tokens, limit) if limit else tokens


class NodeEndScheduler(_EndsWithNodes):
    """vLLM's scheduler of one step at a time."""


class AsyncNodeEndScheduler(_EndsWithNodes, AsyncScheduler):  # type: ignore[misc]
    """vLLM's scheduler that plans a step while the one before is computed."""


NAMES = tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in (NodeEndScheduler, AsyncNodeEndScheduler))
"""As ``scheduler_cls`` has them, the asynchronous one last."""


def end_steps_with_nodes(config: "VllmConfig") -> None:
    """Choose one of these schedulers for an engine whose model has layers with states, unless one is named already."""
    scheduling = config.scheduler_config
    if config.model_config.is_hybrid and scheduling.scheduler_cls is None:
        scheduling.scheduler_cls = NAMES[bool(scheduling.async_scheduling)]
