"""Calls over real connections between a caller and a part, both in this process."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Protocol

import msgspec
import numpy as np
import pytest

from protocol.errors import EngineDied, InternalError, Overloaded, RagtreeError, RateLimited, UnknownPlan
from protocol.parts import per_query as queried
from services.calls import server as served
from services.calls.connection import CallDropped, Connection
from services.calls.method import per_query
from services.calls.server import CallServer
from services.calls.wire import _KINDS, TOKEN_BYTES, Call, error_of, raised

HOST = "127.0.0.1"


class Point(msgspec.Struct, frozen=True):
    place: tuple[float, ...]
    name: str | None = None


class Contract(Protocol):
    @queried
    async def scale(self, point: Point, by: float = 2.0) -> Point:
        """Return a point."""

    @queried
    async def wait(self, name: str) -> str:
        """Return the name once it is allowed to."""

    @queried
    async def fail(self, code: str) -> None:
        """Raise an error."""

    @queried
    def count(self, upto: int, words: Sequence[str] = ()) -> AsyncGenerator[int, None]:
        """Yield numbers."""

    async def rare(self) -> None:
        """Is called over Ray Serve."""


class Part:
    """Fulfils the contract; records what begins and what ends."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.allowed = asyncio.Event()
        self.yielded = 0

    async def scale(self, point: Point, by: float) -> Point:
        return Point(tuple(np.array(point.place, np.float32) * by), point.name)

    async def wait(self, name: str) -> str:
        self.seen.append((name, "begun"))
        try:
            await self.allowed.wait()
        except asyncio.CancelledError:
            self.seen.append((name, "cancelled"))
            if name == "slow to end":
                await asyncio.sleep(0.1)
                self.seen.append((name, "ended"))
            raise
        return name

    async def fail(self, code: str) -> None:
        if code == "own":
            raise Full("no room", "p")
        raise {"died": EngineDied("gone", begun=False), "odd": ValueError("secret")}[code]

    async def count(self, upto: int, words: Sequence[str]) -> AsyncGenerator[int, None]:
        try:
            for number in range(upto):
                self.yielded += 1
                yield number
                await asyncio.sleep(0)
            if words:
                raise UnknownPlan(words[0])
        finally:
            self.seen.append(("count", "closed"))


class Full(Overloaded):
    """An error without a code of its own."""


class Caller:
    """Calls the contract's methods by name."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._methods = per_query(Contract)

    async def call(self, name: str, *arguments: object, **named: object) -> object:
        method = self._methods[name]
        return method.gives.decode(await self.connection.call(name, method.takes.encode(arguments, named)))

    async def stream(self, name: str, *arguments: object) -> AsyncGenerator[int, None]:
        method = self._methods[name]
        async with aclosing(self.connection.stream(name, method.takes.encode(arguments, {}))) as items:
            async for item in items:
                yield method.gives.decode(item)


@pytest.fixture
def part():
    return Part()


@pytest.fixture
async def server(part):
    server = CallServer(part, per_query(Contract).values())
    await server.listen(HOST)
    yield server
    await server.close(0)


@pytest.fixture
async def caller(server):
    return Caller(await Connection.open(server.address))


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def stranger(server):
    reader, writer = await asyncio.open_connection(HOST, server.address.port)
    yield reader, writer
    writer.close()


def test_only_marked_methods_are_called_over_connections():
    assert per_query(Contract).keys() == {"scale", "wait", "fail", "count"}


async def test_arguments_and_results_arrive_by_their_types(caller):
    assert await caller.call("scale", Point((1, 2.5))) == Point((2.0, 5.0))
    assert await caller.call("scale", Point((1.5,), "a"), by=0.5) == Point((0.75,), "a")
    with pytest.raises(TypeError, match="unexpected"):
        await caller.call("scale", Point(()), of=3)


async def test_calls_run_side_by_side(caller, part):
    waiting = [asyncio.create_task(caller.call("wait", str(number))) for number in range(50)]
    await until(lambda: len(part.seen) == 50)
    assert [item async for item in caller.stream("count", 3)] == [0, 1, 2]
    part.allowed.set()
    assert await asyncio.gather(*waiting) == [str(number) for number in range(50)]


async def test_large_messages_pass(caller):
    point = Point((0.5,) * 1_000_000, "a" * 5_000_000)
    assert await caller.call("scale", point, 1.0) == point


async def test_errors_arrive_as_they_were_raised(caller):
    with pytest.raises(EngineDied, match="gone") as died:
        await caller.call("fail", "died")
    assert died.value.begun is False
    with pytest.raises(InternalError) as hidden:
        await caller.call("fail", "odd")
    assert "secret" not in str(hidden.value)
    with pytest.raises(Overloaded, match="no room") as full:
        await caller.call("fail", "own")
    assert full.value.param == "p"
    with pytest.raises(UnknownPlan, match="q"):
        assert [item async for item in caller.stream("count", 2, ["q"])] == []


@pytest.mark.parametrize("kind", [kind for kind, _ in _KINDS.values()], ids=_KINDS)
def test_every_error_arrives_as_its_kind(kind: type[RagtreeError]):
    error = error_of(raised(1, kind("why", "field")))
    assert (type(error), error.message, error.param, error.args) == (kind, "why", "field", kind("why", "field").args)


def test_an_errors_further_arguments_arrive():
    error = error_of(raised(1, RateLimited("slow down", None, 7)))
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == 7


async def test_a_cancelled_call_is_cancelled_at_the_part(caller, part):
    calls = [asyncio.create_task(caller.call("wait", name)) for name in "ab"]
    await until(lambda: len(part.seen) == 2)
    calls[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[0]
    await until(lambda: ("a", "cancelled") in part.seen)
    part.allowed.set()
    assert await calls[1] == "b"


async def test_a_stream_that_is_closed_early_is_closed_at_the_part(caller, part):
    stream = caller.stream("count", 10**9)
    assert await anext(stream) == 0
    await stream.aclose()
    await until(lambda: part.seen == [("count", "closed")])
    assert [item async for item in caller.stream("count", 2)] == [0, 1]


async def test_a_stream_waits_for_a_caller_that_does_not_read(server, part):
    async with stranger(server) as (_reader, writer):
        method = per_query(Contract)["count"]
        arguments = msgspec.Raw(method.takes.encode((10**9,), {}))
        message = msgspec.msgpack.encode(Call(1, "count", arguments))
        writer.write(server.address.token + len(message).to_bytes(4, "big") + message)
        before = -1
        async with asyncio.timeout(60):
            while before != part.yielded or not before:
                before = part.yielded
                await asyncio.sleep(0.2)
    await until(lambda: part.seen == [("count", "closed")])


async def test_calls_end_with_their_connection(caller, part):
    waiting = asyncio.create_task(caller.call("wait", "a"))
    await until(lambda: bool(part.seen))
    caller.connection._wire.close()
    with pytest.raises(CallDropped) as dropped:
        await waiting
    assert dropped.value.begun
    await until(lambda: ("a", "cancelled") in part.seen)
    assert not caller.connection.usable
    with pytest.raises(CallDropped) as dropped:
        await caller.call("wait", "b")
    assert not dropped.value.begun


async def test_what_a_part_does_at_the_end_of_a_call_is_not_interrupted(server, caller, part):
    waiting = asyncio.create_task(caller.call("wait", "slow to end"))
    await until(lambda: bool(part.seen))
    waiting.cancel()
    await until(lambda: ("slow to end", "cancelled") in part.seen)
    caller.connection._wire.close()
    await until(lambda: not server._wires)
    await server.close(0)
    assert part.seen[-1] == ("slow to end", "ended")


async def test_a_connection_belongs_to_its_event_loop(caller):
    async def usable() -> bool:
        return caller.connection.usable

    assert await usable()
    assert not await asyncio.to_thread(asyncio.run, usable())


async def test_a_closing_server_finishes_its_calls_and_takes_no_more(server, caller, part):
    waiting = asyncio.create_task(caller.call("wait", "a"))
    await until(lambda: bool(part.seen))
    closing = asyncio.create_task(server.close(10))
    # The first is sent before the caller knows.
    while caller.connection.usable:
        with pytest.raises(CallDropped) as dropped:
            await caller.call("wait", "b")
        assert not dropped.value.begun
    with pytest.raises(CallDropped) as dropped:
        await caller.call("wait", "c")
    assert not dropped.value.begun
    with pytest.raises(OSError, match=str(server.address.port)):
        await Connection.open(server.address)
    part.allowed.set()
    assert await waiting == "a"
    await closing
    await until(lambda: not caller.connection.usable)
    assert part.seen == [("a", "begun")]


async def test_calls_that_last_too_long_are_cancelled_when_the_server_closes(server, caller, part):
    waiting = asyncio.create_task(caller.call("wait", "a"))
    await until(lambda: bool(part.seen))
    await server.close(0)
    with pytest.raises(CallDropped) as dropped:
        await waiting
    assert dropped.value.begun
    assert part.seen[-1] == ("a", "cancelled")


@pytest.mark.parametrize("token", [b"a" * TOKEN_BYTES, b"", b"\0" * 1000])
async def test_who_does_not_know_the_token_is_told_nothing(server, part, token):
    async with stranger(server) as (reader, writer):
        writer.write(token)
        writer.write_eof()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    assert part.seen == []


async def test_strangers_who_wait_are_few_and_do_not_wait_long(server, monkeypatch):
    monkeypatch.setattr(served, "_MOST_STRANGERS", 2)
    monkeypatch.setattr(served, "_INTRODUCTION_S", 0.5)
    async with stranger(server) as (one, _), stranger(server) as (two, _):
        await until(lambda: server._strangers == 2)
        async with stranger(server) as (third, _):
            assert await third.read() == b""
        assert await one.read() + await two.read() == b""
    assert server._strangers == 0
    caller = Caller(await Connection.open(server.address))
    assert await caller.call("scale", Point(())) == Point(())


@pytest.mark.parametrize("message", [b"", b"\xc1", msgspec.msgpack.encode([7, 1]), msgspec.msgpack.encode([0, "a"])])
async def test_what_is_no_call_ends_the_connection(server, message):
    async with stranger(server) as (reader, writer):
        writer.write(server.address.token + len(message).to_bytes(4, "big") + message)
        assert await reader.read() == b""


async def test_arguments_of_other_types_are_an_internal_error(server, caller):
    with pytest.raises(InternalError):
        await caller.connection.call("scale", msgspec.msgpack.encode(["no point", 1.0]))
    with pytest.raises(InternalError):
        await caller.connection.call("rare", msgspec.msgpack.encode([]))
    assert await caller.call("scale", Point(())) == Point(())


async def test_nothing_is_left_of_calls_that_are_over(server, caller, part):
    part.allowed.set()
    for number in range(20):
        await caller.call("wait", str(number))
        assert [item async for item in caller.stream("count", 1)] == [0]
    gc.collect()
    assert caller.connection._answers == {}
    await until(lambda: not server._running)
