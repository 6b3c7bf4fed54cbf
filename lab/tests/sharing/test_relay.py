"""The relay between two machines, and what its faults do to replies."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from generator.peers.wire import host_and_port, joined
from ragtree_lab.sharing.link_faults import Cut, Lying, Slow
from ragtree_lab.sharing.relay import Relay

PAGE = bytes(range(256)) * 4096
"""What the server sends as often as it is asked, one byte each time: longer than any buffer of the relay."""


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1):
        writer.write(PAGE)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*host_and_port(address))
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest_asyncio.fixture
async def target() -> AsyncIterator[str]:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    yield joined(*server.sockets[0].getsockname()[:2])
    server.close()


@pytest_asyncio.fixture
async def relay(target) -> AsyncIterator[Relay]:
    async with Relay.opened(target) as opened:
        yield opened


async def reply(relay: Relay) -> bytes:
    """The reply on a new connection, as far as it comes."""
    async with connected(relay.address) as (reader, writer):
        writer.write(b"?")
        try:
            return await reader.readexactly(len(PAGE))
        except asyncio.IncompleteReadError as cut:
            return cut.partial


async def test_all_replies_pass_without_a_fault(relay):
    async with connected(relay.address) as (reader, writer):
        for _ in range(3):
            writer.write(b"?")
            assert await reader.readexactly(len(PAGE)) == PAGE


async def test_several_connections_at_once_do_not_mix(relay):
    assert await asyncio.gather(*(reply(relay) for _ in range(5))) == [PAGE] * 5


async def test_a_cut_ends_each_reply_at_its_place_and_stops_with_the_fault(relay):
    relay.fault = Cut(100_001)
    assert await asyncio.gather(reply(relay), reply(relay)) == [PAGE[:100_001]] * 2
    relay.fault = None
    assert await reply(relay) == PAGE


async def test_a_cut_spares_replies_that_are_shorter(relay):
    relay.fault = Cut(len(PAGE))
    assert await reply(relay) == PAGE


async def test_a_lie_is_one_bit_of_each_reply(relay):
    relay.fault = Lying(200_000)
    async with connected(relay.address) as (reader, writer):
        for _ in range(2):
            writer.write(b"?")
            came = await reader.readexactly(len(PAGE))
            assert [place for place in range(len(PAGE)) if came[place] != PAGE[place]] == [200_000]
            assert (came[200_000] ^ PAGE[200_000]).bit_count() == 1


async def test_a_slow_link_has_one_rate_for_all_its_connections(relay):
    relay.fault = Slow(8 * len(PAGE))
    began = time.monotonic()
    assert await asyncio.gather(reply(relay), reply(relay)) == [PAGE] * 2
    assert time.monotonic() - began >= 2 / 8


async def test_a_reader_that_goes_ends_the_connection_to_the_server():
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with Relay.opened(joined(*server.sockets[0].getsockname()[:2])) as relay:
        async with connected(relay.address):
            pass
        await asyncio.wait_for(ended.wait(), 10)
    server.close()


async def test_a_server_that_is_away_ends_the_connection_at_once():
    # Nothing listens at port 1.
    async with Relay.opened("127.0.0.1:1") as relay, connected(relay.address) as (reader, _):
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_a_relay_that_closes_ends_its_connections(target):
    async with Relay.opened(target) as relay:
        reader, writer = await asyncio.open_connection(*host_and_port(relay.address))
        writer.write(b"?")
        await reader.readexactly(len(PAGE))
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*host_and_port(relay.address))
