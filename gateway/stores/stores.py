"""The gateway's stores."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from limits.aio.storage import MemoryStorage

from gateway.settings import GatewaySettings
from gateway.stores.query_log import QueryLog, QueryLogFile
from gateway.stores.uploads import UploadRecords
from gateway.stores.windows import SlidingWindows, Windows


class Stores(Protocol):
    """Stores of one gateway, or shared by several. No request fails because a store is unreachable."""

    @property
    def windows(self) -> Windows:
        """Counters of the quotas."""

    @property
    def query_log(self) -> QueryLog:
        """Past queries for warming up the cache."""

    @property
    def upload_records(self) -> UploadRecords:
        """Records of uploads, next to the retriever's own."""

    def degraded(self) -> tuple[str, ...]:
        """Names of the stores that cannot be reached now."""

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Open the stores for the duration of the context. Pending writes are completed at its end."""


class EmbeddedStores:
    """Stores of a single gateway, in its memory. The query log is in ``folder``, if given."""

    def __init__(self, folder: Path | None, settings: GatewaySettings) -> None:
        self.windows: Windows = SlidingWindows(MemoryStorage())
        self.upload_records = UploadRecords()
        self.query_log = QueryLogFile(folder, settings.query_log_mib)

    def degraded(self) -> tuple[str, ...]:
        """Always empty."""
        return ()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the stores for the duration of the context."""
        try:
            yield
        finally:
            await self.query_log.close()
