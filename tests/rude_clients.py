"""Badly behaved clients of server-sent events: slow, stalled, gone, or broken. Raw sockets, seeded."""

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable

RESET = struct.pack("ii", 1, 0)
"""``SO_LINGER`` value with which closing sends a reset."""


class RudeClient:
    """One connection that sends ``body`` for server-sent events and then misbehaves."""

    def __init__(self, address: tuple[str, int], body: dict[str, object], chance: random.Random) -> None:
        self._address = address
        content = json.dumps({**body, "stream": True}).encode()
        head = b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self.request = head % len(content) + content
        self.chance = chance
        self._loop = asyncio.get_running_loop()

    async def run(self, behaviour: Callable[["RudeClient"], Awaitable[None]]) -> None:
        """Connect, misbehave, and disconnect."""
        with socket.socket() as self._socket:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            self._socket.setblocking(False)
            with contextlib.suppress(ConnectionError):
                await self._loop.sock_connect(self._socket, self._address)
                await behaviour(self)

    async def send(self, content: bytes) -> None:
        await self._loop.sock_sendall(self._socket, content)

    async def receive(self, most: int) -> bytes:
        async with asyncio.timeout(20):
            return await self._loop.sock_recv(self._socket, most)

    async def pause(self, longest_s: float) -> None:
        await asyncio.sleep(self.chance.uniform(0, longest_s))

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def reset_on_close(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


async def reads_a_byte_at_a_time(client: RudeClient) -> None:
    await client.send(client.request)
    for number in range(client.chance.randrange(2000)):
        if not await client.receive(1):
            return
        if number % 200 == 0:
            await client.pause(0.02)


async def stops_reading(client: RudeClient) -> None:
    await client.send(client.request)
    await client.receive(client.chance.randrange(1, 3000))
    await client.pause(1.5)


async def stops_reading_for_a_while(client: RudeClient) -> None:
    await stops_reading(client)
    while await client.receive(65536):
        if client.chance.random() < 0.02:
            return


async def half_closes(client: RudeClient) -> None:
    await client.send(client.request)
    client.half_close()
    while await client.receive(4096):
        pass


async def resets(client: RudeClient) -> None:
    await client.send(client.request)
    client.reset_on_close()
    if client.chance.random() < 0.7:
        await client.receive(client.chance.randrange(1, 2000))


async def leaves_before_the_headers(client: RudeClient) -> None:
    await client.send(client.request)
    await client.pause(0.01)


async def leaves_within_its_own_request(client: RudeClient) -> None:
    await client.send(client.request[: client.chance.randrange(len(client.request))])
    await client.pause(0.05)


async def leaves_within_a_frame(client: RudeClient) -> None:
    await client.send(client.request)
    for _ in range(client.chance.randrange(1, 30)):
        if not await client.receive(client.chance.randrange(1, 300)):
            return


async def asks_again_while_it_is_answered(client: RudeClient) -> None:
    await client.send(client.request)
    await client.receive(100)
    await client.send(client.request * client.chance.randrange(1, 4))
    for _ in range(client.chance.randrange(200)):
        if not await client.receive(4096):
            return


async def sends_garbage(client: RudeClient) -> None:
    await client.send(client.chance.randbytes(client.chance.randrange(1, 5000)))
    await client.receive(1000)


async def sends_garbage_while_it_is_answered(client: RudeClient) -> None:
    await client.send(client.request)
    await client.receive(100)
    await client.send(client.chance.randbytes(2000))
    await client.pause(0.2)


BEHAVIOURS = (
    reads_a_byte_at_a_time,
    stops_reading,
    stops_reading_for_a_while,
    half_closes,
    resets,
    leaves_before_the_headers,
    leaves_within_its_own_request,
    leaves_within_a_frame,
    asks_again_while_it_is_answered,
    sends_garbage,
    sends_garbage_while_it_is_answered,
)


async def misbehave(address: tuple[str, int], body: dict[str, object], clients: int, seed: int) -> None:
    """Run ``clients`` concurrent clients, every behaviour equally often; return when all are gone."""
    chance = random.Random(seed)
    plans = [(BEHAVIOURS[number % len(BEHAVIOURS)], random.Random(chance.random())) for number in range(clients)]
    async with asyncio.TaskGroup() as group:
        for behaviour, own in plans:
            group.create_task(RudeClient(address, body, own).run(behaviour))
            await asyncio.sleep(own.uniform(0, 0.01))
