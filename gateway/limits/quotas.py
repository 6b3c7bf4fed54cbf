"""The quotas of callers: what is admitted, what it is charged, and what replies say about that."""

from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager

from gateway.background_tasks import BackgroundTasks
from gateway.limits.auth import Caller
from gateway.limits.concurrency import Concurrency
from gateway.limits.token_promises import TokenPromises
from gateway.query.runs import QueryRun
from gateway.settings import GatewaySettings
from gateway.stores.windows import Standing, Windows
from protocol.errors import RateLimited

Said = MutableMapping[str, str]
"""The headers of a reply."""


class QueryTicket:
    """A query that was admitted; ``settle`` hears of the tokens that it came to, however it ended."""

    def __init__(self, settle: Callable[[int], None]) -> None:
        self._settle = settle
        self.followed = False

    def follow(self, run: QueryRun) -> None:
        """Charge for this run when it has ended."""
        self.followed = True
        run.task.add_done_callback(lambda _: self._settle(run.transcript.tokens))


class UploadTicket:
    """An upload that was admitted, before its body was read."""

    def __init__(self, windows: Windows, caller: Caller) -> None:
        self._windows = windows
        self._caller = caller

    async def received(self, size: int, documents: int = 1) -> None:
        """Charge for the body, now that it is there: its bytes, and its documents but the one that was charged."""
        limits = self._caller.limits
        if limits.upload_bytes_per_minute is not None and size:
            await self._windows.charge(f"{self._caller.owner}/upload_bytes", size)
        if limits.documents_per_minute is not None and documents > 1:
            await self._windows.charge(f"{self._caller.owner}/documents", documents - 1)


class Quotas:
    """Admits requests, queries and uploads within the limits of their key; no key's use counts for another.

    What is refused costs nothing but a request. What a query will use is not known before it ends, so it is admitted
    while its key's window has room, less what its running queries are expected to use (``TokenPromises``).
    """

    def __init__(self, windows: Windows, tasks: BackgroundTasks, settings: GatewaySettings) -> None:
        self._windows = windows
        self._tasks = tasks
        self._queries = Concurrency("queries", settings.max_concurrent_queries)
        self._uploads = Concurrency("uploads")
        self._promises = TokenPromises()

    async def request(self, caller: Caller, said: Said) -> None:
        """Count a request of any kind. Raises RateLimited."""
        if caller.limits.requests_per_minute is not None:
            key, limit = f"{caller.owner}/requests", caller.limits.requests_per_minute
            taken = await self._windows.take(key, limit)
            standing = await self._windows.standing(key, limit)
            _say(said, "requests", standing)
            if not taken:
                raise _used_up("requests", standing)

    @asynccontextmanager
    async def query(self, caller: Caller, said: Said) -> AsyncIterator[QueryTicket]:
        """Admit a query, which has its place until the block ends. Raises RateLimited or Overloaded."""
        with self._queries.place(caller.owner, caller.limits.concurrent_queries):
            limit = caller.limits.tokens_per_minute
            if limit is None:
                yield QueryTicket(lambda _: None)
                return
            promised = await self._promised(caller.owner, limit, said)
            ticket = QueryTicket(lambda tokens: self._settle(caller.owner, promised, tokens))
            try:
                yield ticket
            finally:
                if not ticket.followed:
                    self._promises.take_back(caller.owner, promised)

    @asynccontextmanager
    async def upload(self, caller: Caller) -> AsyncIterator[UploadTicket]:
        """Admit an upload, which is under way until the block ends. Raises RateLimited."""
        limits = caller.limits
        with self._uploads.place(caller.owner, limits.concurrent_uploads):
            if limits.upload_bytes_per_minute is not None:
                standing = await self._windows.standing(f"{caller.owner}/upload_bytes", limits.upload_bytes_per_minute)
                if not standing.room:
                    raise _used_up("bytes of uploads", standing)
            if limits.documents_per_minute is not None:
                key, limit = f"{caller.owner}/documents", limits.documents_per_minute
                if not await self._windows.take(key, limit):
                    raise _used_up("documents", await self._windows.standing(key, limit))
            yield UploadTicket(self._windows, caller)

    async def _promised(self, owner: str, limit: int, said: Said) -> int:
        counted = await self._windows.standing(f"{owner}/tokens", limit)
        # No await from here on, or two queries would be promised the same room.
        standing = counted._replace(room=max(0, counted.room - self._promises.of(owner)))
        _say(said, "tokens", standing)
        if not standing.room:
            raise _used_up("tokens", standing, known=not counted.room)
        return self._promises.make(owner, limit)

    def _settle(self, owner: str, promised: int, tokens: int) -> None:
        self._tasks.start(self._charged(owner, promised, tokens))

    async def _charged(self, owner: str, promised: int, tokens: int) -> None:
        try:
            if tokens:
                await self._windows.charge(f"{owner}/tokens", tokens)
                self._promises.learn(owner, tokens)
        finally:
            self._promises.take_back(owner, promised)


def _used_up(what: str, standing: Standing, known: bool = True) -> RateLimited:
    """The refusal; when there is room again is not known where it is running queries that leave none."""
    said = f"This key has used up its {standing.limit:,} {what} per minute."
    return RateLimited(said, retry_after_s=standing.retry_after_s if known else None)


def _say(said: Said, what: str, standing: Standing) -> None:
    """Note how a quota stands, in the headers that OpenAI's clients know."""
    said[f"x-ratelimit-limit-{what}"] = str(standing.limit)
    said[f"x-ratelimit-remaining-{what}"] = str(standing.room)
    said[f"x-ratelimit-reset-{what}"] = f"{standing.reset_s:.3f}s"
