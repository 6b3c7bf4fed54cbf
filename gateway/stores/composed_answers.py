"""Composed answers that wait to be compared with those of full prefills."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from protocol.generation import Sampling
from protocol.plans import PrefillPlan

_KEPT = 16


class ComposedAnswer(NamedTuple):
    """A greedy answer to a composed prompt, whose documents were searched for at ``searched_at`` (epoch seconds)."""

    plan: PrefillPlan
    text: str
    searched_at: float


class ComposedAnswers:
    """A random ``share`` of the composed answers that can be compared, until they are; the latest few of them.

    ``draw`` returns a number from 0 to 1.
    """

    def __init__(self, share: float, draw: Callable[[], float] = random.random) -> None:
        self._share = share
        self._draw = draw
        self._answers: deque[ComposedAnswer] = deque(maxlen=_KEPT)
        self._any = asyncio.Event()

    def note(self, answer: ComposedAnswer, sampling: Sampling) -> None:
        """Keep an answer if it is drawn. Only greedy ones are comparable."""
        if sampling.greedy and self._draw() < self._share:
            self._answers.append(answer)
            self._any.set()

    async def next(self) -> ComposedAnswer:
        """Wait for an answer, and take the oldest one."""
        await self._any.wait()
        answer = self._answers.popleft()
        if not self._answers:
            self._any.clear()
        return answer
