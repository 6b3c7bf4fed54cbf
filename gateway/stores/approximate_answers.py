"""Answers to prompts with approximate KV, which wait to be compared with those of full prefills."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from gateway.wire.reuse import Approximation
from protocol.generation import Sampling
from protocol.prompts import Prompt
from protocol.retrieval import Revisions

_KEPT = 16


class ApproximateAnswer(NamedTuple):
    """A greedy answer to a prompt whose KV was an ``approximation`` of that of a full prefill.

    ``prompt`` has its facts in full. Its documents were ``found_at`` these revisions.
    """

    query_id: str
    namespace: str
    prompt: Prompt
    approximation: Approximation
    text: str
    found_at: Revisions


class ApproximateAnswers:
    """A random ``share`` of the approximate answers that can be compared, until they are; the latest few of them.

    ``draw`` returns a number from 0 to 1.
    """

    def __init__(self, share: float, draw: Callable[[], float] = random.random) -> None:
        self._share = share
        self._draw = draw
        self._answers: deque[ApproximateAnswer] = deque(maxlen=_KEPT)
        self._any = asyncio.Event()

    def note(self, answer: ApproximateAnswer, sampling: Sampling) -> None:
        """Keep an answer if it is drawn. Only greedy ones are comparable."""
        if sampling.greedy and self._draw() < self._share:
            self._answers.append(answer)
            self._any.set()

    async def next(self) -> ApproximateAnswer:
        """Wait for an answer, and take the oldest one."""
        await self._any.wait()
        answer = self._answers.popleft()
        if not self._answers:
            self._any.clear()
        return answer
