"""A TCP relay between a machine that reads and the one that serves: the place where a link goes wrong."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from generator.peers.wire import host_and_port, joined

_HOST = "127.0.0.1"
_CHUNK_BYTES = 64 << 10


class LinkFault(Protocol):
    """What goes wrong with replies."""

    async def passed_on(self, chunk: bytes, at: int) -> bytes:
        """What becomes of a chunk of a reply, ``at`` bytes behind the last request. A shorter one ends the connection.

        It is passed on when this returns.
        """


class Relay:
    """Connects whoever connects to ``address`` with ``target``, and passes all bytes on. Create it with ``opened``.

    While there is a ``fault``, replies of the target go through it. A connection ends on both sides when one side ends
    it, and at once if the target cannot be reached.
    """

    def __init__(self, target: str) -> None:
        self._target = host_and_port(target)
        self._connections: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self.address = ""
        self.fault: LinkFault | None = None

    @classmethod
    @asynccontextmanager
    async def opened(cls, target: str) -> "AsyncGenerator[Relay]":
        """Listen at a free port of this machine. On exit all connections end."""
        relay = cls(target)
        server = await asyncio.start_server(relay._connected, _HOST, 0)
        relay.address = joined(*server.sockets[0].getsockname()[:2])
        try:
            yield relay
        finally:
            server.close()
            relay._closing.set()
            await asyncio.gather(*relay._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            # A target that cannot be reached, or a side that has ended the connection.
            with suppress(OSError):
                target_reader, target_writer = await asyncio.open_connection(*self._target)
                try:
                    connection = _Connection((reader, writer), (target_reader, target_writer))
                    await self._until_one_ends(connection.requests(), connection.replies(self._after_fault))
                finally:
                    target_writer.close()
        finally:
            writer.close()

    async def _until_one_ends(self, *ways: Coroutine[Any, Any, None]) -> None:
        """Run both ways of a connection, until one of them or the relay ends."""
        tasks = [*map(asyncio.create_task, ways), asyncio.create_task(self._closing.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _after_fault(self, chunk: bytes, at: int) -> bytes:
        return chunk if self.fault is None else await self.fault.passed_on(chunk, at)


_Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """The connections to a client and to the target, and how many bytes have been replied to the last request."""

    def __init__(self, client: _Side, target: _Side) -> None:
        self._from_client, self._to_client = client
        self._from_target, self._to_target = target
        self._replied = 0

    async def requests(self) -> None:
        """Pass on what the client sends, until it ends."""
        while chunk := await self._from_client.read(_CHUNK_BYTES):
            self._replied = 0
            self._to_target.write(chunk)
            await self._to_target.drain()

    async def replies(self, passed_on: Callable[[bytes, int], Awaitable[bytes]]) -> None:
        """Pass on what becomes of the target's replies, until they end or less is passed on than came."""
        while chunk := await self._from_target.read(_CHUNK_BYTES):
            passed = await passed_on(chunk, self._replied)
            self._replied += len(chunk)
            self._to_client.write(passed)
            await self._to_client.drain()
            if len(passed) < len(chunk):
                return
