"""The caller's side: a connection to one replica, for any number of calls at once."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Self

import msgspec
import structlog

from services.calls.wire import (
    WELCOME,
    Address,
    Call,
    Cancel,
    Dropped,
    Item,
    Leave,
    Raised,
    Reply,
    Returned,
    Wire,
    error_of,
    replies,
)

log = structlog.get_logger(__name__)

_OPEN_S = 5.0


class CallDropped(Exception):
    """The replica stops or is gone. If the call has not ``begun`` there, another replica can have it."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__()
        self.begun = begun


class Connection:
    """Calls the ``methods`` of one replica. It belongs to the event loop that opened it."""

    def __init__(self, wire: Wire, methods: frozenset[str]) -> None:
        self.methods = methods
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, _Answer] = {}
        self._calls = 0
        self._leaving = False
        self._receiving = asyncio.create_task(self._receive())

    @classmethod
    async def open(cls, address: Address) -> Self:
        """Connect to a replica. Raises OSError if it is not there, also TimeoutError."""
        async with asyncio.timeout(_OPEN_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                writer.write(address.token)
                await reader.readexactly(len(WELCOME))
            except BaseException as error:
                writer.close()
                if isinstance(error, asyncio.IncompleteReadError):
                    raise ConnectionRefusedError(f"{address} is closed to this caller") from error
                raise
        return cls(Wire(reader, writer), address.methods)

    @property
    def usable(self) -> bool:
        """Whether the running event loop can call over this connection."""
        over = self._leaving or self._wire.closing or self._receiving.done()
        return not over and self._loop is asyncio.get_running_loop()

    def leave(self) -> None:
        """Take no more calls, and close the connection after the last one."""
        self._leaving = True
        if not self._answers:
            self._wire.close()

    async def call(self, method: str, arguments: bytes) -> msgspec.Raw:
        """Return what the method returns. Raises its RagtreeError, or CallDropped. Cancelling cancels the method."""
        with self._begun(method, arguments) as answer:
            return (await answer.next()).value

    async def stream(self, method: str, arguments: bytes) -> AsyncGenerator[msgspec.Raw, None]:
        """Yield what the method yields. Closing the iterator cancels the method. Raises as ``call`` does."""
        with self._begun(method, arguments) as answer:
            while isinstance(reply := await answer.next(), Item):
                yield reply.value

    @contextmanager
    def _begun(self, method: str, arguments: bytes) -> Iterator["_Answer"]:
        if not self.usable:
            raise CallDropped(begun=False)
        self._calls += 1
        number = self._calls
        answer = self._answers[number] = _Answer()
        try:
            self._wire.send(Call(number, method, msgspec.Raw(arguments)))
            yield answer
        finally:
            del self._answers[number]
            if not answer.over:
                self._wire.send(Cancel(number))
            if self._leaving:
                self.leave()

    async def _receive(self) -> None:
        try:
            while True:
                reply = replies.decode(await self._wire.receive())
                if isinstance(reply, Leave):
                    self.leave()
                # Replies to calls that have been cancelled may still come.
                elif reply.number in self._answers:
                    self._answers[reply.number].put(reply)
        except (OSError, asyncio.IncompleteReadError):
            pass
        except msgspec.DecodeError as error:
            log.warning("reply_not_understood", error=str(error))
        finally:
            for answer in self._answers.values():
                answer.put(None)
            self._wire.close()


class _Answer:
    """What comes back for one call. It is ``over`` after the last reply, or once the connection is lost."""

    def __init__(self) -> None:
        self.over = False
        self._replies: asyncio.Queue[Reply | None] = asyncio.Queue()

    def put(self, reply: Reply | None) -> None:
        self._replies.put_nowait(reply)

    async def next(self) -> Item | Returned:
        reply = await self._replies.get()
        self.over = not isinstance(reply, Item)
        match reply:
            case Item() | Returned():
                return reply
            case Raised():
                raise error_of(reply)
            case Dropped():
                raise CallDropped(begun=reply.begun)
            case None:
                raise CallDropped(begun=True)
