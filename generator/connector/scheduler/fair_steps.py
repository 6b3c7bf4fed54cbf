"""Steps that tenants share: a prefill of one does not make the answers of another wait for long."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from generator.connector.scheduler.planned_request import PlannedRequest
from protocol.kv import without_adapter

if TYPE_CHECKING:
    from vllm.config import SchedulerConfig

_SHARED_STEP_S = 0.1
"""How long the prefills in a step may take while another tenant's answer waits for its next token."""
_LEAST_TOKENS = 32
"""Less would take as long, and prefill less. The time of a step of fewer tokens says little about one token."""
_KEPT = 0.8
"""The weight of earlier steps in the time of a token."""


class FairSteps:
    """Bounds what a prefill takes of a step while an answer of another tenant is generated.

    vLLM computes prefills and answers in the same steps, so an answer's next token waits for all of a step. Among the
    requests of one tenant, and where steps are fast, a prompt takes as much of a step as ``scheduler`` says. vLLM reads
    its ``long_prefill_token_threshold`` at each step, and this sets it.
    """

    def __init__(self, scheduler: "SchedulerConfig", clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._most: int = scheduler.long_prefill_token_threshold
        # When each step under way began, and its tokens, the oldest first.
        self._steps: deque[tuple[float, int]] = deque()
        self._ended = 0.0
        self._token_s = 0.0

    def begin(self, states: Iterable[PlannedRequest], tokens: int) -> None:
        """Note that a step of these ``tokens`` begins, and bound the prefills of the next one."""
        self._steps.append((self._clock(), tokens))
        answering: set[str] = set()
        prefilling: list[str] = []
        for state in states:
            if state.request.num_output_tokens:
                answering.add(without_adapter(state.plan.namespace))
            else:
                prefilling.append(without_adapter(state.plan.namespace))
        others = any(answering - {tenant} for tenant in prefilling)
        self._scheduler.long_prefill_token_threshold = self._bounded(len(prefilling)) if others else self._most

    def end(self) -> None:
        """Learn from the oldest step under way, which ends. It was computed after those before it."""
        begun, tokens = self._steps.popleft()
        now = self._clock()
        if tokens >= _LEAST_TOKENS:
            token_s = (now - max(begun, self._ended)) / tokens
            self._token_s = _KEPT * self._token_s + (1 - _KEPT) * token_s if self._token_s else token_s
        self._ended = now

    def _bounded(self, prefills: int) -> int:
        if not self._token_s:
            return self._most
        fair = max(_LEAST_TOKENS, int(_SHARED_STEP_S / self._token_s) // prefills)
        return min(fair, self._most or fair)
