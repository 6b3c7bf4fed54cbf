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
from protocol.parts import per_query
from services.calls import server as served
from services.calls.connection import CallDropped, Connection
from services.calls.method import methods_of
from services.calls.server import CallServer
from services.calls.wire import _BY_CODE, TOKEN_BYTES, WELCOME, Call, error_of, raised

HOST = "127.0.0.1"


class Point(msgspec.Struct, frozen=True):
    place: tuple[float, ...]
    name: str | None = None


class Contract(Protocol):
    @per_query
    async def scale(self, point: Point, by: float = 2.0) -> Point:
        """Return a point."""

    @per_query
    async def wait(self, name: str) -> str:
        """Return the name once it is allowed to."""

    @per_query
    async def fail(self, code: str) -> None:
        """Raise an error."""

    @per_query
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
            if name == "times out":
                await self._time_out(name)
            await self.allowed.wait()
        except asyncio.CancelledError:
            self.seen.append((name, "cancelled"))
            if name == "slow to end":
                await asyncio.sleep(0.1)
                self.seen.append((name, "ended"))
            raise
        return name

    async def _time_out(self, name: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                try:
                    await self.allowed.wait()
                finally:
                    self.seen.append((name, "unwinding"))
                    await asyncio.sleep(10)

    async def fail(self, code: str) -> None:
        raise ERRORS[code]

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


class Odd(UnknownPlan, code="odd"):
    """An error that only this process knows, made of other arguments."""

    def __init__(self, plan: object) -> None:
        super().__init__(f"no plan {plan}", "plan")
        self.args = (plan,)


ERRORS: dict[str, Exception] = {
    "died": EngineDied("gone", begun=False),
    "defect": ValueError("secret"),
    "own": Full("no room", "p"),
    "odd": Odd(object),
    "no Unicode": UnknownPlan("\ud800 is unknown", "\ud800"),
    "timeout": TimeoutError(),
    "file": FileNotFoundError(2, "none"),
    "lost": ConnectionResetError(),
}


class Caller:
    """Calls the contract's methods by name."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._methods = methods_of(Contract)

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
    server = CallServer(methods_of(Contract).values())
    await server.listen(part, HOST)
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
    assert methods_of(Contract).keys() == {"scale", "wait", "fail", "count"}


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
    for code in ("defect", "timeout", "file", "lost"):
        with pytest.raises(InternalError) as hidden:
            await caller.call("fail", code)
        assert "secret" not in str(hidden.value)
    with pytest.raises(UnknownPlan, match="no plan") as odd:
        await caller.call("fail", "odd")
    assert (type(odd.value), odd.value.param) == (UnknownPlan, "plan")
    with pytest.raises(UnknownPlan, match="\\? is unknown"):
        await caller.call("fail", "no Unicode")
    with pytest.raises(Overloaded, match="no room") as full:
        await caller.call("fail", "own")
    assert full.value.param == "p"
    with pytest.raises(UnknownPlan, match="q"):
        assert [item async for item in caller.stream("count", 2, ["q"])] == []


@pytest.mark.parametrize("kind", _BY_CODE.values(), ids=_BY_CODE)
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


async def test_a_call_that_runs_into_a_timeout_of_its_own_can_still_be_cancelled(caller, part):
    waiting = asyncio.create_task(caller.call("wait", "times out"))
    await until(lambda: ("times out", "unwinding") in part.seen)
    waiting.cancel()
    await until(lambda: part.seen[-1] == ("times out", "cancelled"))


async def test_a_stream_waits_for_a_caller_that_does_not_read(server, part):
    async with stranger(server) as (_reader, writer):
        method = methods_of(Contract)["count"]
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


async def test_a_caller_with_another_token_learns_it_at_once(server):
    address = msgspec.structs.replace(server.address, token=b"a" * TOKEN_BYTES)
    with pytest.raises(ConnectionError):
        await Connection.open(address)
    assert "aaa" not in repr(address)


async def test_a_machine_that_lacks_its_own_address_listens_at_all(part):
    server = CallServer(methods_of(Contract).values())
    await server.listen(part, "192.0.2.1")
    caller = Caller(await Connection.open(msgspec.structs.replace(server.address, host=HOST)))
    assert (await caller.call("scale", Point(())), server.address.host) == (Point(()), "192.0.2.1")
    await server.close(0)


async def test_a_caller_that_does_not_leave_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(served, "_END_S", 0.05)
    async with stranger(server) as (reader, writer):
        writer.write(server.address.token)
        assert await reader.readexactly(1) == WELCOME
        async with asyncio.timeout(5):
            await server.close(1000)
        assert await reader.read()


async def test_a_server_that_never_listened_can_be_closed():
    await CallServer(()).close(1)


async def test_strangers_who_wait_are_few_and_do_not_wait_long(server, monkeypatch):
    monkeypatch.setattr(served, "_MOST_STRANGERS", 2)
    monkeypatch.setattr(served, "_INTRODUCTION_S", 0.5)
    async with stranger(server) as (one, _), stranger(server) as (two, _):
        await until(lambda: server._strangers == 2)
        async with stranger(server) as (third, _):
            assert await third.read() == b""
        with pytest.raises(ConnectionError):
            await Connection.open(server.address)
        assert await one.read() + await two.read() == b""
    assert server._strangers == 0
    caller = Caller(await Connection.open(server.address))
    assert await caller.call("scale", Point(())) == Point(())


@pytest.mark.parametrize("message", [b"", b"\xc1", msgspec.msgpack.encode([7, 1]), msgspec.msgpack.encode([0, "a"])])
async def test_what_is_no_call_ends_the_connection(server, message):
    async with stranger(server) as (reader, writer):
        writer.write(server.address.token + len(message).to_bytes(4, "big") + message)
        assert await reader.read() == WELCOME


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
