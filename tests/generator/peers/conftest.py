"""Servers and clients of pages, closed at the end of a test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fake_peers import Listener
from peer_nodes import ARENA_PAGES, FINGERPRINT, KEY, PAGE_BYTES, PAGE_TOKENS, InterruptedArena, open_disk

from generator.peers.page_client import PeerPages
from generator.peers.page_server import PageServer
from generator.tiers.disk import DiskTier
from protocol.kv import Paging
from protocol.tiers import Tier


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """Closes what a test opens, last opened first."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def arena(tmp_path: Path, closing: ExitStack) -> InterruptedArena:
    arena = InterruptedArena(tmp_path / "kv.arena", FINGERPRINT, Paging(PAGE_TOKENS), PAGE_BYTES, ARENA_PAGES)
    closing.callback(arena.close)
    return arena


@pytest.fixture
def disk(tmp_path: Path, closing: ExitStack) -> DiskTier:
    disk = open_disk(tmp_path)
    closing.callback(disk.close)
    return disk


@pytest.fixture
def serve(arena: InterruptedArena, disk: DiskTier, closing: ExitStack) -> Callable[..., PageServer]:
    """Starts a server of the two tiers, with changes to its arguments."""

    def start(**changes: Any) -> PageServer:
        arguments: dict[str, Any] = {
            "tiers": {Tier.HOST: arena, Tier.DISK: disk},
            "fingerprint": FINGERPRINT,
            "page_bytes": PAGE_BYTES,
            "rank": 0,
            "key": KEY,
            "host": "127.0.0.1",
            "port": 0,
        }
        server = PageServer(**(arguments | changes))
        closing.callback(server.close)
        return server

    return start


@pytest.fixture
def server(serve: Callable[..., PageServer]) -> PageServer:
    return serve()


@pytest.fixture
def connect(closing: ExitStack) -> Callable[..., PeerPages]:
    """Makes a client, with changes to its arguments."""

    def make(**changes: Any) -> PeerPages:
        arguments: dict[str, Any] = {
            "fingerprint": FINGERPRINT,
            "page_bytes": PAGE_BYTES,
            "rank": 0,
            "key": KEY,
            "timeout_s": 30.0,
        }
        client = PeerPages(**(arguments | changes))
        closing.callback(client.close)
        return client

    return make


@pytest.fixture
def client(connect: Callable[..., PeerPages]) -> PeerPages:
    return connect()


@pytest.fixture
def listen(closing: ExitStack) -> Callable[[Listener], Listener]:
    """Closes a listener at the end."""

    def keep(listener: Listener) -> Listener:
        closing.callback(listener.close)
        return listener

    return keep
