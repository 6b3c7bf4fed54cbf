"""The shards of a retriever: their interface, which are lost, and calls to several at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import structlog

from protocol.errors import DeployFailed, RagtreeError, ShardTimeout
from protocol.parts import Retriever
from retriever.reranking.base import Scores


class Shard(Retriever, Protocol):
    """A retriever that stores some of the documents and checks some of the idempotency keys of all shards."""

    async def claim_key(self, tenant: str, key: str, body_hash: str) -> None:
        """Bind an idempotency key to the hash of a body, no matter which shards store its documents.

        Claiming twice is harmless. Raises IdempotencyMismatch if the key is bound to a different body, and StorageFull.
        """

    async def rerank(self, query: str, texts: Sequence[str], wanted: int) -> Scores:
        """Return the score of each text, at least those of the ``wanted`` best ones, from any shards.

        Raises RerankFailed, and InvalidRequest if no reranker is configured.
        """


_log = structlog.get_logger(__name__)

T = TypeVar("T")


class ShardGroup:
    """The shards by number, from 0.

    A shard is lost if ``ready`` found it so: it reported an error, or did not answer within ``ready_within_s`` seconds.
    It counts as lost until the next ``ready``, so that no call waits for it meanwhile. A caller must allow ``ready`` at
    least ``ready_within_s`` seconds, or a silent shard never counts as lost.
    """

    def __init__(self, shards: Sequence[Shard], ready_within_s: float, *, partial: bool) -> None:
        self._shards = shards
        self._ready_within_s = ready_within_s
        self._partial = partial
        self._lost: dict[int, RagtreeError] = {}

    def __len__(self) -> int:
        """The number of shards, including lost ones."""
        return len(self._shards)

    @property
    def numbers(self) -> range:
        """The numbers of all shards."""
        return range(len(self._shards))

    @property
    def lost(self) -> dict[int, RagtreeError]:
        """A copy of the errors of the lost shards, by number."""
        return dict(self._lost)

    def __getitem__(self, number: int) -> Shard:
        """Return a shard. Raises its error if it is lost."""
        if number in self._lost:
            raise self._lost[number]
        return self._shards[number]

    async def ready(self) -> None:
        """Check every shard again. Raises a shard's error unless all are ready or, with partial answers, one."""
        errors = await asyncio.gather(*map(self._readiness_error, self.numbers))
        lost = {number: error for number, error in enumerate(errors) if error is not None}
        if lost.keys() != self._lost.keys():
            _log.info("shard_readiness", missing={number: error.message for number, error in lost.items()})
        self._lost = lost
        if lost and (not self._partial or len(lost) == len(self._shards)):
            # If all shards are needed, a failed deployment is the most important error. If one is enough, it is the
            # least important, because the others may still start.
            raise max(lost.values(), key=lambda error: isinstance(error, DeployFailed) != self._partial)

    async def call(self, numbers: Iterable[int], call: Callable[[int, Shard], Awaitable[T]]) -> dict[int, T]:
        """Call several shards concurrently and return their answers by number.

        If one is lost, raises its error without calling any. Otherwise waits for all answers, then raises the
        error of the first shard that failed.
        """
        shards = {number: self[number] for number in numbers}
        calls = (call(number, shard) for number, shard in shards.items())
        answers: dict[int, T] = {}
        for number, answer in zip(shards, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(answer, BaseException):
                raise answer
            answers[number] = answer
        return answers

    async def in_time(self, number: int, answer: Awaitable[T]) -> T:
        """Wait for a shard's answer. Raises ShardTimeout after ``ready_within_s`` seconds."""
        try:
            async with asyncio.timeout(self._ready_within_s):
                return await answer
        except TimeoutError:
            raise ShardTimeout(f"shard {number} does not answer") from None

    async def _readiness_error(self, number: int) -> RagtreeError | None:
        try:
            await self.in_time(number, self._shards[number].ready())
        except RagtreeError as error:
            return error
        return None
