"""The replica's side: serves a part's calls to whoever knows the token."""

import asyncio
import hmac
import secrets
import socket
from collections.abc import Collection, Iterable
from contextlib import aclosing

import msgspec
import structlog

from protocol.errors import InternalError, RagtreeError
from services.calls.method import Method, encoder
from services.calls.wire import (
    TOKEN_BYTES,
    Address,
    Call,
    Cancel,
    Dropped,
    Item,
    Leave,
    Reply,
    Returned,
    Wire,
    calls,
    raised,
)

log = structlog.get_logger(__name__)

_INTRODUCTION_S = 5.0
"""Seconds that a caller has to send the token."""
_MOST_STRANGERS = 64
"""Connections that have not sent the token yet."""
_END_S = 1.0
"""Seconds that cancelled calls, and callers that are told to leave, may take."""
_NOTHING = msgspec.Raw(encoder.encode(None))


class CallServer:
    """Serves ``methods`` of a part on a port that the kernel chooses. A call ends with its connection, at the latest.

    Callers that know the token are trusted. Strangers are sent nothing. Nothing is encrypted.
    """

    def __init__(self, methods: Collection[Method]) -> None:
        self._methods = {method.name: method for method in methods}
        self._token = secrets.token_bytes(TOKEN_BYTES)
        # Each by the task that reads it.
        self._wires: dict[asyncio.Task[None], Wire] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._cancelled: set[asyncio.Task[None]] = set()
        self._strangers = 0
        self._closing = False
        self._server: asyncio.Server | None = None
        self._part: object
        self.address: Address

    async def listen(self, part: object, host: str) -> None:
        """Serve the part's calls at an address of this machine: at all, if the machine does not have it itself."""
        self._part = part
        try:
            self._server = await asyncio.start_server(self._serve, host, 0)
        except OSError:
            self._server = await asyncio.start_server(self._serve, None, 0, family=socket.AF_INET)
        port = self._server.sockets[0].getsockname()[1]
        self.address = Address(host, port, self._token, frozenset(self._methods))

    async def close(self, within_s: float) -> None:
        """Take no more calls, and wait for those that run; cancel them after ``within_s`` seconds.

        Does nothing without ``listen``.
        """
        self._closing = True
        if self._server is None:
            return
        self._server.close()
        for wire in self._wires.values():
            wire.send(Leave())
        if self._running:
            await asyncio.wait(self._running, timeout=within_s)
        if self._running:
            self._cancel(self._running)
            await asyncio.wait(self._running, timeout=_END_S)
        if self._wires:
            # Callers end their connections themselves, so that no call is lost on its way.
            await asyncio.wait(self._wires, timeout=_END_S)
        for wire in self._wires.values():
            wire.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire, reading = Wire(reader, writer), asyncio.current_task()
        assert reading is not None
        own: dict[int, asyncio.Task[None]] = {}
        try:
            if not await self._knows_token(reader):
                return
            wire.welcome()
            self._wires[reading] = wire
            if self._closing:
                wire.send(Leave())
            while True:
                self._take(wire, own, calls.decode(await wire.receive()))
        except (OSError, asyncio.IncompleteReadError):
            pass
        except msgspec.DecodeError as error:
            log.warning("call_not_understood", error=str(error))
        finally:
            self._wires.pop(reading, None)
            self._cancel(own.values())
            wire.close()

    async def _knows_token(self, reader: asyncio.StreamReader) -> bool:
        if self._strangers >= _MOST_STRANGERS:
            return False
        self._strangers += 1
        try:
            async with asyncio.timeout(_INTRODUCTION_S):
                token = await reader.readexactly(TOKEN_BYTES)
        except TimeoutError:
            return False
        finally:
            self._strangers -= 1
        return hmac.compare_digest(token, self._token)

    def _take(self, wire: Wire, own: dict[int, asyncio.Task[None]], message: Call | Cancel) -> None:
        if isinstance(message, Cancel):
            self._cancel([own[message.number]] if message.number in own else ())
        elif self._closing:
            wire.send(Dropped(message.number, begun=False))
        else:
            task = own[message.number] = asyncio.create_task(self._carry_out(wire, message))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            task.add_done_callback(lambda _task: own.pop(message.number))

    async def _carry_out(self, wire: Wire, call: Call) -> None:
        wire.send(await self._reply(wire, call))

    async def _reply(self, wire: Wire, call: Call) -> Reply:
        number = call.number
        try:
            return Returned(number, await self._result(wire, call))
        except RagtreeError as error:
            return raised(number, error)
        except asyncio.CancelledError:
            # By the caller, who reads no more of it, or because the part ends.
            return Dropped(number, begun=True)
        except Exception as error:
            log.error("call_failed", method=call.method, error=repr(error), exc_info=error)
            return raised(number, InternalError.logged())

    async def _result(self, wire: Wire, call: Call) -> msgspec.Raw:
        method = self._methods[call.method]
        arguments = method.takes.decode(call.arguments)
        called = getattr(self._part, call.method)(*arguments)
        if not method.streams:
            return msgspec.Raw(encoder.encode(await called))
        async with aclosing(called) as items:
            async for item in items:
                wire.send(Item(call.number, msgspec.Raw(encoder.encode(item))))
                await wire.drain()
        return _NOTHING

    def _cancel(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        # A second time, it would interrupt what the part does at the end of a call, such as aborting the engine's work.
        for task in set(tasks) - self._cancelled:
            self._cancelled.add(task)
            task.add_done_callback(self._cancelled.discard)
            task.cancel()
