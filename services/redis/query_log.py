"""The query log as a Redis stream that all gateways write to and any may replay."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Any

from gateway.stores.query_log import count, entry
from gateway.wire.schemas import WarmQuery
from protocol.errors import Unavailable
from protocol.repeating import in_background
from protocol.retrieval import SearchRequest
from services.redis.link import PROBE_S, RedisAway, RedisLink, RedisMetrics

STORE = "query_log"
MOST_WAITING = 1000
LONGEST_ENTRY = 4096
_FIELD = b"query"
_AT_ONCE = 100
_PAGE = 500


class StreamQueryLog:
    """The newest queries of all gateways, at least ``most`` of them, in the stream ``key``.

    Entries wait in memory while Redis is down. Entries that arrive while ``MOST_WAITING`` wait are dropped and counted,
    and so are entries longer than ``LONGEST_ENTRY`` bytes. If Redis' answer is lost, an entry may be written twice;
    then its query counts twice.
    """

    def __init__(
        self, link: RedisLink, metrics: RedisMetrics, key: str, most: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._link = link
        self._metrics = metrics
        self._key = key
        self._most = most
        self._clock = clock
        self._waiting: deque[bytes] = deque()
        self._noted = asyncio.Event()

    def note(self, search: SearchRequest) -> None:
        """Log a query as soon as Redis accepts it."""
        noted = entry(search, self._clock())
        if len(noted) > LONGEST_ENTRY or len(self._waiting) >= MOST_WAITING:
            self._metrics.dropped.inc()
            return
        self._waiting.append(noted)
        self._noted.set()

    async def counted(self, as_search: Callable[[WarmQuery], SearchRequest]) -> Counter[SearchRequest]:
        """Count how often each query was asked, over the whole stream. Raises Unavailable while Redis is down."""
        counted = Counter[SearchRequest]()
        behind = "-"
        try:
            while page := await self._link.call(STORE, lambda start=behind: self._page(start)):  # type: ignore[misc]
                entries = [fields[_FIELD] for _, fields in page if _FIELD in fields]
                counted += await asyncio.to_thread(count, entries, as_search)
                behind = f"({page[-1][0].decode()}"
        except RedisAway:
            raise Unavailable("The query log cannot be read now: Redis is down.") from None
        return counted

    @asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Write waiting entries while the context is open, and the rest at its end."""
        try:
            async with in_background(self._write()):
                yield
        finally:
            with suppress(RedisAway):
                while self._waiting:
                    await self._write_some()

    async def _write(self) -> None:
        while True:
            await self._noted.wait()
            await self._link.returned()
            try:
                await self._write_some()
            except RedisAway:
                # Redis may be up but full. Then only waiting helps.
                await asyncio.sleep(PROBE_S)

    async def _write_some(self) -> None:
        some = list(islice(self._waiting, _AT_ONCE))
        await self._link.call(STORE, lambda: self._add(some))
        for _ in some:
            self._waiting.popleft()
        if not self._waiting:
            self._noted.clear()

    async def _add(self, entries: list[bytes]) -> None:
        async with self._link.client.pipeline(transaction=False) as pipeline:
            for noted in entries:
                pipeline.xadd(self._key, {_FIELD: noted}, maxlen=self._most, approximate=True)
            await pipeline.execute()

    async def _page(self, start: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
        # The stubs cover every protocol version and both kinds of decoding.
        page: Any = await self._link.client.xrange(self._key, start, "+", _PAGE)
        return list(page)
