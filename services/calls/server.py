"""The replica's side: serves a part's calls to whoever knows the token."""

import asyncio
import hmac
import secrets
from collections.abc import Collection, Iterable
from contextlib import aclosing

import msgspec
import structlog

from protocol.errors import InternalError, RagtreeError
from services.calls.method import Method, encoder
from services.calls.wire import TOKEN_BYTES, Address, Call, Cancel, Dropped, Item, Leave, Returned, Wire, calls, raised

log = structlog.get_logger(__name__)

_INTRODUCTION_S = 5.0
"""Seconds that a caller has to send the token."""
_MOST_STRANGERS = 64
"""Connections that have not sent the token yet."""
_NOTHING = msgspec.Raw(encoder.encode(None))


class CallServer:
    """Serves ``methods`` of a part on a port that the kernel chooses. A call ends with its connection, at the latest.

    Callers that know the token are trusted. Strangers are sent nothing. Nothing is encrypted.
    """

    def __init__(self, part: object, methods: Collection[Method]) -> None:
        self._part = part
        self._methods = {method.name: method for method in methods}
        self._token = secrets.token_bytes(TOKEN_BYTES)
        # Each by the task that reads it.
        self._wires: dict[asyncio.Task[None], Wire] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._strangers = 0
        self._closing = False
        self._server: asyncio.Server
        self.address: Address

    async def listen(self, host: str) -> None:
        """Serve on an address of this machine."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = Address(host, port, self._token, frozenset(self._methods))

    async def close(self, within_s: float) -> None:
        """Take no more calls, and wait for those that run; cancel them after ``within_s`` seconds."""
        self._closing = True
        self._server.close()
        for wire in self._wires.values():
            wire.send(Leave())
        # Callers end their connections themselves, so that no call is lost on its way.
        if self._wires:
            await asyncio.wait(self._wires, timeout=within_s)
        _cancel(self._running)
        await asyncio.gather(*self._running, return_exceptions=True)
        for wire in self._wires.values():
            wire.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire, reading = Wire(reader, writer), asyncio.current_task()
        assert reading is not None
        own: dict[int, asyncio.Task[None]] = {}
        try:
            if not await self._knows_token(reader):
                return
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
            _cancel(own.values())
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
            _cancel([own[message.number]] if message.number in own else ())
        elif self._closing:
            wire.send(Dropped(message.number, begun=False))
        else:
            task = own[message.number] = asyncio.create_task(self._carry_out(wire, message))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            task.add_done_callback(lambda _task: own.pop(message.number))

    async def _carry_out(self, wire: Wire, call: Call) -> None:
        number = call.number
        try:
            wire.send(Returned(number, await self._result(wire, call)))
        except RagtreeError as error:
            wire.send(raised(number, error))
        except asyncio.CancelledError:
            # By the caller, who reads no more of it, or because the part ends.
            wire.send(Dropped(number, begun=True))
        except OSError:
            pass
        except Exception as error:
            log.error("call_failed", method=call.method, error=repr(error), exc_info=error)
            wire.send(raised(number, InternalError.logged()))

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


def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        # A second time, it would interrupt what the part does at the end of a call, such as aborting the engine's work.
        if not task.cancelling():
            task.cancel()
