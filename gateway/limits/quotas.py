"""Quotas of callers: admission, charges, and the rate-limit headers of replies."""

from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager

from gateway.limits.auth import Caller
from gateway.limits.room import Room
from gateway.limits.tokens import TokenAccount, TokenReservations
from gateway.query.runs import Running
from gateway.settings import GatewaySettings
from gateway.stores.windows import Standing, Windows
from gateway.tasks import BackgroundTasks
from protocol.errors import RateLimited

ReplyHeaders = MutableMapping[str, str]


class QueryTicket:
    """An admitted request that uses an engine or the embedder. It holds slots, and charges what it uses at once.

    ``account`` is None for a key without a quota of tokens, and ``take_slot`` takes the slot of another running query.
    """

    def __init__(self, account: TokenAccount | None, take_slot: Callable[[], None]) -> None:
        self._account = account
        self._take_slot = take_slot
        self._followed = False

    def take_slots(self, count: int) -> None:
        """Take more slots, for the same time. Raises RateLimited or Overloaded."""
        for _ in range(count):
            self._take_slot()

    def used(self, tokens: int) -> None:
        """Charge for work of this size. A request may do several kinds of work, and each is charged when it begins."""
        if self._account is not None and tokens:
            self._account.charge(tokens)

    def follow(self, run: Running) -> None:
        """Expect charges until this run has ended, and not only until the response is sent."""
        self._followed = True
        run.task.add_done_callback(lambda _: self._end())

    def close(self) -> None:
        """Expect no more charges, unless a run goes on."""
        if not self._followed:
            self._end()

    def _end(self) -> None:
        if self._account is not None:
            self._account.end()


class UploadTicket:
    """An admitted upload whose body is not read yet."""

    def __init__(self, windows: Windows, caller: Caller) -> None:
        self._windows = windows
        self._caller = caller

    async def received(self, size: int, documents: int = 1) -> None:
        """Charge for the received body: its bytes, and its documents except the one charged at admission."""
        limits = self._caller.limits
        if limits.upload_bytes_per_minute is not None and size:
            await self._windows.charge(f"{self._caller.owner}/upload_bytes", size)
        if limits.documents_per_minute is not None and documents > 1:
            await self._windows.charge(f"{self._caller.owner}/documents", documents - 1)


class Quotas:
    """Admits requests, queries and uploads within the limits of their key.

    A refusal costs nothing but a request. A query's prompt is known after its search, and its answer at the end. So a
    query is admitted if the key's window has room beyond the tokens that its running queries are still expected to use
    (``TokenReservations``).
    """

    def __init__(self, windows: Windows, tasks: BackgroundTasks, settings: GatewaySettings) -> None:
        self._windows = windows
        self._tasks = tasks
        self._queries = Room("running queries", settings.max_concurrent_queries, fair=settings.several_keys)
        self._uploads = Room("running uploads")
        self._reservations = TokenReservations()

    async def request(self, caller: Caller, headers: ReplyHeaders) -> None:
        """Count a request of any kind. Raises RateLimited."""
        if caller.limits.requests_per_minute is not None:
            key, limit = f"{caller.owner}/requests", caller.limits.requests_per_minute
            taken = await self._windows.take(key, limit)
            standing = await self._windows.standing(key, limit)
            _set_headers(headers, "requests", standing)
            if not taken:
                raise _used_up("requests", standing)

    @asynccontextmanager
    async def query(self, caller: Caller, headers: ReplyHeaders) -> AsyncIterator[QueryTicket]:
        """Admit a query, which holds its slot until the block ends. Raises RateLimited or Overloaded."""
        with ExitStack() as slots:

            def take_slot() -> None:
                slots.enter_context(self._queries.slot(caller.owner, caller.limits.concurrent_queries))

            take_slot()
            limit = caller.limits.tokens_per_minute
            account = None if limit is None else await self._account(caller.owner, limit, headers)
            ticket = QueryTicket(account, take_slot)
            try:
                yield ticket
            finally:
                ticket.close()

    def search(self, caller: Caller) -> AbstractContextManager[None]:
        """Admit a search, which holds the slot of a query until the block ends, but uses no tokens.

        Raises RateLimited or Overloaded.
        """
        return self._queries.slot(caller.owner, caller.limits.concurrent_queries)

    @asynccontextmanager
    async def upload(self, caller: Caller) -> AsyncIterator[UploadTicket]:
        """Admit an upload, which holds its slot until the block ends. Raises RateLimited."""
        limits = caller.limits
        with self._uploads.slot(caller.owner, limits.concurrent_uploads):
            if limits.upload_bytes_per_minute is not None:
                standing = await self._windows.standing(f"{caller.owner}/upload_bytes", limits.upload_bytes_per_minute)
                if not standing.room:
                    raise _used_up("bytes of uploads", standing)
            if limits.documents_per_minute is not None:
                key, limit = f"{caller.owner}/documents", limits.documents_per_minute
                if not await self._windows.take(key, limit):
                    raise _used_up("documents", await self._windows.standing(key, limit))
            yield UploadTicket(self._windows, caller)

    async def _account(self, owner: str, limit: int, headers: ReplyHeaders) -> TokenAccount:
        counted = await self._windows.standing(f"{owner}/tokens", limit)
        # No await from here on, or two queries could be admitted on the same tokens.
        standing = counted._replace(room=max(0, counted.room - self._reservations.of(owner)))
        _set_headers(headers, "tokens", standing)
        if not standing.room:
            raise _used_up("tokens", standing, known=not counted.room)
        return TokenAccount(owner, limit, self._reservations, self._windows, self._tasks)


def _used_up(what: str, standing: Standing, known: bool = True) -> RateLimited:
    """The refusal. If running queries hold the rest of the quota, the time of the next free slot is not ``known``."""
    message = f"This key has used up its {standing.limit:,} {what} per minute."
    return RateLimited(message, retry_after_s=standing.retry_after_s if known else None)


def _set_headers(headers: ReplyHeaders, what: str, standing: Standing) -> None:
    """Set the rate-limit headers that OpenAI's clients read."""
    headers[f"x-ratelimit-limit-{what}"] = str(standing.limit)
    headers[f"x-ratelimit-remaining-{what}"] = str(standing.room)
    headers[f"x-ratelimit-reset-{what}"] = f"{standing.reset_s:.3f}s"
