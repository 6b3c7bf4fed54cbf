"""A generation on provisional documents, out of everybody's sight until it is confirmed."""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from gateway.query.lease import Lease
from protocol.generation import GenerationStep
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt


class Use(NamedTuple):
    """What of a guess's work another prompt has use for: the share of it, and the tokens that were ``wasted``."""

    share: float
    wasted: int


class Guess:
    """A generation on provisional documents. Its steps wait here, however many there are, until they are wanted.

    ``documents`` are the content keys that it rests on. It began at ``began_ms``, and its first step came at
    ``prefilled_ms``, from the query's arrival, as ``now_ms`` tells; who ends it notes in ``ended_ms`` when the engine
    had let go of it. It is ``over`` when it broke, or gave way to a request.
    """

    def __init__(
        self,
        plan: PrefillPlan,
        documents: Sequence[str],
        lease: Lease,
        steps: AsyncIterator[GenerationStep],
        end: Callable[[str], Coroutine[Any, Any, None]],
        now_ms: Callable[[], float],
    ) -> None:
        self.plan = plan
        self.documents = documents
        self.lease = lease
        self.began_ms = now_ms()
        self.prefilled_ms = self.ended_ms = math.inf
        self.over = False
        self._now_ms = now_ms
        self._error: Exception | None = None
        self._buffer: asyncio.Queue[GenerationStep | None] = asyncio.Queue()
        lease.reading(self._read(steps), end)

    async def steps(self) -> AsyncGenerator[GenerationStep]:
        """Its steps from the first one on; raises what the stream raises. To be read once."""
        while (step := await self._buffer.get()) is not None:
            yield step
        if self._error is not None:
            raise self._error

    def use(self, prompt: Prompt) -> Use:
        """What of its work another prompt has use for: what was computed of the segments that both begin with.

        Nothing, as far as is known, before the engine has let go of it, or where nothing of it is kept.
        """
        prefill = self.lease.prefill
        if prefill is None:
            return Use(0.0, 0)
        pairs = zip(self.plan.prompt.prefix, prompt.prefix, strict=False)
        both = takewhile(lambda pair: pair[0].key == pair[1].key, pairs)
        shared = sum(len(segment.token_ids) for segment, _ in both)
        computed = prefill.prompt_tokens - prefill.cached_tokens
        useful = max(0, min(shared, prefill.prompt_tokens) - prefill.cached_tokens)
        return Use(useful / computed if computed else 0.0, computed - useful)

    async def _read(self, steps: AsyncIterator[GenerationStep]) -> None:
        try:
            async for step in steps:
                self.prefilled_ms = min(self.prefilled_ms, self._now_ms())
                self._buffer.put_nowait(step)
                self.over = step.finish_reason == "ended"
        except Exception as error:
            # Whoever wants the steps hears of it; perhaps nobody does.
            self._error = error
            self.over = True
        self._buffer.put_nowait(None)
