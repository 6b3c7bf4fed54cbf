"""A generation on provisional documents, buffered until it is confirmed."""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from itertools import takewhile
from typing import NamedTuple

from gateway.query.context import QueryContext
from gateway.query.lease import Lease
from protocol.generation import GenerationStep
from protocol.plans import AdmissionRequest, PrefillPlan
from protocol.prompts import Prompt


class Use(NamedTuple):
    """How much of a guess's work another prompt can use: the ``share`` of it, and the tokens that are ``wasted``."""

    share: float
    wasted: int


class Guess:
    """A running generation on provisional documents. Its steps stay in a buffer until they are wanted.

    ``request`` has the prompt that was asked for; that of its ``plan`` may have its facts in trees. ``documents`` are
    the content keys it rests on. Times are milliseconds since the query's arrival: ``began_ms``, its first step at
    ``prefilled_ms``, and its release at ``ended_ms``, which the owner sets. The guess is ``over`` if it failed with an
    ``error``, or if the controller ended it for a request.
    """

    def __init__(
        self,
        context: QueryContext,
        request: AdmissionRequest,
        plan: PrefillPlan,
        documents: Sequence[str],
        lease: Lease,
    ) -> None:
        self.request = request
        self.plan = plan
        self.documents = documents
        self.lease = lease
        self.began_ms = context.timeline.now_ms()
        self.prefilled_ms = self.ended_ms = math.inf
        self.over = False
        self._context = context
        self.error: Exception | None = None
        self._buffer: asyncio.Queue[GenerationStep | None] = asyncio.Queue()
        lease.read_in_background(self._read(context.stream(lease, plan)), context.parts.generator.end)

    async def steps(self) -> AsyncGenerator[GenerationStep]:
        """All steps from the first one on. Raises what the stream raises. Call it once."""
        while (step := await self._buffer.get()) is not None:
            yield step
        if self.error is not None:
            raise self.error

    def use(self, prompt: Prompt) -> Use:
        """How much of the guess's work ``prompt`` can use: the tokens computed for the segments that both begin with.

        Zero before the engine has released the guess, and if nothing of it was kept.
        """
        prefill = self.lease.prefill
        if prefill is None:
            return Use(0.0, 0)
        if self.plan.recompute is not None:
            # Nothing that a composed prompt computes is kept.
            return Use(0.0, prefill.computed_tokens)
        pairs = zip(self.plan.prompt.prefix, prompt.prefix, strict=False)
        common = takewhile(lambda pair: pair[0].key == pair[1].key, pairs)
        shared = sum(len(segment.token_ids) for segment, _ in common)
        computed = prefill.computed_tokens
        useful = max(0, min(shared, prefill.prompt_tokens) - prefill.cached_tokens)
        return Use(useful / computed if computed else 0.0, computed - useful)

    async def _read(self, steps: AsyncGenerator[GenerationStep]) -> None:
        try:
            async for step in steps:
                self.prefilled_ms = min(self.prefilled_ms, self._context.timeline.now_ms())
                self._buffer.put_nowait(step)
                self.over = step.finish_reason == "ended"
        except Exception as error:
            self.error = error
            self.over = True
        self._buffer.put_nowait(None)
