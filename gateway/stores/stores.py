"""What the gateway keeps from one request to the next, and where."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from limits.aio.storage import MemoryStorage

from gateway.settings import GatewaySettings
from gateway.stores.query_log import QueryLog
from gateway.stores.query_log_file import QueryLogFile
from gateway.stores.uploads import NoRecords, UploadRecords
from gateway.stores.windows import SlidingWindows, Windows


class Stores(Protocol):
    """The stores of a gateway; several gateways may share them. No request fails because one cannot be reached."""

    @property
    def windows(self) -> Windows:
        """Counts what keys use."""

    @property
    def query_log(self) -> QueryLog:
        """Remembers queries for warming up."""

    @property
    def upload_records(self) -> UploadRecords:
        """Remembers uploads beside the retriever."""

    def degraded(self) -> tuple[str, ...]:
        """The names of what cannot be reached now; empty while all is well."""

    def opened(self) -> AbstractAsyncContextManager[None]:
        """The stores in use, for as long as the context is open; what waits to be written is written at its end."""


class EmbeddedStores:
    """The stores of a gateway alone: in its memory, and the query log in ``folder``, where one is given."""

    def __init__(self, folder: Path | None, settings: GatewaySettings) -> None:
        self.windows: Windows = SlidingWindows(MemoryStorage())
        self.upload_records: UploadRecords = NoRecords()
        self._file = QueryLogFile(folder, settings.query_log_mib)
        self.query_log: QueryLog = self._file

    def degraded(self) -> tuple[str, ...]:
        """Nothing ever."""
        return ()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """The stores in use."""
        try:
            yield
        finally:
            await self._file.close()
